//! A case on a GPU, through the driver's JIT.

use std::ffi::c_void;
use std::ptr;

use cuda_loader::{Driver, EncodeError, LoadError, TiledTensorMap};
use cuda_std::launch::{Geometry, Launch};
use cuda_std::tensor_map::{EncodedTensorMap, TensorMapError, TensorMapSpec};
use cust::CudaFlags;
use cust::context::{Context, CurrentContext};
use cust::device::{Device, DeviceAttribute};
use cust::error::CudaError;
use cust::memory::{CopyDestination, DeviceBuffer};
use cust::module::Module;
use cust::sys::{self, CUfunction, CUfunction_attribute, CUresult};

use crate::{Buffer, Case, Pointers, ptx};

/// Shared memory that a block has by default.
const DEFAULT_SHARED_BYTES: u32 = 48 << 10;

/// The first GPU of this machine.
pub struct Gpu {
    driver: &'static Driver,
    context: Context,
    /// The target of the kernels that it runs.
    target: &'static str,
}

/// An error of the GPU or its driver.
#[derive(Debug, thiserror::Error)]
pub enum GpuError {
    /// The driver cannot be used.
    #[error(transparent)]
    Load(LoadError),
    /// A call of the driver failed.
    #[error("{call}: {error}")]
    Driver {
        /// The call or the operation.
        call: &'static str,
        /// The driver's code, by name.
        error: String,
    },
    /// The kernel was not compiled for this GPU.
    #[error("{symbol} is not compiled for {target}")]
    NoKernel {
        /// The PTX entry.
        symbol: &'static str,
        /// The GPU's target.
        target: &'static str,
    },
    /// A tensor map is invalid.
    #[error("the tensor map of a {}-dimensional tensor: {why}", spec.dims.len())]
    TensorMap {
        /// Specification of the tensor map.
        spec: Box<TensorMapSpec>,
        /// What is invalid.
        why: TensorMapError,
    },
    /// The driver rejects a tensor map.
    #[error(transparent)]
    Encode(#[from] EncodeError),
}

impl Gpu {
    /// The first GPU; `None` on a machine without one, or with one from before SM 80.
    ///
    /// # Errors
    /// - [`GpuError::Load`] if the driver is too old;
    /// - [`GpuError::Driver`] if a call of the driver fails.
    pub fn open() -> Result<Option<Gpu>, GpuError> {
        let driver = match cuda_loader::load() {
            Err(LoadError::Missing(_)) => return Ok(None),
            result => result.map_err(GpuError::Load)?,
        };
        match cust::init(CudaFlags::empty()) {
            Err(CudaError::NoDevice) => return Ok(None),
            result => result.map_err(failed("cuInit"))?,
        }
        let device = Device::get_device(0).map_err(failed("cuDeviceGet"))?;
        let attribute =
            |attribute| device.get_attribute(attribute).map_err(failed("cuDeviceGetAttribute"));
        let major = attribute(DeviceAttribute::ComputeCapabilityMajor)?;
        let minor = attribute(DeviceAttribute::ComputeCapabilityMinor)?;
        let target = match (major, minor) {
            (9, 0) => "sm_90a",
            (8.., _) => "sm_80",
            _ => return Ok(None),
        };
        let context = Context::new(device).map_err(failed("opening the device"))?;
        Ok(Some(Gpu { driver, context, target }))
    }

    /// Whether the kernel `symbol` was compiled for this GPU.
    pub fn has_kernel(&self, symbol: &str) -> bool {
        ptx::text(self.target, symbol).is_some()
    }

