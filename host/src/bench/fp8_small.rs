//! Linear layers of a few rows with a weight in FP8 on a GPU, timed as [`kernels`](super::kernels)
//! says.

use std::borrow::Cow;
use std::path::PathBuf;

use cuda_std::E4m3;
use cuda_std::launch::{Launch, LaunchError};
use half::f16;
use half::slice::HalfFloatSliceExt;
use kernels::gemm::Input16;
use kernels::gemm::fp8::{LinearFp8Small, LinearFp8SmallOperands, SCALE_BLOCK, WeightScales};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use super::gemm::Shape;
use super::kernels::{BenchError, Row};
use super::stored::{self, Call, Layer, Maps};

/// The layers of Qwen2.5-0.5B, Phi-3 Mini and Llama-2 7B, their output layers, and one of 134 MB,
/// for 1, 8 and 16 rows.
pub fn shapes() -> Vec<Shape> {
    const LAYERS: [[usize; 2]; 16] = [
        [1152, 896],
        [896, 896],
        [9728, 896],
        [896, 4864],
        [9216, 3072],
        [3072, 3072],
        [16384, 3072],
        [3072, 8192],
        [12288, 4096],
        [4096, 4096],
        [22016, 4096],
        [4096, 11008],
        [32064, 3072],
        [32000, 4096],
        [151_936, 896],
        [16384, 8192],
    ];
    [1, 8, 16].map(|m| LAYERS.map(|[n, k]| Shape { m, n, k })).as_flattened().to_vec()
}

/// What is measured: our kernels for the newest target that the GPU can run.
#[derive(Clone, Debug)]
pub struct Config {
    /// The number of the GPU.
    pub gpu: usize,
    /// Whether blocks of the weight have scales, and not rows.
    pub block_scales: bool,
    /// As [`GpuOptions::cubin_dir`](crate::exec::GpuOptions::cubin_dir).
    pub cubin_dir: Option<PathBuf>,
}

/// Measures `config` at a shape.
///
/// # Errors
/// [`BenchError`]; [`ExecError::Unsupported`](crate::exec::ExecError::Unsupported) in it where no
/// kernel takes the shape.
pub fn measure(config: &Config, shape: Shape) -> Result<Row<Shape>, BenchError> {
    let layer = SmallLayer::new(shape, config.block_scales);
    stored::measure(config.gpu, config.cubin_dir.clone(), &layer)
}

struct SmallLayer {
    shape: Shape,
    block_scales: bool,
    x: Vec<f16>,
    codes: Vec<u8>,
    scales: Vec<f32>,
}

impl SmallLayer {
    fn new(shape: Shape, block_scales: bool) -> Self {
        let Shape { m, n, k } = shape;
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let x = (0..m * k).map(|_| f16::from_f32(random.random_range(-1.0f32..1.0))).collect();
        let mut codes = vec![0; n * k];
        codes.par_chunks_mut(1 << 16).enumerate().for_each(|(chunk, codes)| {
            let mut random = ChaCha8Rng::seed_from_u64(2);
            random.set_stream(chunk as u64);
            for code in codes {
                *code =
                    E4m3::from_bits(random.random_range(0..0x7f) | random.random::<u8>() & 0x80)
                        .to_bits();
            }
        });
        let block = SCALE_BLOCK as usize;
        let num_scales = if block_scales { n.div_ceil(block) * k.div_ceil(block) } else { n };
        let scales = (0..num_scales).map(|_| random.random_range(1e-4..1e-3)).collect();
        SmallLayer { shape, block_scales, x, codes, scales }
    }
}

impl Layer for SmallLayer {
    fn shape(&self) -> Shape {
        self.shape
    }

    fn names(&self) -> (&'static str, String) {
        ("halfwarp", "f8_e4m3".to_owned())
    }

    fn max_error(&self) -> f64 {
        1e-3
    }

    fn operands(&self) -> Vec<Cow<'_, [u8]>> {
        let (x, scales) =
            (bytemuck::cast_slice(self.x.reinterpret_cast()), bytemuck::cast_slice(&self.scales));
        [x, &self.codes, scales].map(Cow::Borrowed).to_vec()
    }

    fn launches(&self, call: &Call, maps: Maps<'_>) -> Result<Vec<Launch>, LaunchError> {
        let Shape { m, n, k } = self.shape;
        let scales = match self.block_scales {
            true => WeightScales::Blocks(call.ptr(2)),
            false => WeightScales::Rows(call.ptr(2)),
        };
        let operands = LinearFp8SmallOperands {
            x: Input16::Half(call.rows(0, k)),
            weight: call.rows(1, k),
            scales,
            bias: None,
            residual: None,
            out: call.out,
        };
        let linear = LinearFp8Small { max_rows: m, n, k, gate: None };
        Ok(linear.launch(call.gpu, call.num_rows, &operands, maps)?.into_iter().collect())
    }

    fn element(&self, row: usize, column: usize) -> f64 {
        let k = self.shape.k;
        let block = SCALE_BLOCK as usize;
        let scale = |i: usize| match self.block_scales {
            true => self.scales[column / block * k.div_ceil(block) + i / block],
            false => self.scales[column],
        };
        let term = |i: usize| {
            let weight = E4m3::from_bits(self.codes[column * k + i]).to_f32();
            self.x[row * k + i].to_f64() * f64::from(weight) * f64::from(scale(i))
        };
        (0..k).map(term).sum()
    }
}

#[cfg(all(test, feature = "emulator"))]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_computes_what_is_verified() {
        for block_scales in [false, true] {
            let shape = Shape { m: 5, n: 24, k: 272 };
            stored::check_verified(&SmallLayer::new(shape, block_scales), 1e-5);
        }
    }
}
