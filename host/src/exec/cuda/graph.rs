//! A plan's launches, and calls of cuBLAS, as one CUDA graph.
//!
//! Kernels read the sizes of a step from the step buffer, and grids come from the plan's upper
//! bounds: what is captured once stays right while sequences come, grow and go, and a step costs
//! one call of the driver.
//!
//! A kernel that waits by itself for the launches before it starts while they still run, where
//! device and driver can do that: its launch, the start of its blocks and what it does before it
//! waits cost no time of their own.

use std::collections::HashSet;
use std::ffi::c_void;
use std::ptr;

use cuda_loader::cublas::{Cublas, GemmEx};
use cuda_loader::nccl::{AllReduce, Communicator};
use cuda_loader::{LaunchShape, OverlappingLauncher};
use cust::stream::Stream;
use cust::sys::{self, CUfunction, CUgraph, CUgraphExec, CUstreamCaptureMode};

use super::cublas::{self, add_gemm};
use super::device::{by_nccl, check};
use crate::exec::ExecError;
use cuda_std::launch::{Geometry, Launch};

/// What a graph is captured from.
pub enum Node<'a> {
    /// A kernel and its launch.
    Launch(CUfunction, Launch),
    /// A matrix product, by a handle of the stream. Its kernels do not trigger dependent launches:
    /// the launch after it starts when they have ended.
    Gemm(&'a Cublas, GemmEx),
    /// A sum over ranks, by the communicator of this one.
    AllReduce(&'a Communicator, AllReduce),
}

impl Node<'_> {
    /// Starts it on `stream`, or captures it; a kernel by `overlapping`, if it is to overlap with
    /// the one before.
    ///
    /// # Safety
    /// As [`Graph::capture`], until the stream has done it.
    pub unsafe fn start(
        &self,
        stream: &Stream,
        overlapping: Option<OverlappingLauncher>,
    ) -> Result<(), ExecError> {
        match self {
            // SAFETY: the caller's promise.
            Node::Launch(function, launch) => unsafe {
                add_launch(stream, *function, launch, overlapping)
            },
            // SAFETY: as above.
            Node::Gemm(cublas, gemm) => unsafe { add_gemm(cublas, gemm) },
            Node::AllReduce(communicator, sum) => {
                // SAFETY: as above.
                let added = unsafe { communicator.all_reduce(sum, stream.as_inner().cast()) };
                added.map_err(by_nccl)
            }
        }
    }
}

/// An instantiated graph.
pub struct Graph(CUgraphExec);

// SAFETY: a graph is bound to no thread; the executor that owns it makes its context current before
// every call.
unsafe impl Send for Graph {}

impl Graph {
    /// Captures `nodes`, in order; launches that overlap by `overlapping`, if there is one.
    ///
    /// # Safety
    /// 1. Each function is that of its launch, and its module outlives the graph.
    /// 2. Every address among the arguments is of memory of the device, or pinned, that outlives
    ///    the graph, as do handles of cuBLAS and communicators.
    /// 3. With sums over ranks, all of these capture graphs of the same ones, in threads of their
    ///    own.
    pub unsafe fn capture(
        stream: &Stream,
        nodes: &[Node<'_>],
        overlapping: Option<OverlappingLauncher>,
    ) -> Result<Self, ExecError> {
        let has_gemm = nodes.iter().any(|node| matches!(node, Node::Gemm(..)));
        let _setup = has_gemm.then(cublas::setup);
        // What libraries set up with a first call cannot be captured: before CUDA 12.3 the kernels
        // of cuBLAS, and NCCL's connections, by the size of the sum. Results are not read.
        let mut sums = HashSet::new();
        let is_first = |node: &&Node<'_>| match node {
            Node::Launch(..) => false,
            Node::Gemm(..) => true,
            Node::AllReduce(_, sum) => sums.insert((sum.count, sum.data_type)),
        };
        for node in nodes.iter().filter(is_first) {
            // SAFETY: the caller's promise.
            unsafe { node.start(stream, None) }?;
        }
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is live, and not capturing: every capture is ended below.
        check("cuStreamBeginCapture", unsafe {
            sys::cuStreamBeginCapture_v2(stream.as_inner(), mode)
        })?;
        let launched = nodes.iter().enumerate().try_for_each(|(index, node)| {
            // A launch at the start, or after a matrix product, waits for what the stream did
            // before: it has no kernel of ours to overlap with.
            let follows = index > 0 && matches!(nodes[index - 1], Node::Launch(..));
            let overlaps = matches!(node, Node::Launch(_, launch) if launch.overlaps);
            // SAFETY: the caller's promise.
            unsafe { node.start(stream, overlapping.filter(|_| follows && overlaps)) }
        });
        let mut graph: CUgraph = ptr::null_mut();
        // SAFETY: the stream is capturing.
        let ended = check("cuStreamEndCapture", unsafe {
            sys::cuStreamEndCapture(stream.as_inner(), &mut graph)
        });
        let instantiated = launched.and(ended).and_then(|()| instantiate(graph));
        if !graph.is_null() {
            // SAFETY: `graph` is one that was captured; what was instantiated from it does not need
            // it.
            check("cuGraphDestroy", unsafe { sys::cuGraphDestroy(graph) })?;
        }
        instantiated
    }