    /// Runs `case`; returns the outputs. Bytes that the kernel does not write are 0xff.
    ///
    /// # Errors
    /// - [`GpuError::NoKernel`] if the kernel was not compiled for this GPU;
    /// - [`GpuError::TensorMap`] and [`GpuError::Encode`] for an invalid tensor map;
    /// - [`GpuError::Driver`], also for a fault of the kernel, after which the context is unusable.
    pub fn run(&self, case: &Case) -> Result<Vec<Vec<u8>>, GpuError> {
        CurrentContext::set_current(&self.context).map_err(failed("cuCtxSetCurrent"))?;
        let mut memory: Vec<DeviceBuffer<u8>> = Vec::new();
        let place = |buffer: &Buffer| {
            let device = Self::upload(buffer)?;
            let address = device.as_device_ptr().as_raw();
            memory.push(device);
            Ok::<u64, GpuError>(address)
        };
        let pointers = Pointers::of(&case.buffers, place, |spec| self.encode(spec))?;
        let launch = case.launch(&pointers);
        let symbol = launch.symbol;
        let text = ptx::text(self.target, symbol)
            .ok_or(GpuError::NoKernel { symbol, target: self.target })?;
        let module = Module::from_ptx(text, &[]).map_err(failed("compiling the kernel"))?;
        let function = module.get_function(symbol).map_err(failed("cuModuleGetFunction"))?;
        // SAFETY: the function is the launch's, and its pointers those of `memory`; both live until
        // the kernel has ended.
        unsafe { start(function.to_raw(), &launch) }?;
        CurrentContext::synchronize().map_err(failed("running the kernel"))?;
        let read = |(buffer, device): (&Buffer, &DeviceBuffer<u8>)| {
            let mut bytes = vec![0; buffer.want()?.num_bytes()];
            let copied = device.copy_to(&mut bytes).map_err(failed("copying from the device"));
            Some(copied.map(|()| bytes))
        };
        let is_memory = |buffer: &&Buffer| !matches!(buffer, Buffer::TensorMap(..));
        case.buffers.iter().filter(is_memory).zip(&memory).filter_map(read).collect()
    }

    /// The initial contents of a buffer.
    fn upload(buffer: &Buffer) -> Result<DeviceBuffer<u8>, GpuError> {
        let uploaded = match buffer {
            Buffer::In(bytes) | Buffer::InOut(bytes, _) => DeviceBuffer::from_slice(bytes),
            Buffer::Out(want) => DeviceBuffer::from_slice(&vec![0xff; want.num_bytes()]),
            Buffer::TensorMap(..) => unreachable!("tensor maps are not memory"),
        };
        uploaded.map_err(failed("allocating device memory"))
    }

    fn encode(&self, spec: &TensorMapSpec) -> Result<EncodedTensorMap, GpuError> {
        spec.check().map_err(|why| GpuError::TensorMap { spec: Box::new(spec.clone()), why })?;
        let map = TiledTensorMap {
            address: spec.address,
            data_type: spec.element.driver_code(),
            dims: &spec.dims,
            strides_bytes: &spec.strides_bytes,
            box_dims: &spec.box_dims,
            swizzle: spec.swizzle as u32,
            l2_promotion: spec.l2_promotion as u32,
        };
        Ok(EncodedTensorMap(self.driver.encode_tensor_map(&map)?))
    }
}

/// Launches the kernel on the default stream. The cluster's shape is in the kernel's PTX.
///
/// # Safety
/// 1. `function` is the kernel of `launch`, and its module lives until the kernel has ended.
/// 2. The memory at the launch's addresses lives until then.
unsafe fn start(function: CUfunction, launch: &Launch) -> Result<(), GpuError> {
    let Geometry { grid, block, shared_bytes } = launch.geometry;
    if shared_bytes > DEFAULT_SHARED_BYTES {
        let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the caller's promise.
        let code = unsafe { sys::cuFuncSetAttribute(function, attribute, shared_bytes as i32) };
        check("cuFuncSetAttribute", code)?;
    }
    let argument = |&offset: &u32| launch.args[offset as usize..].as_ptr().cast_mut().cast();
    let mut arguments: Vec<*mut c_void> = launch.arg_offsets.iter().map(argument).collect();
    // SAFETY: the caller's promise; the typed launcher packed the arguments as the kernel takes
    // them, and the driver copies them in this call.
    let code = unsafe {
        sys::cuLaunchKernel(
            function,
            grid[0],
            grid[1],
            grid[2],
            block[0],
            block[1],
            block[2],
            shared_bytes,
            ptr::null_mut(),
            arguments.as_mut_ptr(),
            ptr::null_mut(),
        )
    };
    check("cuLaunchKernel", code)
}

/// Names the failed operation, and prints the error's code by name: `CudaError`'s text needs the
/// driver.
fn failed(call: &'static str) -> impl Fn(CudaError) -> GpuError + Copy {
    move |error| GpuError::Driver { call, error: format!("{error:?}") }
}

/// The result of a call that `cust` does not wrap.
fn check(call: &'static str, code: CUresult) -> Result<(), GpuError> {
    match code {
        CUresult::CUDA_SUCCESS => Ok(()),
        code => Err(GpuError::Driver { call, error: format!("{code:?}") }),
    }
}
