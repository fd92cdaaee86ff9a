//! Linear layers of a few rows with a weight in FP8 on a GPU, timed as [`kernels`](super::kernels)
//! says.

use std::path::PathBuf;

use cuda_std::E4m3;
use cuda_std::launch::{DevicePtr, Launch, LaunchError};
use cuda_std::tensor_map::{EncodedTensorMap, TensorMapSpec};
use half::f16;
use kernels::Rows;
use kernels::gemm::fp8::{
    Fp8SmallKernel, LinearFp8Small, LinearFp8SmallOperands, SCALE_BLOCK, WeightScales,
};
use kernels::gemm::{Gpu, Input16, Out16, SumOrder};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use super::gemm::Shape;
use super::kernels::{
    BenchError, Row, calls_per_round, check_error, num_copies, relative_error, us_per_call_of,
};
use crate::exec::ExecError;
use crate::exec::cuda::KernelBench;

const MAX_COPIES: usize = 48;
const SAMPLES: usize = 256;
const MAX_ERROR: f64 = 1e-3;

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
pub struct Subject {
    /// The number of the GPU.
    pub gpu: usize,
    /// The kernel; `None`: the launcher's choice.
    pub kernel: Option<Fp8SmallKernel>,
    /// Whether blocks of the weight have scales, and not rows.
    pub block_scales: bool,
    /// As [`GpuOptions::cubin_dir`](crate::exec::GpuOptions::cubin_dir).
    pub cubin_dir: Option<PathBuf>,
}

/// Measures `subject` at a shape.
///
/// # Errors
/// [`BenchError`]; [`ExecError::Unsupported`] in it where no kernel takes the shape.
pub fn measure(subject: &Subject, shape: Shape) -> Result<Row<Shape>, BenchError> {
    let mut bench = Bench::open(subject, shape)?;
    bench.measure(subject.kernel)
}

/// A shape on a GPU.
pub struct Bench {
    bench: KernelBench,
    inputs: Inputs,
    num_rows: DevicePtr<u32>,
    out: DevicePtr<f16>,
    verified: DevicePtr<f32>,
    /// x, the weight and its scales, of each copy.
    copies: Vec<(DevicePtr<f16>, DevicePtr<E4m3>, DevicePtr<f32>)>,
}

impl Bench {
    /// Allocates the operands.
    ///
    /// # Errors
    /// [`BenchError::Exec`].
    pub fn open(subject: &Subject, shape: Shape) -> Result<Self, BenchError> {
        let Shape { m, n, .. } = shape;
        let mut bench = KernelBench::open(subject.gpu, subject.cubin_dir.clone())?;
        let inputs = Inputs::new(shape, subject.block_scales);
        let num_rows = DevicePtr::new(bench.alloc(&(m as u32).to_ne_bytes(), 4)?);
        let out = DevicePtr::new(bench.alloc(&[], size_of::<f16>() * m * n)?);
        let verified = DevicePtr::new(bench.alloc(&[], size_of::<f32>() * m * n)?);
        let x: Vec<u8> = inputs.x.iter().flat_map(|x| x.to_ne_bytes()).collect();
        let scales: Vec<u8> = inputs.scales.iter().flat_map(|x| x.to_ne_bytes()).collect();
        let mut copies = Vec::new();
        for _ in 0..num_copies(inputs.bytes(), MAX_COPIES) {
            let mut alloc = |bytes: &[u8]| bench.alloc(bytes, bytes.len());
            copies.push((
                DevicePtr::new(alloc(&x)?),
                DevicePtr::new(alloc(&inputs.codes)?),
                DevicePtr::new(alloc(&scales)?),
            ));
        }
        Ok(Bench { bench, inputs, num_rows, out, verified, copies })
    }

