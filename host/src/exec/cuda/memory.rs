//! Device memory: one allocation each for weights, cache, activations and step inputs, made when
//! the executor is opened.

use cust::memory::{AsyncCopyDestination, DeviceBuffer, DeviceCopy, LockedBuffer, mem_get_info};
use cust::stream::Stream;
use gpu_types::ALIGN_BYTES;
use kernels::gemm::Gpu;

use super::cublas;
use super::device::{DeviceInfo, failed};
use crate::exec::ExecError;
use crate::exec::lower::StepBuffer;
use crate::exec::lower::{self, Addresses, KvPool, Libraries};
use crate::plan::{ArenaLayout, Plan, TensorId};

/// One allocation.
pub struct Block(DeviceBuffer<u8>);

impl Block {
    /// `bytes` of memory; `stream` makes NaN of them (all bits set), so that a read of what was
    /// never written shows.
    pub fn allocate(
        device: &DeviceInfo,
        what: &str,
        bytes: usize,
        stream: &Stream,
    ) -> Result<Self, ExecError> {
        Block::filled(device, what, bytes, 0xFF, stream)
    }

    /// `bytes` zeros, as `stream` makes them.
    pub fn zeroed(
        device: &DeviceInfo,
        what: &str,
        bytes: usize,
        stream: &Stream,
    ) -> Result<Self, ExecError> {
        Block::filled(device, what, bytes, 0, stream)
    }

    fn filled(
        device: &DeviceInfo,
        what: &str,
        bytes: usize,
        value: u8,
        stream: &Stream,
    ) -> Result<Self, ExecError> {
        let free_bytes = free_bytes()?;
        if bytes > free_bytes {
            return Err(ExecError::OutOfMemory {
                device: device.name.clone(),
                what: what.to_owned(),
                needed_bytes: bytes,
                free_bytes,
            });
        }
        // SAFETY: the whole buffer is written right below.
        let buffer = unsafe { DeviceBuffer::uninitialized(bytes) };
        let mut buffer = buffer.map_err(failed("allocating device memory"))?;
        if bytes > 0 {
            // SAFETY: whatever uses the buffer comes after this on the same stream.
            unsafe { buffer.set_8_async(value, stream) }
                .map_err(failed("clearing device memory"))?;
        }
        Ok(Block(buffer))
    }

    pub fn bytes(&self) -> usize {
        self.0.len()
    }

    pub fn address(&self) -> u64 {
        self.0.as_device_ptr().as_raw()
    }

    /// Starts a copy of `source` to `offset`.
    ///
    /// # Safety
    /// 1. `source` is neither changed nor freed before the copy is done.
    /// 2. Nothing else on the device uses the part that is written, but what `stream` orders.
    pub unsafe fn write_async(
        &mut self,
        offset: usize,
        source: &[u8],
        stream: &Stream,
    ) -> Result<(), ExecError> {
        let mut part = self.0.index(offset..offset + source.len());
        // SAFETY: the caller's promise.
        unsafe { part.async_copy_from(source, stream) }.map_err(failed("copying to the device"))
    }

    /// Starts a copy from `offset` to `target`.
    ///
    /// # Safety
    /// 1. `target` is neither read, changed nor freed before the copy is done.
    pub unsafe fn read_async(
        &self,
        offset: usize,
        target: &mut [u8],
        stream: &Stream,
    ) -> Result<(), ExecError> {
        let part = self.0.index(offset..offset + target.len());
        // SAFETY: the caller's promise.
        unsafe { part.async_copy_to(target, stream) }.map_err(failed("copying from the device"))
    }
}

/// Free bytes of the current context's device.
pub fn free_bytes() -> Result<usize, ExecError> {
    mem_get_info().map(|(free_bytes, _)| free_bytes).map_err(failed("cuMemGetInfo"))
}

/// `len` elements of pinned host memory, which the device copies from and to by itself.
pub fn pinned<T: DeviceCopy + Default>(len: usize) -> Result<LockedBuffer<T>, ExecError> {
    LockedBuffer::new(&T::default(), len).map_err(failed("allocating pinned host memory"))
}

/// The offset of each weight, and after them of each table, in their allocation.
pub struct ParameterLayout {
    pub weights: Vec<usize>,
    pub constants: Vec<usize>,
    pub bytes: usize,
}

impl ParameterLayout {
    pub fn new(plan: &Plan) -> Self {
        let mut bytes = 0;
        let mut place = |len: usize| {
            let offset = bytes;
            bytes = (offset + len).next_multiple_of(ALIGN_BYTES);
            offset
        };
        let weights = plan.weights.iter().map(|weight| place(weight.bytes())).collect();
        let constants = plan.constants.iter().map(|constant| place(constant.bytes())).collect();
        ParameterLayout { weights, constants, bytes }
    }
}

