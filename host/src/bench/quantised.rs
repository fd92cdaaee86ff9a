//! Linear layers with a quantised weight on a GPU, timed as [`kernels`](super::kernels) says.

use std::path::PathBuf;

use cuda_std::launch::{DevicePtr, Launch, LaunchError};
use cuda_std::tensor_map::{EncodedTensorMap, TensorMapSpec};
use half::f16;
use kernels::Rows;
use kernels::gemm::quantised::dequantise::Dequantise;
use kernels::gemm::quantised::prompt::QuantisedPrompt;
use kernels::gemm::quantised::{self, BlockFormat, QuantisedLinear, QuantisedOperands};
use kernels::gemm::{Gpu, Input16, Linear16, Linear16Operands, Out16, SumOrder};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use super::gemm::Shape;
use super::kernels::{
    BenchError, Row, calls_per_round, check_error, num_copies, relative_error, us_per_call_of,
};
use crate::exec::ExecError;
use crate::exec::cuda::KernelBench;
use crate::plan::Dtype;
use crate::weights::blocks;

const MAX_COPIES: usize = 48;
const SAMPLES: usize = 256;
const MAX_ERROR: f64 = 1e-3;

/// The layers of Llama-2 7B, its output layer, and two of Phi-3 Mini, for 1, 8 and 16 rows; those
/// of Llama-2 7B for prompts and batches.
pub fn shapes() -> Vec<Shape> {
    const LAYERS: [[usize; 2]; 7] = [
        [4096, 4096],
        [22016, 4096],
        [4096, 11008],
        [12288, 4096],
        [32000, 4096],
        [16384, 3072],
        [3072, 8192],
    ];
    let rows = |m: usize| LAYERS.map(|[n, k]| Shape { m, n, k });
    let mut shapes = [1, 8, 16].map(rows).as_flattened().to_vec();
    shapes.extend([32, 64, 128, 256, 512, 2048].map(|m| rows(m)[..4].to_vec()).concat());
    shapes
}

/// How a layer is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// By one kernel.
    Fused,
    /// By a kernel that makes a dense copy of the weight, and a GEMM: for prompts and batches.
    DenseCopy,
}

/// What is measured: our kernels for the newest target that the GPU can run.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The number of the GPU.
    pub gpu: usize,
    /// The weight's format; activations are in f16.
    pub format: BlockFormat,
    /// How layers are computed.
    pub path: Path,
    /// As [`GpuOptions::cubin_dir`](crate::exec::GpuOptions::cubin_dir).
    pub cubin_dir: Option<PathBuf>,
}

