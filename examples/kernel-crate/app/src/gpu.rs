//! The first GPU: its memory, and the launches that typed launchers make.

use std::ffi::c_void;
use std::fmt;

use cuda_loader::LoadError;
use cuda_std::launch::{DevicePtr, Geometry, Launch};
use cust::CudaFlags;
use cust::context::Context;
use cust::device::Device;
use cust::error::CudaError;
use cust::memory::{CopyDestination, DeviceBuffer};
use cust::module::Module;
use cust::stream::{Stream, StreamFlags};

/// A GPU that is open. What is dropped first is declared first.
pub struct Gpu {
    stream: Stream,
    _context: Context,
}

/// A call of the driver that failed.
#[derive(Debug)]
pub struct GpuError {
    call: &'static str,
    error: CudaError,
}

impl fmt::Display for GpuError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?}", self.call, self.error)
    }
}

impl std::error::Error for GpuError {}

fn failed(call: &'static str) -> impl Fn(CudaError) -> GpuError {
    move |error| GpuError { call, error }
}

/// The address of a buffer, for a launcher.
pub fn pointer(buffer: &DeviceBuffer<f32>) -> DevicePtr<f32> {
    DevicePtr::new(buffer.as_device_ptr().as_raw())
}

impl Gpu {
    /// The first GPU, or `None` on a machine without one.
    ///
    /// # Errors
    /// A driver that is too old or does not answer.
    pub fn open() -> Result<Option<Gpu>, Box<dyn std::error::Error>> {
        // libcuda is opened here, at run time: the program starts on machines without it.
        match cuda_loader::load() {
            Err(LoadError::Missing(_)) => return Ok(None),
            loaded => loaded?,
        };
        match cust::init(CudaFlags::empty()) {
            Err(CudaError::NoDevice) => return Ok(None),
            started => started.map_err(failed("cuInit"))?,
        }
        let device = Device::get_device(0).map_err(failed("cuDeviceGet"))?;
        let context = Context::new(device).map_err(failed("cuDevicePrimaryCtxRetain"))?;
        let stream = Stream::new(StreamFlags::NON_BLOCKING, None);
        let stream = stream.map_err(failed("cuStreamCreate"))?;
        Ok(Some(Gpu { stream, _context: context }))
    }

    /// A buffer of these elements.
    pub fn upload(&self, values: &[f32]) -> Result<DeviceBuffer<f32>, GpuError> {
        DeviceBuffer::from_slice(values).map_err(failed("copying to the GPU"))
    }

    /// The elements of a buffer.
    pub fn download(&self, buffer: &DeviceBuffer<f32>) -> Result<Vec<f32>, GpuError> {
        let mut values = vec![0.0; buffer.len()];
        buffer.copy_to(&mut values).map_err(failed("copying from the GPU"))?;
        Ok(values)
    }

    /// Compiles `ptx`, runs the kernel, and waits for its end.
    ///
    /// # Safety
    /// 1. `ptx` is the text of the launch's kernel.
    /// 2. What the kernel's own `# Safety` asks of its arguments holds.
    pub unsafe fn launch(&self, ptx: &str, launch: &Launch) -> Result<(), GpuError> {
        let module = Module::from_ptx(ptx, &[]).map_err(failed("compiling the kernel"))?;
        let function = module.get_function(launch.symbol).map_err(failed("cuModuleGetFunction"))?;
        let Geometry { grid, block, shared_bytes } = launch.geometry;
        let argument = |&offset: &u32| launch.args[offset as usize..].as_ptr().cast_mut().cast();
        let arguments: Vec<*mut c_void> = launch.arg_offsets.iter().map(argument).collect();
        let [grid, block] = [grid, block].map(|[x, y, z]| (x, y, z));
        // SAFETY: the launcher packed the arguments as the kernel takes them; the rest is the
        // caller's promise.
        unsafe { self.stream.launch(&function, grid, block, shared_bytes, &arguments) }
            .map_err(failed("cuLaunchKernel"))?;
        self.stream.synchronize().map_err(failed("running the kernel"))
    }
}