    /// Verifies and times `kernel`.
    ///
    /// # Errors
    /// As [`measure`].
    pub fn measure(&mut self, kernel: Option<Fp8SmallKernel>) -> Result<Row<Shape>, BenchError> {
        let &mut Bench { num_rows, out, verified, .. } = self;
        let (shape, gpu) = (self.inputs.shape, self.bench.gpu());
        let Shape { m, n, k } = shape;
        let make = |copy: usize, out: Out16<f16>| -> Result<Launch, ExecError> {
            let (x, weight, scales) = self.copies[copy];
            let scales = match self.inputs.block_scales {
                true => WeightScales::Blocks(scales),
                false => WeightScales::Rows(scales),
            };
            let (x, weight) = (Input16::Half(Rows::new(x, k)), Rows::new(weight, k));
            let operands =
                LinearFp8SmallOperands { x, weight, scales, bias: None, residual: None, out };
            launch(kernel, shape, gpu, num_rows, &operands)
        };
        let once = make(0, Out16::F32(Rows::new(verified, n)))?;
        let rows = Out16::Half(Rows::new(out, n));
        let launches = (0..self.copies.len()).map(|copy| Ok(vec![make(copy, rows)?]));
        let launches: Vec<Vec<Launch>> = launches.collect::<Result<_, ExecError>>()?;
        let bench = &mut self.bench;
        // SAFETY: launches are made of buffers of the bench.
        unsafe { bench.time_us(&[once], 1, 1) }?;
        let mut got = vec![0; size_of::<f32>() * m * n];
        bench.read(verified.0, &mut got)?;
        let got: Vec<f32> = got.as_chunks().0.iter().map(|&x| f32::from_ne_bytes(x)).collect();
        let error = check_error(&shape, self.inputs.sampled_error(&got), MAX_ERROR)?;

        let calls = calls_per_round(launches.len());
        // SAFETY: as above.
        let [us, min_us] = unsafe { us_per_call_of(bench, &launches, calls) }?;
        let target = gpu.target.name();
        Ok(Row {
            op: "gemm",
            implementation: "halfwarp",
            dtype: "f8_e4m3".to_owned(),
            shape,
            us,
            min_us,
            tflops: shape.flops() / us / 1e6,
            gbs: self.inputs.bytes() as f64 / us / 1e3,
            error,
            config: Some(target),
            gpu: format!("{} ({target})", bench.name()),
        })
    }
}

/// The launch of a layer.
fn launch(
    kernel: Option<Fp8SmallKernel>,
    Shape { m, n, k }: Shape,
    gpu: Gpu,
    num_rows: DevicePtr<u32>,
    operands: &LinearFp8SmallOperands,
) -> Result<Launch, ExecError> {
    let mut failed = None;
    let maps = &mut |spec: &TensorMapSpec| {
        KernelBench::encode(spec).unwrap_or_else(|error| {
            failed = Some(error);
            EncodedTensorMap::NONE
        })
    };
    let layer = LinearFp8Small { max_rows: m, n, k, gated: false, order: SumOrder::Fastest };
    let launch = match kernel {
        Some(kernel) => layer.launch_kernel(kernel, gpu, num_rows, operands, maps),
        None => layer.launch(gpu, num_rows, operands, maps),
    };
    if let Some(error) = failed {
        return Err(error);
    }
    let unsupported = |why: String| ExecError::Unsupported {
        op: "a linear layer with a weight in f8_e4m3".to_owned(),
        why,
    };
    launch
        .map_err(|error: LaunchError| unsupported(error.to_string()))?
        .ok_or_else(|| unsupported("it has no outputs".to_owned()))
}

/// Random inputs on the host.
struct Inputs {
    shape: Shape,
    block_scales: bool,
    x: Vec<f16>,
    codes: Vec<u8>,
    scales: Vec<f32>,
}

impl Inputs {
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
        Inputs { shape, block_scales, x, codes, scales }
    }

    /// Bytes of x, the weight, its scales, and outputs in f16.
    fn bytes(&self) -> usize {
        let Shape { m, n, k } = self.shape;
        self.codes.len() + size_of_val(&self.scales[..]) + size_of::<f16>() * (m * k + m * n)
    }

    /// Relative error of a sample of the outputs.
    fn sampled_error(&self, got: &[f32]) -> f64 {
        let Shape { m, n, k } = self.shape;
        let block = SCALE_BLOCK as usize;
        let mut random = ChaCha8Rng::seed_from_u64(3);
        relative_error((0..SAMPLES).map(|_| {
            let (row, column) = (random.random_range(0..m), random.random_range(0..n));
            let scale = |i: usize| match self.block_scales {
                true => self.scales[column / block * k.div_ceil(block) + i / block],
                false => self.scales[column],
            };
            let term = |i: usize| {
                let weight = E4m3::from_bits(self.codes[column * k + i]).to_f32();
                self.x[row * k + i].to_f64() * f64::from(weight) * f64::from(scale(i))
            };
            (got[row * n + column], (0..k).map(term).sum())
        }))
    }
}