/// Measures `subject` at a shape.
///
/// # Errors
/// [`BenchError`]; [`ExecError::Unsupported`] in it where no kernel takes the shape.
pub fn measure(subject: &Subject, shape: Shape) -> Result<Row<Shape>, BenchError> {
    let Shape { m, n, k } = shape;
    let format = subject.format;
    let mut bench = KernelBench::open(subject.gpu, subject.cubin_dir.clone())?;
    let inputs = Inputs::new(format, shape);
    let bytes = inputs.packed.len() + size_of::<f16>() * (m * k + m * n);
    let copies = num_copies(bytes, MAX_COPIES);
    let calls = calls_per_round(copies);

    let num_rows = DevicePtr::new(bench.alloc(&(m as u32).to_ne_bytes(), 4)?);
    let out = DevicePtr::new(bench.alloc(&[], size_of::<f16>() * m * n)?);
    let verified = DevicePtr::new(bench.alloc(&[], size_of::<f32>() * m * n)?);
    let copy = match subject.path {
        Path::Fused => None,
        Path::DenseCopy => Some(DevicePtr::new(bench.alloc(&[], size_of::<f16>() * n * k)?)),
    };
    let x: Vec<u8> = inputs.x.iter().flat_map(|x| x.to_ne_bytes()).collect();
    let gpu = bench.gpu();
    let mut launches = Vec::new();
    for _ in 0..copies {
        let x = Rows::new(DevicePtr::new(bench.alloc(&x, x.len())?), k);
        let weight = DevicePtr::new(bench.alloc(&inputs.packed, inputs.packed.len())?);
        let launch = |out| -> Result<Vec<Launch>, ExecError> {
            let operands =
                QuantisedOperands { x: Input16::Half(x), weight, bias: None, residual: None, out };
            let mut failed = None;
            let maps = &mut |spec: &TensorMapSpec| {
                KernelBench::encode(spec).unwrap_or_else(|error| {
                    failed = Some(error);
                    EncodedTensorMap::NONE
                })
            };
            let made = layer(format, shape, gpu, num_rows, &operands, copy, maps);
            if let Some(error) = failed {
                return Err(error);
            }
            made.map_err(|why| ExecError::Unsupported {
                op: format!("a linear layer in {}", format.name()),
                why: why.to_string(),
            })
        };
        if launches.is_empty() {
            // SAFETY: the launch was made of buffers of the bench.
            unsafe { bench.time_us(&launch(Out16::F32(Rows::new(verified, n)))?, 1, 1) }?;
        }
        launches.push(launch(Out16::Half(Rows::new(out, n)))?);
    }
    let mut got = vec![0; size_of::<f32>() * m * n];
    bench.read(verified.0, &mut got)?;
    let got: Vec<f32> = got.as_chunks().0.iter().map(|&x| f32::from_ne_bytes(x)).collect();
    let error = check_error(&shape, inputs.sampled_error(&got), MAX_ERROR)?;

    // SAFETY: as above.
    let [us, min_us] = unsafe { us_per_call_of(&mut bench, &launches, calls) }?;
    let target = gpu.target.name();
    Ok(Row {
        op: "gemm",
        implementation: match subject.path {
            Path::Fused => "halfwarp",
            Path::DenseCopy => "dense copy",
        },
        dtype: format.name().to_owned(),
        shape,
        us,
        min_us,
        tflops: shape.flops() / us / 1e6,
        gbs: bytes as f64 / us / 1e3,
        error,
        config: Some(target),
        gpu: format!("{} ({target})", bench.name()),
    })
}

/// The launches of a layer; by a dense copy if there is memory for it.
fn layer(
    format: BlockFormat,
    Shape { m, n, k }: Shape,
    gpu: Gpu,
    num_rows: DevicePtr<u32>,
    operands: &QuantisedOperands,
    copy: Option<DevicePtr<f16>>,
    maps: &mut dyn FnMut(&TensorMapSpec) -> EncodedTensorMap,
) -> Result<Vec<Launch>, LaunchError> {
    let launches = match copy {
        Some(copy) => {
            let weight = Rows::new(copy, k);
            let &QuantisedOperands { x, bias, residual, out, .. } = operands;
            let dense = Linear16Operands { x, weight, bias, residual, out };
            [
                Dequantise { n, k, format }.launch(operands.weight, weight)?,
                Linear16::new(m, n, k).launch(gpu, num_rows, &dense, maps)?,
            ]
        }
        None if m > QuantisedLinear::MAX_ROWS => {
            let order = SumOrder::Fastest;
            let prompt = QuantisedPrompt { max_rows: m, n, k, format, gated: false, order };
            [prompt.launch(gpu, num_rows, operands, maps)?, None]
        }
        None => {
            let linear = QuantisedLinear { max_rows: m, n, k, format, gated: false };
            [linear.launch(gpu, num_rows, operands)?, None]
        }
    };
    Ok(launches.into_iter().flatten().collect())
}

/// Random inputs on the host.
struct Inputs {
    format: BlockFormat,
    shape: Shape,
    x: Vec<f16>,
    /// The weight as a file has it, and packed.
    stored: Vec<u8>,
    packed: Vec<u8>,
}

