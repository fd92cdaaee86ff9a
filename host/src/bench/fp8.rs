//! Linear layers of 8-bit floats on a GPU, timed as [`kernels`](super::kernels) says.

use std::borrow::Cow;
use std::path::PathBuf;

use cuda_std::E4m3;
use cuda_std::launch::{Launch, LaunchError};
use half::f16;
use kernels::gemm::{Fp8Accumulate, LinearFp8, LinearFp8Operands, WeightScales};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use super::gemm::{self, Shape};
use super::kernels::{BenchError, Row};
use super::random::RandomWeights;
use super::stored::{self, Call, Layer, Maps};

/// The largest E4M3.
const LARGEST: f32 = 448.0;

/// The layers of [`gemm::shapes`] that tiles compute: prompts, and batches of more than 16 rows.
pub fn shapes() -> Vec<Shape> {
    gemm::shapes().into_iter().filter(|shape| shape.m > 16 && shape.k.is_multiple_of(16)).collect()
}

/// What is measured.
#[derive(Clone, Debug)]
pub struct Config {
    /// The number of the GPU.
    pub gpu: usize,
    /// How outputs are accumulated.
    pub accumulate: Fp8Accumulate,
    /// As [`GpuOptions::cubin_dir`](crate::exec::GpuOptions::cubin_dir).
    pub cubin_dir: Option<PathBuf>,
}

/// Measures `config` at a shape.
///
/// # Errors
/// [`BenchError`]; [`ExecError::Unsupported`](crate::exec::ExecError::Unsupported) in it where no
/// kernel takes the shape.
pub fn measure(config: &Config, shape: Shape) -> Result<Row<Shape>, BenchError> {
    let layer = Fp8Layer::new(config.accumulate, shape);
    stored::measure(config.gpu, config.cubin_dir.clone(), &layer)
}

struct Fp8Layer {
    accumulate: Fp8Accumulate,
    shape: Shape,
    x: Quantised,
    weight: Quantised,
}

impl Fp8Layer {
    fn new(accumulate: Fp8Accumulate, shape: Shape) -> Self {
        let Shape { m, n, k } = shape;
        let (x, weight) = (Quantised::random(m, k, 1), Quantised::random(n, k, 2));
        Fp8Layer { accumulate, shape, x, weight }
    }
}

impl Layer for Fp8Layer {
    fn shape(&self) -> Shape {
        self.shape
    }

    fn names(&self) -> (&'static str, String) {
        let dtype = match self.accumulate {
            Fp8Accumulate::TwoLevel => "e4m3",
            Fp8Accumulate::Fast => "e4m3_fast",
        };
        ("halfwarp", dtype.to_owned())
    }

    /// About 14 bits of accumulators over all of k, or over 128 of it.
    fn max_error(&self) -> f64 {
        match self.accumulate {
            Fp8Accumulate::TwoLevel => 1e-3,
            Fp8Accumulate::Fast => 4e-3,
        }
    }

    fn operands(&self) -> Vec<Cow<'_, [u8]>> {
        [&self.x, &self.weight].map(Quantised::operands).into_iter().flatten().collect()
    }

    fn launches(&self, call: &Call, maps: Maps<'_>) -> Result<Vec<Launch>, LaunchError> {
        let Shape { m, n, k } = self.shape;
        let operands = LinearFp8Operands::<f16> {
            x: call.rows(0, k),
            x_scales: call.ptr(1),
            weight: call.rows(2, k),
            weight_scales: WeightScales::Rows(call.ptr(3)),
            bias: None,
            residual: None,
            out: call.out,
        };
        let linear = LinearFp8 { max_rows: m, n, k, accumulate: self.accumulate };
        Ok(linear.launch(call.gpu, call.num_rows, &operands, maps)?.into_iter().collect())
    }

    fn element(&self, row: usize, column: usize) -> f64 {
        self.x.row(row).zip(self.weight.row(column)).map(|(x, weight)| x * weight).sum()
    }
}

/// Normal random numbers of `[rows, k]`, quantised by row.
struct Quantised {
    codes: Vec<u8>,
    scales: Vec<f32>,
    k: usize,
}

impl Quantised {
    fn random(rows: usize, k: usize, seed: u64) -> Self {
        let (mut codes, mut scales) = (vec![0; rows * k], vec![0.0; rows]);
        let quantised = codes.par_chunks_mut(k).zip(&mut scales).enumerate();
        quantised.for_each(|(row, (codes, scale))| {
            let mut random = ChaCha8Rng::seed_from_u64(seed);
            random.set_stream(row as u64);
            let values: Vec<f32> =
                (0..k).map(|_| (RandomWeights::NORMAL.draw)(&mut random)).collect();
            let largest = values.iter().fold(0f32, |most, value| most.max(value.abs()));
            *scale = largest / LARGEST;
            for (code, value) in codes.iter_mut().zip(values) {
                *code = E4m3::from_f32(value * LARGEST / largest).to_bits();
            }
        });
        Quantised { codes, scales, k }
    }

    /// The codes and the scales.
    fn operands(&self) -> [Cow<'_, [u8]>; 2] {
        [Cow::Borrowed(&self.codes), Cow::Borrowed(bytemuck::cast_slice(&self.scales))]
    }

    /// A row's numbers.
    fn row(&self, row: usize) -> impl Iterator<Item = f64> {
        let scale = f64::from(self.scales[row]);
        let codes = self.codes[row * self.k..][..self.k].iter();
        codes.map(move |&code| scale * f64::from(E4m3::from_bits(code).to_f32()))
    }
}

#[cfg(all(test, feature = "emulator"))]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_computes_what_is_verified() {
        for accumulate in [Fp8Accumulate::TwoLevel, Fp8Accumulate::Fast] {
            let shape = Shape { m: 19, n: 24, k: 272 };
            stored::check_verified(&Fp8Layer::new(accumulate, shape), 1e-5);
        }
    }
}
