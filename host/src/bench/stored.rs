//! Linear layers whose operands are stored in other forms than 16-bit floats, on a GPU: verified, and
//! timed as [`kernels`](super::kernels) says.

use std::borrow::Cow;
use std::path::PathBuf;

use cuda_std::launch::{DevicePtr, Launch, LaunchError};
use cuda_std::tensor_map::{EncodedTensorMap, TensorMapSpec};
use half::f16;
use kernels::Rows;
use kernels::gemm::{Gpu, Out16};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::gemm::Shape;
use super::kernels::{
    BenchError, Row, calls_per_round, check_error, num_copies, relative_error, us_per_call_of,
    with_maps,
};
use crate::exec::ExecError;
use crate::exec::cuda::KernelBench;

const MAX_COPIES: usize = 48;
const SAMPLES: usize = 256;

/// A layer with its operands on the host.
pub(super) trait Layer {
    fn shape(&self) -> Shape;

    /// Whose kernels compute it, and its type of operands, as rows name them.
    fn names(&self) -> (&'static str, String);

    /// The largest relative error that is none.
    fn max_error(&self) -> f64;

    /// The operands, in the order in which [`Layer::launches`] has their addresses.
    fn operands(&self) -> Vec<Cow<'_, [u8]>>;

    /// Bytes that a call has beside its operands, for itself.
    fn workspace_bytes(&self) -> usize {
        0
    }

    /// What a call is on a device.
    fn launches(&self, call: &Call, maps: Maps<'_>) -> Result<Vec<Launch>, LaunchError>;

    /// What an output is.
    fn element(&self, row: usize, column: usize) -> f64;
}

/// Encodes tensor maps.
pub(super) type Maps<'a> = &'a mut dyn FnMut(&TensorMapSpec) -> EncodedTensorMap;

/// Where a call finds everything.
pub(super) struct Call {
    pub gpu: Gpu,
    pub num_rows: DevicePtr<u32>,
    pub operands: Vec<u64>,
    pub workspace: u64,
    pub out: Out16<f16>,
}

impl Call {
    /// Operand `index`, as rows of `k` elements.
    pub fn rows<T>(&self, index: usize, k: usize) -> Rows<T> {
        Rows::new(self.ptr(index), k)
    }

    pub fn ptr<T>(&self, index: usize) -> DevicePtr<T> {
        DevicePtr::new(self.operands[index])
    }
}

/// Verifies and times a layer on the GPU `ordinal`, by our kernels for the newest target that it runs.
///
/// # Errors
/// [`BenchError`]; [`ExecError::Unsupported`] in it where no kernel takes the shape.
pub(super) fn measure(
    ordinal: usize,
    cubin_dir: Option<PathBuf>,
    layer: &dyn Layer,
) -> Result<Row<Shape>, BenchError> {
    let shape = layer.shape();
    let Shape { m, n, .. } = shape;
    let mut bench = KernelBench::open(ordinal, cubin_dir)?;
    let operands = layer.operands();
    let bytes =
        operands.iter().map(|operand| operand.len()).sum::<usize>() + size_of::<f16>() * m * n;
    let num_rows = DevicePtr::new(bench.alloc(&(m as u32).to_ne_bytes(), 4)?);
    let out = Rows::new(DevicePtr::new(bench.alloc(&[], size_of::<f16>() * m * n)?), n);
    let verified = Rows::new(DevicePtr::new(bench.alloc(&[], size_of::<f32>() * m * n)?), n);
    let workspace = match layer.workspace_bytes() {
        0 => 0,
        bytes => bench.alloc(&[], bytes)?,
    };
    let gpu = bench.gpu();
    let mut launches = Vec::new();
    for _ in 0..num_copies(bytes, MAX_COPIES) {
        let copy = operands.iter().map(|operand| bench.alloc(operand, operand.len()));
        let operands = copy.collect::<Result<_, _>>()?;
        let mut call = Call { gpu, num_rows, operands, workspace, out: Out16::F32(verified) };
        if launches.is_empty() {
            // SAFETY: the launches were made of buffers of the bench.
            unsafe { bench.time_us(&launches_of(layer, &call)?, 1, 1) }?;
        }
        call.out = Out16::Half(out);
        launches.push(launches_of(layer, &call)?);
    }
    let mut got = vec![0; size_of::<f32>() * m * n];
    bench.read(verified.ptr.0, &mut got)?;
    let error = check_error(&shape, sampled_error(layer, &floats(&got)), layer.max_error())?;

    let calls = calls_per_round(launches.len());
    // SAFETY: as above.
    let [us, min_us] = unsafe { us_per_call_of(&mut bench, &launches, calls) }?;
    let (implementation, dtype) = layer.names();
    let target = gpu.target.name();
    Ok(Row {
        op: "gemm",
        implementation,
        dtype,
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

fn launches_of(layer: &dyn Layer, call: &Call) -> Result<Vec<Launch>, ExecError> {
    let made = with_maps(KernelBench::encode, |maps| layer.launches(call, maps))?;
    made.map_err(|why| ExecError::Unsupported {
        op: format!("a linear layer in {}", layer.names().1),
        why: why.to_string(),
    })
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|&bytes| f32::from_ne_bytes(bytes)).collect()
}

/// Relative error of a sample of the outputs.
fn sampled_error(layer: &dyn Layer, got: &[f32]) -> f64 {
    let Shape { m, n, .. } = layer.shape();
    let mut random = ChaCha8Rng::seed_from_u64(3);
    relative_error((0..SAMPLES).map(|_| {
        let (row, column) = (random.random_range(0..m), random.random_range(0..n));
        (got[row * n + column], layer.element(row, column))
    }))
}

/// What is verified is what the kernels compute; another output is not.
#[cfg(all(test, feature = "emulator"))]
pub(super) fn check_verified(layer: &dyn Layer, max_error: f64) {
    use simt::{Init, Memory};
    let Shape { m, n, .. } = layer.shape();
    let mut memory = Memory::new();
    let num_rows = memory.alloc("num_rows", Init::Bytes(&(m as u32).to_ne_bytes()));
    let operands = layer.operands();
    let operands = operands.iter().map(|bytes| memory.alloc("operand", Init::Bytes(bytes)));
    let operands = operands.collect();
    let workspace = memory.alloc("workspace", Init::Poisoned(layer.workspace_bytes().max(16)));
    let out = memory.alloc("out", Init::Poisoned(4 * m * n));
    let rows = Rows::new(DevicePtr::new(out), n);
    let (gpu, num_rows) = (Gpu::HOPPER, DevicePtr::new(num_rows));
    let call = Call { gpu, num_rows, operands, workspace, out: Out16::F32(rows) };
    for launch in layer.launches(&call, &mut |spec| spec.emulated()).unwrap() {
        launch.emulate(&mut memory, 0).unwrap();
    }
    let mut got = vec![0; 4 * m * n];
    memory.read(out, &mut got).unwrap();
    let mut got = floats(&got);
    let name = layer.names().1;
    assert!(sampled_error(layer, &got) < max_error, "{name}");
    got.rotate_left(1);
    assert!(sampled_error(layer, &got) > 0.1, "{name}");
}