impl Inputs {
    fn new(format: BlockFormat, shape: Shape) -> Self {
        let Shape { m, n, k } = shape;
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let x = (0..m * k).map(|_| f16::from_f32(random.random_range(-1.0f32..1.0))).collect();
        let row_bytes = k / format.block_elems() * format.block_bytes();
        let mut stored = vec![0; n * row_bytes];
        stored.par_chunks_mut(16 * row_bytes.max(1)).enumerate().for_each(|(chunk, stored)| {
            let mut random = ChaCha8Rng::seed_from_u64(2);
            random.set_stream(chunk as u64);
            random.fill_bytes(stored);
            for block in stored.chunks_exact_mut(format.block_bytes()) {
                if format == BlockFormat::MXFP4 {
                    block[0] = random.random_range(118..122);
                }
                for &at in format.facts().f16_scales {
                    let factor = f16::from_f32(random.random_range(-0.01f32..0.01));
                    block[at..at + 2].copy_from_slice(&factor.to_le_bytes());
                }
            }
        });
        let mut packed = vec![0; format.packed_bytes(n, k).unwrap_or(0)];
        if row_bytes > 0 && k.is_multiple_of(format.block_elems()) {
            let tiles = packed.par_chunks_mut(format.row_tile_bytes(k).unwrap_or(1));
            let stored = stored.par_chunks(16 * row_bytes);
            tiles.zip(stored).for_each(|(out, stored)| quantised::pack(format, k, stored, out));
        }
        Inputs { format, shape, x, stored, packed }
    }

    /// Relative error of a sample of the outputs.
    fn sampled_error(&self, got: &[f32]) -> f64 {
        let Shape { m, n, k } = self.shape;
        let decode = blocks::decoder(Dtype::Blocks(self.format)).expect("a format of weights");
        let mut random = ChaCha8Rng::seed_from_u64(3);
        relative_error((0..SAMPLES).map(|_| {
            let (row, column) = (random.random_range(0..m), random.random_range(0..n));
            let row_bytes = self.stored.len() / n;
            let mut weight = vec![0.0; k];
            decode(pulp::Arch::new(), &self.stored[column * row_bytes..][..row_bytes], &mut weight);
            let pairs = self.x[row * k..][..k].iter().zip(&weight);
            let want = pairs.map(|(x, &weight)| x.to_f64() * f64::from(weight)).sum();
            (got[row * n + column], want)
        }))
    }
}

#[cfg(all(test, feature = "emulator"))]
mod tests {
    use super::*;
    use kernels::gemm::Gpu;
    use simt::{Init, Memory};

    /// What is verified is what the kernel computes; another output is not.
    #[test]
    fn the_kernel_computes_what_is_verified() {
        for format in BlockFormat::tiled() {
            let shape = Shape { m: 3, n: 24, k: 256 };
            let Shape { m, n, k } = shape;
            let inputs = Inputs::new(format, shape);
            let mut memory = Memory::new();
            let x: Vec<u8> = inputs.x.iter().flat_map(|x| x.to_ne_bytes()).collect();
            let x = Rows::new(DevicePtr::new(memory.alloc("x", Init::Bytes(&x))), k);
            let weight = DevicePtr::new(memory.alloc("weight", Init::Bytes(&inputs.packed)));
            let num_rows = memory.alloc("num_rows", Init::Bytes(&(m as u32).to_ne_bytes()));
            let out = memory.alloc("out", Init::Poisoned(4 * m * n));
            let linear = QuantisedLinear { max_rows: m, n, k, format, gated: false };
            let rows = Out16::F32(Rows::new(DevicePtr::new(out), n));
            let operands = QuantisedOperands {
                x: Input16::Half(x),
                weight,
                bias: None,
                residual: None,
                out: rows,
            };
            let launch = linear.launch(Gpu::HOPPER, DevicePtr::new(num_rows), &operands);
            launch.unwrap().unwrap().emulate(&mut memory, 0).unwrap();
            let mut got = vec![0; 4 * m * n];
            memory.read(out, &mut got).unwrap();
            let mut got: Vec<f32> =
                got.as_chunks().0.iter().map(|&x| f32::from_ne_bytes(x)).collect();
            assert!(inputs.sampled_error(&got) < 1e-5, "{format:?}");
            got.rotate_left(1);
            assert!(inputs.sampled_error(&got) > 0.1, "{format:?}");
        }
    }
}
