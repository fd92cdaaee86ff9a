//! Linear layers with a quantised weight on a GPU, timed as [`kernels`](super::kernels) says.

use std::borrow::Cow;
use std::path::PathBuf;

use cuda_std::launch::{DevicePtr, Launch, LaunchError};
use gpu_types::BlockFormat;
use half::f16;
use half::slice::HalfFloatSliceExt;
use kernels::Rows;
use kernels::gemm::quantised::dequantise::Dequantise;
use kernels::gemm::quantised::prompt::QuantisedPrompt;
use kernels::gemm::quantised::{QuantisedLinear, QuantisedOperands, pack};
use kernels::gemm::{Input16, Linear16, Linear16Operands, SumOrder};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use super::gemm::Shape;
use super::kernels::{BenchError, Row};
use super::stored::{self, Call, Layer, Maps};
use crate::plan::Dtype;
use blocks;

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
pub struct Config {
    /// The number of the GPU.
    pub gpu: usize,
    /// The weight's format; activations are in f16.
    pub format: BlockFormat,
    /// How layers are computed.
    pub path: Path,
    /// As [`GpuOptions::cubin_dir`](crate::exec::GpuOptions::cubin_dir).
    pub cubin_dir: Option<PathBuf>,
}

/// Measures `config` at a shape.
///
/// # Errors
/// [`BenchError`]; [`ExecError::Unsupported`](crate::exec::ExecError::Unsupported) in it where no
/// kernel takes the shape.
pub fn measure(config: &Config, shape: Shape) -> Result<Row<Shape>, BenchError> {
    let layer = QuantisedLayer::new(config.format, config.path, shape);
    stored::measure(config.gpu, config.cubin_dir.clone(), &layer)
}

struct QuantisedLayer {
    format: BlockFormat,
    path: Path,
    shape: Shape,
    x: Vec<f16>,
    /// The weight as a file has it, and packed.
    stored: Vec<u8>,
    packed: Vec<u8>,
}

impl QuantisedLayer {
    fn new(format: BlockFormat, path: Path, shape: Shape) -> Self {
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
            tiles.zip(stored).for_each(|(out, stored)| pack(format, k, stored, out));
        }
        QuantisedLayer { format, path, shape, x, stored, packed }
    }
}

impl Layer for QuantisedLayer {
    fn shape(&self) -> Shape {
        self.shape
    }

    fn names(&self) -> (&'static str, String) {
        let implementation = match self.path {
            Path::Fused => "halfwarp",
            Path::DenseCopy => "dense copy",
        };
        (implementation, self.format.name().to_owned())
    }

    fn max_error(&self) -> f64 {
        1e-3
    }

    fn operands(&self) -> Vec<Cow<'_, [u8]>> {
        [bytemuck::cast_slice(self.x.reinterpret_cast()), &self.packed[..]]
            .map(Cow::Borrowed)
            .to_vec()
    }

    fn workspace_bytes(&self) -> usize {
        match self.path {
            Path::Fused => 0,
            Path::DenseCopy => size_of::<f16>() * self.shape.n * self.shape.k,
        }
    }

    fn launches(&self, call: &Call, maps: Maps<'_>) -> Result<Vec<Launch>, LaunchError> {
        let (Shape { m, n, k }, format) = (self.shape, self.format);
        let &Call { gpu, num_rows, out, .. } = call;
        let (x, weight) = (Input16::Half(call.rows(0, k)), call.ptr(1));
        let operands = QuantisedOperands { x, weight, bias: None, residual: None, out };
        let launches = match self.path {
            Path::DenseCopy => {
                let dense = Rows::new(DevicePtr::<f16>::new(call.workspace), k);
                let copy = Dequantise { n, k, format }.launch(weight, dense)?;
                let operands =
                    Linear16Operands { x, weight: dense, bias: None, residual: None, out };
                [copy, Linear16::new(m, n, k).launch(gpu, num_rows, &operands, maps)?]
            }
            Path::Fused if m > QuantisedLinear::MAX_ROWS => {
                let order = SumOrder::Fastest;
                let prompt = QuantisedPrompt { max_rows: m, n, k, format, gate: None, order };
                [prompt.launch(gpu, num_rows, &operands, maps)?, None]
            }
            Path::Fused => {
                let linear = QuantisedLinear { max_rows: m, n, k, format, gate: None };
                [linear.launch(gpu, num_rows, &operands)?, None]
            }
        };
        Ok(launches.into_iter().flatten().collect())
    }

    fn element(&self, row: usize, column: usize) -> f64 {
        let Shape { n, k, .. } = self.shape;
        let decode = blocks::decoder(Dtype::Blocks(self.format)).expect("a format of weights");
        let row_bytes = self.stored.len() / n;
        let mut weight = vec![0.0; k];
        decode(blocks::Arch::new(), &self.stored[column * row_bytes..][..row_bytes], &mut weight);
        let pairs = self.x[row * k..][..k].iter().zip(&weight);
        pairs.map(|(x, &weight)| x.to_f64() * f64::from(weight)).sum()
    }
}

#[cfg(all(test, feature = "emulator"))]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_compute_what_is_verified() {
        let shape = Shape { m: 3, n: 24, k: 256 };
        for format in BlockFormat::tiled() {
            stored::check_verified(&QuantisedLayer::new(format, Path::Fused, shape), 1e-5);
        }
        // Elements of the copy are rounded to f16.
        let layer = QuantisedLayer::new(BlockFormat::Q4_K, Path::DenseCopy, shape);
        stored::check_verified(&layer, 1e-3);
    }
}