/// What an executor allocates on the device for a plan, which has the largest bounds.
pub struct Sizes {
    pub parameters: ParameterLayout,
    pub kv_bytes: usize,
    pub state_bytes: usize,
    pub arena_bytes: usize,
    pub step_bytes: usize,
    pub drawn_bytes: usize,
    pub workspace_bytes: usize,
    pub counter_bytes: usize,
    pub cublas_bytes: usize,
    pub rank_bytes: usize,
}

impl Sizes {
    /// Sizes for `plan` on a `gpu`, where libraries do a part of it.
    ///
    /// # Errors
    /// [`ExecError::Unsupported`] for a world of another size than kernels take.
    pub fn new(plan: &Plan, gpu: Gpu, libraries: Libraries) -> Result<Self, ExecError> {
        let Libraries { gemm, nccl } = libraries;
        // Not every plan with smaller bounds is fused alike.
        let fused = lower::fused(plan, libraries, gpu);
        let largest = |bytes: &dyn Fn(&Plan) -> usize| bytes(plan).max(bytes(&fused));
        Ok(Sizes {
            parameters: ParameterLayout::new(plan),
            kv_bytes: plan.kv.bytes(),
            state_bytes: plan.states.bytes(),
            arena_bytes: largest(&|plan| ArenaLayout::new(plan).bytes()),
            step_bytes: StepBuffer::max_bytes(plan, gpu),
            drawn_bytes: plan.bounds.max_logit_rows * size_of::<u32>(),
            workspace_bytes: largest(&|plan| lower::workspace_bytes(plan, gemm)),
            counter_bytes: largest(&lower::counter_bytes),
            cublas_bytes: cublas::workspace_bytes(gemm),
            rank_bytes: if nccl { 0 } else { lower::rank_workspace_bytes(plan)? },
        })
    }
}

/// All memory of an executor on the device.
pub struct DeviceMemory {
    pub parameters: Block,
    pub layout: ParameterLayout,
    pub kv: Block,
    pub states: Block,
    pub arena: Block,
    /// As [`StepBuffer`] says.
    pub step: Block,
    /// The tokens that the last step drew.
    pub drawn: Block,
    /// What one operation needs for itself.
    pub workspace: Block,
    /// What blocks of one operation count in.
    pub counters: Block,
    /// What cuBLAS needs, if it is used.
    pub cublas_workspace: Block,
    /// What the ranks of a world meet in.
    pub rank_workspace: Block,
}

impl DeviceMemory {
    /// Memory of these sizes.
    pub fn allocate(device: &DeviceInfo, sizes: Sizes, stream: &Stream) -> Result<Self, ExecError> {
        let allocate = |what, bytes| Block::allocate(device, what, bytes, stream);
        Ok(DeviceMemory {
            parameters: allocate("the weights", sizes.parameters.bytes)?,
            layout: sizes.parameters,
            kv: allocate("the KV cache", sizes.kv_bytes)?,
            states: allocate("the recurrent states", sizes.state_bytes)?,
            arena: allocate("the activations", sizes.arena_bytes)?,
            step: allocate("the step inputs", sizes.step_bytes)?,
            drawn: allocate("the drawn tokens", sizes.drawn_bytes)?,
            workspace: allocate("the workspace", sizes.workspace_bytes)?,
            counters: Block::zeroed(device, "the counters", sizes.counter_bytes, stream)?,
            cublas_workspace: allocate("the workspace of cuBLAS", sizes.cublas_bytes)?,
            rank_workspace: Block::zeroed(
                device,
                "the workspace of ranks",
                sizes.rank_bytes,
                stream,
            )?,
        })
    }

    /// The addresses of everything in `plan`, its activations as `arena` says.
    pub fn addresses(&self, plan: &Plan, arena: &ArenaLayout) -> Addresses {
        let parameter = |&offset: &usize| self.parameters.address() + offset as u64;
        let pools = |layer: usize| {
            let k = self.kv.address() + plan.kv.bytes_before(layer) as u64;
            KvPool { k, v: k + plan.kv.pool_bytes(layer)[0] as u64 }
        };
        let state_bytes = plan.states.pool_bytes().map(|bytes| bytes as u64);
        let states = |layer: usize| {
            let [conv_bytes, delta_bytes] = state_bytes;
            let delta = self.states.address() + layer as u64 * (conv_bytes + delta_bytes);
            [delta + delta_bytes, delta]
        };
        Addresses {
            weights: self.layout.weights.iter().map(parameter).collect(),
            constants: self.layout.constants.iter().map(parameter).collect(),
            kv_pools: (0..plan.kv.layers.len()).map(pools).collect(),
            states: (0..plan.states.num_layers).map(states).collect(),
            tensors: (0..plan.tensors.len())
                .map(|tensor| self.arena.address() + arena.offset(TensorId(tensor)) as u64)
                .collect(),
            step: self.step.address(),
            drawn: self.drawn.address(),
            workspace: self.workspace.address(),
            counters: self.counters.address(),
            ranks: Vec::new(),
        }
    }
}
