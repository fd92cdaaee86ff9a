//! Linear layers of 8-bit floats on a GPU, timed as [`kernels`](super::kernels) says.

use std::path::PathBuf;

use cuda_std::E4m3;
use cuda_std::launch::{DevicePtr, Launch};
use cuda_std::tensor_map::{EncodedTensorMap, TensorMapSpec};
use half::f16;
use kernels::Rows;
use kernels::gemm::{Fp8Accumulate, Gpu, LinearFp8, LinearFp8Operands, Out16, WeightScales};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use super::gemm::{self, Shape};
use super::kernels::{
    BenchError, Row, calls_per_round, check_error, num_copies, relative_error, us_per_call_of,
};
use super::random::RandomWeights;
use crate::exec::ExecError;
use crate::exec::cuda::KernelBench;

const MAX_COPIES: usize = 48;
const SAMPLES: usize = 256;

/// The layers of [`gemm::shapes`] that tiles compute: prompts, and batches of more than 16 rows.
pub fn shapes() -> Vec<Shape> {
    gemm::shapes().into_iter().filter(|shape| shape.m > 16 && shape.k.is_multiple_of(16)).collect()
}

/// What is measured.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The number of the GPU.
    pub gpu: usize,
    /// How outputs are accumulated.
    pub accumulate: Fp8Accumulate,
    /// As [`GpuOptions::cubin_dir`](crate::exec::GpuOptions::cubin_dir).
    pub cubin_dir: Option<PathBuf>,
}

impl Subject {
    /// Its name among the types of operands.
    fn dtype(&self) -> &'static str {
        match self.accumulate {
            Fp8Accumulate::TwoLevel => "e4m3",
            Fp8Accumulate::Fast => "e4m3_fast",
        }
    }

    /// About 14 bits of accumulators over all of k, or over 128 of it.
    fn error_bound(&self) -> f64 {
        match self.accumulate {
            Fp8Accumulate::TwoLevel => 1e-3,
            Fp8Accumulate::Fast => 4e-3,
        }
    }
}

/// Measures `subject` at a shape.
///
/// # Errors
/// [`BenchError`]; [`ExecError::Unsupported`] in it where no kernel takes the shape.
pub fn measure(subject: &Subject, shape: Shape) -> Result<Row<Shape>, BenchError> {
    let Shape { m, n, k } = shape;
    let mut bench = KernelBench::open(subject.gpu, subject.cubin_dir.clone())?;
    let (x, weight) = (Quantised::random(m, k, 1), Quantised::random(n, k, 2));
    let bytes = m * k + n * k + size_of::<f16>() * m * n;
    let copies = num_copies(bytes, MAX_COPIES);
    let calls = calls_per_round(copies);

    let num_rows = DevicePtr::new(bench.alloc(&(m as u32).to_ne_bytes(), 4)?);
    let out = Rows::new(DevicePtr::new(bench.alloc(&[], size_of::<f16>() * m * n)?), n);
    let verified = Rows::new(DevicePtr::new(bench.alloc(&[], size_of::<f32>() * m * n)?), n);
    let gpu = bench.gpu();
    let mut launches = Vec::new();
    for _ in 0..copies {
        let [(x, x_scales), (weight, scales)] = [x.upload(&mut bench)?, weight.upload(&mut bench)?];
        let weight_scales = WeightScales::Rows(scales);
        let launch = |out| -> Result<Vec<Launch>, ExecError> {
            let operands = LinearFp8Operands {
                x,
                x_scales,
                weight,
                weight_scales,
                bias: None,
                residual: None,
                out,
            };
            launch(subject, shape, gpu, num_rows, &operands)
        };
        if launches.is_empty() {
            // SAFETY: the launch was made of buffers of the bench.
            unsafe { bench.time_us(&launch(Out16::F32(verified))?, 1, 1) }?;
        }
        launches.push(launch(Out16::Half(out))?);
    }
    let mut got = vec![0; size_of::<f32>() * m * n];
    bench.read(verified.ptr.0, &mut got)?;
    let got: Vec<f32> = got.as_chunks().0.iter().map(|&x| f32::from_ne_bytes(x)).collect();
    let error = sampled_error(shape, &x, &weight, &got);
    let error = check_error(&shape, error, subject.error_bound())?;
    // SAFETY: as above.
    let [us, min_us] = unsafe { us_per_call_of(&mut bench, &launches, calls) }?;
    Ok(Row {
        op: "gemm",
        implementation: "halfwarp",
        dtype: subject.dtype().to_owned(),
        shape,
        us,
        min_us,
        tflops: shape.flops() / us / 1e6,
        gbs: bytes as f64 / us / 1e3,
        error,
        config: Some(gpu.target.name()),
        gpu: format!("{} ({})", bench.name(), gpu.target.name()),
    })
}

