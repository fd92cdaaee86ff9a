//! Single kernels on a device, outside of any plan: for measurements.

use std::path::PathBuf;
use std::sync::Arc;

use cust::context::Context;
use cust::event::{Event, EventFlags};
use cust::stream::Stream;
use cust::sys::{self, CUfunction_attribute};

use super::cubin_cache::CubinCache;
use super::device::{self, DeviceInfo, check, devices, failed, make_current};
use super::graph::{Graph, Node};
use super::memory::Block;
use super::modules::Modules;
use super::tensor_maps;
use crate::exec::ExecError;
use crate::exec::lower::Task;
use cuda_std::launch::Launch;
use cuda_std::tensor_map::{EncodedTensorMap, TensorMapSpec};
use kernels::gemm::Gpu;

/// A device, buffers there, and launches that are run or timed one after the other.
///
/// Fields are dropped in this order: modules and memory before the stream.
pub struct KernelBench {
    modules: Modules,
    buffers: Vec<Block>,
    stream: Arc<Stream>,
    device: DeviceInfo,
    gpu: Gpu,
    context: &'static Context,
}

/// What the driver says of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelAttributes {
    /// Registers of a thread.
    pub registers: u32,
    /// Local memory of a thread, spilled registers included, in bytes.
    pub local_bytes: u32,
}

impl KernelBench {
    /// Opens the device `cuda:<ordinal>`; `cubin_dir` as in
    /// [`GpuOptions`](crate::exec::GpuOptions).
    ///
    /// # Errors
    /// [`ExecError::NoDevice`] without a driver or such a device, [`ExecError::Driver`].
    pub fn open(ordinal: usize, cubin_dir: Option<PathBuf>) -> Result<Self, ExecError> {
        let devices = devices()?;
        let (device, kernels, gpu) = device::choose(&devices, ordinal, None)?;
        let device = device.clone();
        let context = device::open_context(&device)?;
        let stream = device::open_stream(ordinal)?;
        let cache = CubinCache::new(cubin_dir, device::driver_name()?, device.capability);
        let modules = Modules::new(kernels, cache, device.sm_shared_bytes);
        Ok(KernelBench { modules, buffers: Vec::new(), stream, device, gpu, context })
    }

    /// What launches are made for.
    #[must_use]
    pub fn gpu(&self) -> Gpu {
        self.gpu
    }

    /// The device's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.device.name
    }

    /// The address of a new buffer that starts with `content`; the rest of its `bytes` are NaN.
    ///
    /// # Errors
    /// [`ExecError::OutOfMemory`], [`ExecError::Driver`].
    pub fn alloc(&mut self, content: &[u8], bytes: usize) -> Result<u64, ExecError> {
        make_current(self.context)?;
        let mut buffer = Block::allocate(&self.device, "a buffer", bytes, &self.stream)?;
        // SAFETY: the copy is waited for, and nothing else uses the buffer yet.
        unsafe { buffer.write_async(0, content, &self.stream) }?;
        self.stream.synchronize().map_err(failed("copying to the device"))?;
        self.buffers.push(buffer);
        Ok(self.buffers[self.buffers.len() - 1].address())
    }

    /// Reads the start of the buffer at `address`.
    ///
    /// # Errors
    /// [`ExecError::Driver`].
    ///
    /// # Panics
    /// If [`KernelBench::alloc`] has returned no such address.
    pub fn read(&self, address: u64, out: &mut [u8]) -> Result<(), ExecError> {
        make_current(self.context)?;
        let buffer = self.buffers.iter().find(|buffer| buffer.address() == address);
        let buffer = buffer.expect("an address of a buffer");
        // SAFETY: the copy is waited for.
        unsafe { buffer.read_async(0, out, &self.stream) }?;
        self.stream.synchronize().map_err(failed("copying from the device"))
    }

    /// The tensor map that `spec` says.
    ///
    /// # Errors
    /// [`ExecError::Driver`].
    pub fn encode(spec: &TensorMapSpec) -> Result<EncodedTensorMap, ExecError> {
        tensor_maps::encode(spec)
    }

    /// Runs `launches` one after the other, `replays` times, and returns the microseconds of one
    /// replay of all: the least first, of `repeats` measurements.
    ///
    /// # Errors
    /// [`ExecError::Driver`].
    ///
    /// # Safety
    /// 1. Every address among the launches' arguments is of a buffer of this bench, large enough.
    pub unsafe fn time_us(
        &mut self,
        launches: &[Launch],
        replays: usize,
        repeats: usize,
    ) -> Result<Vec<f64>, ExecError> {
        make_current(self.context)?;
        let tasks: Vec<Task> = launches.iter().cloned().map(Task::Launch).collect();
        self.modules.load(self.context, &tasks)?;
        let node = |launch: &Launch| -> Result<Node<'_>, ExecError> {
            Ok(Node::Launch(self.modules.function(launch)?, launch.clone()))
        };
        let nodes = launches.iter().map(node).collect::<Result<Vec<_>, ExecError>>()?;
        // SAFETY: modules outlive the graph; the caller's promise.
        let graph = unsafe { Graph::capture(&self.stream, &nodes, None) }?;
        let mut times = Vec::new();
        for _ in 0..repeats {
            times.push(self.replay_us(&graph, replays)?);
        }
        times.sort_unstable_by(f64::total_cmp);
        Ok(times)
    }

    fn replay_us(&self, graph: &Graph, replays: usize) -> Result<f64, ExecError> {
        let event = || Event::new(EventFlags::DEFAULT).map_err(failed("making an event"));
        let (start, stop) = (event()?, event()?);
        let record = |event: &Event| event.record(&self.stream).map_err(failed("timing"));
        record(&start)?;
        let launched = (0..replays).try_for_each(|_| graph.launch(&self.stream));
        record(&stop)?;
        stop.synchronize().map_err(failed("running a graph"))?;
        launched?;
        let ms = stop.elapsed_time_f32(&start).map_err(failed("timing"))?;
        Ok(f64::from(ms) * 1e3 / replays.max(1) as f64)
    }

    /// What the driver says of the kernel of `launch`.
    ///
    /// # Errors
    /// [`ExecError::Driver`].
    pub fn attributes(&mut self, launch: &Launch) -> Result<KernelAttributes, ExecError> {
        make_current(self.context)?;
        self.modules.load(self.context, &[Task::Launch(launch.clone())])?;
        let function = self.modules.function(launch)?;
        let attribute = |attribute: CUfunction_attribute| -> Result<u32, ExecError> {
            let mut value = 0;
            // SAFETY: `function` is of a module that is loaded.
            let code = unsafe { sys::cuFuncGetAttribute(&mut value, attribute, function) };
            check("cuFuncGetAttribute", code)?;
            Ok(value as u32)
        };
        Ok(KernelAttributes {
            registers: attribute(CUfunction_attribute::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
            local_bytes: attribute(CUfunction_attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
        })
    }
}

impl Drop for KernelBench {
    fn drop(&mut self) {
        // As of the executor: what follows is dropped in this thread.
        let _ = make_current(self.context);
    }
}