    /// Starts the graph on `stream`.
    pub fn launch(&self, stream: &Stream) -> Result<(), ExecError> {
        // SAFETY: `capture`'s caller promised that all it refers to is still there.
        check("cuGraphLaunch", unsafe { sys::cuGraphLaunch(self.0, stream.as_inner()) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: the graph is live, and the stream idle: every run waits for its end. `drop`
        // cannot return an error.
        let _ = unsafe { sys::cuGraphExecDestroy(self.0) };
    }
}

fn instantiate(graph: CUgraph) -> Result<Graph, ExecError> {
    let mut executable = ptr::null_mut();
    // SAFETY: `graph` was captured just now.
    let code = unsafe { sys::cuGraphInstantiateWithFlags(&mut executable, graph, 0) };
    check("cuGraphInstantiate", code)?;
    Ok(Graph(executable))
}

/// Launches a kernel; by `overlapping` if it may overlap with the one before.
///
/// # Safety
/// As [`Graph::capture`].
unsafe fn add_launch(
    stream: &Stream,
    function: CUfunction,
    launch: &Launch,
    overlapping: Option<OverlappingLauncher>,
) -> Result<(), ExecError> {
    let call = format!("launching {}", launch.symbol);
    let mut arguments = argument_pointers(launch);
    if let Some(launcher) = overlapping {
        let Geometry { grid, block, shared_bytes } = launch.geometry;
        let shape = LaunchShape { grid, block, shared_bytes };
        let stream = stream.as_inner().cast();
        // SAFETY: as below; the kernel declares that it waits for the launch before.
        let launched = unsafe { launcher.launch(function.cast(), shape, stream, &arguments) };
        return launched.map_err(|error| ExecError::Driver { call, error: error.to_string() });
    }
    let ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]) =
        (launch.geometry.grid, launch.geometry.block);
    // SAFETY: the typed launcher packed the arguments as the kernel takes them; the driver copies
    // them in this call.
    let code = unsafe {
        sys::cuLaunchKernel(
            function,
            grid_x,
            grid_y,
            grid_z,
            block_x,
            block_y,
            block_z,
            launch.geometry.shared_bytes,
            stream.as_inner(),
            arguments.as_mut_ptr(),
            ptr::null_mut(),
        )
    };
    check(&call, code)
}

/// A pointer to each argument, as `cuLaunchKernel` takes them. The driver reads there and does not
/// write.
fn argument_pointers(launch: &Launch) -> Vec<*mut c_void> {
    let pointer = |&offset: &u32| launch.args[offset as usize..].as_ptr().cast_mut().cast();
    launch.arg_offsets.iter().map(pointer).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cuda_std::launch::DevicePtr;
    use kernels::Rows;
    use kernels::rms_norm::RmsNorm;

    #[test]
    fn argument_pointers_lead_to_the_arguments() {
        let rows = |address| Rows::<f32>::new(DevicePtr::new(address), 576);
        let op = RmsNorm { max_rows: 7, num_groups: 3, group_size: 192, eps: 1e-5 };
        let launch = op
            .launch(DevicePtr::new(16), rows(1 << 40), DevicePtr::new(3 << 32), rows(5))
            .unwrap()
            .unwrap();
        let pointers = argument_pointers(&launch);
        let word = |index: usize| -> u32 {
            // SAFETY: an argument of at least four bytes is there.
            unsafe { pointers[index].cast::<u32>().read_unaligned() }
        };
        let long = |index: usize| -> u64 {
            // SAFETY: a pointer is there.
            unsafe { pointers[index].cast::<u64>().read_unaligned() }
        };
        assert_eq!(pointers.len(), 11);
        assert_eq!((long(0), word(1), word(2)), (16, 3, 192));
        assert_eq!(f32::from_bits(word(3)), 1e-5);
        assert_eq!((long(4), word(5), long(6), long(7), word(8)), (1 << 40, 576, 3 << 32, 5, 576));
    }
}