/// The launch of a layer.
fn launch(
    subject: &Subject,
    Shape { m, n, k }: Shape,
    gpu: Gpu,
    num_rows: DevicePtr<u32>,
    operands: &LinearFp8Operands<f16>,
) -> Result<Vec<Launch>, ExecError> {
    let linear = LinearFp8 { max_rows: m, n, k, accumulate: subject.accumulate };
    let mut failed = None;
    let maps = &mut |spec: &TensorMapSpec| {
        KernelBench::encode(spec).unwrap_or_else(|error| {
            failed = Some(error);
            EncodedTensorMap::NONE
        })
    };
    let made = linear.launch(gpu, num_rows, operands, maps);
    if let Some(error) = failed {
        return Err(error);
    }
    let made = made.map_err(|why| ExecError::Unsupported {
        op: format!("a linear layer in {}", subject.dtype()),
        why: why.to_string(),
    })?;
    Ok(made.into_iter().collect())
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
            *scale = largest / E4m3::MAX;
            for (code, value) in codes.iter_mut().zip(values) {
                *code = E4m3::from_f32(value * E4m3::MAX / largest).to_bits();
            }
        });
        Quantised { codes, scales, k }
    }

    /// The codes and the scales on the device.
    fn upload(&self, bench: &mut KernelBench) -> Result<(Rows<E4m3>, DevicePtr<f32>), ExecError> {
        let codes = Rows::new(DevicePtr::new(bench.alloc(&self.codes, self.codes.len())?), self.k);
        let scales: Vec<u8> = self.scales.iter().flat_map(|scale| scale.to_ne_bytes()).collect();
        Ok((codes, DevicePtr::new(bench.alloc(&scales, scales.len())?)))
    }

    /// A row's numbers.
    fn row(&self, row: usize) -> impl Iterator<Item = f64> {
        let scale = f64::from(self.scales[row]);
        let codes = self.codes[row * self.k..][..self.k].iter();
        codes.map(move |&code| scale * f64::from(E4m3::from_bits(code).to_f32()))
    }
}

/// Relative error of a sample of the outputs.
fn sampled_error(shape: Shape, x: &Quantised, weight: &Quantised, got: &[f32]) -> f64 {
    let Shape { m, n, .. } = shape;
    let mut random = ChaCha8Rng::seed_from_u64(3);
    relative_error((0..SAMPLES).map(|_| {
        let (row, column) = (random.random_range(0..m), random.random_range(0..n));
        let want = x.row(row).zip(weight.row(column)).map(|(x, weight)| x * weight).sum();
        (got[row * n + column], want)
    }))
}

#[cfg(all(test, feature = "emulator"))]
mod tests {
    use super::*;
    use simt::{Init, Memory};

    /// What is verified is what the kernel computes; another output is not.
    #[test]
    fn the_kernel_computes_what_is_verified() {
        for accumulate in [Fp8Accumulate::TwoLevel, Fp8Accumulate::Fast] {
            let shape = Shape { m: 19, n: 24, k: 272 };
            let Shape { m, n, k } = shape;
            let (x, weight) = (Quantised::random(m, k, 1), Quantised::random(n, k, 2));
            let mut memory = Memory::new();
            let mut upload = |of: &Quantised| {
                let scales: Vec<u8> = of.scales.iter().flat_map(|x| x.to_ne_bytes()).collect();
                let codes = DevicePtr::new(memory.alloc("codes", Init::Bytes(&of.codes)));
                let scales = DevicePtr::new(memory.alloc("scales", Init::Bytes(&scales)));
                (Rows::new(codes, k), scales)
            };
            let [(x_rows, x_scales), (weight_rows, scales)] = [upload(&x), upload(&weight)];
            let num_rows = memory.alloc("num_rows", Init::Bytes(&(m as u32).to_ne_bytes()));
            let out = memory.alloc("out", Init::Poisoned(4 * m * n));
            let operands = LinearFp8Operands::<f16> {
                x: x_rows,
                x_scales,
                weight: weight_rows,
                weight_scales: WeightScales::Rows(scales),
                bias: None,
                residual: None,
                out: Out16::F32(Rows::new(DevicePtr::new(out), n)),
            };
            let linear = LinearFp8 { max_rows: m, n, k, accumulate };
            let mut maps = |spec: &TensorMapSpec| spec.emulated();
            let launch = linear.launch(Gpu::HOPPER, DevicePtr::new(num_rows), &operands, &mut maps);
            launch.unwrap().unwrap().emulate(&mut memory, 0).unwrap();
            let mut got = vec![0; 4 * m * n];
            memory.read(out, &mut got).unwrap();
            let mut got: Vec<f32> =
                got.as_chunks().0.iter().map(|&x| f32::from_ne_bytes(x)).collect();
            assert!(sampled_error(shape, &x, &weight, &got) < 1e-5, "{accumulate:?}");
            got.rotate_left(1);
            assert!(sampled_error(shape, &x, &weight, &got) > 0.1, "{accumulate:?}");
        }
    }
}
