//! A rank's communicator, and its collectives.

use std::ffi::{c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::collective::enqueue;
use super::functions::{Comm, Functions, IN_PROGRESS, SUCCESS};
use super::{AllGather, AllReduce, Collective, NcclError};

/// The first pause between two looks at a communicator; pauses double up to [`LAST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_micros(10);
const LAST_PAUSE: Duration = Duration::from_millis(1);

/// How far a communicator is that has no error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Ranks still meet, or a collective is still being enqueued.
    InProgress,
    /// The next call can be made.
    Ready,
}

/// One rank's end of a non-blocking communicator.
///
/// One thread, the rank's, calls its collectives. Any thread may call [`Communicator::async_error`] and
/// [`Communicator::abort`], also while the rank's thread waits in a call or for its stream. `drop` aborts a
/// communicator that is not ready, or while its thread panics; otherwise it destroys it.
///
/// # A rank that fails
/// No call waits inside NCCL for another rank. [`Nccl::communicator`](super::Nccl::communicator) returns while ranks
/// still meet; [`Communicator::wait`] and the collectives wait in this crate, with a time limit, and return
/// [`NcclError::Aborted`] as soon as another thread aborts the communicator. So a watcher can end every wait, including
/// that of a stream for a kernel of NCCL. `NCCL_COMM_BLOCKING=1` in the environment would undo this.
///
/// ```no_run
/// use std::sync::mpsc::{RecvTimeoutError, Receiver};
/// use std::{sync::Arc, thread, time::Duration};
/// use cuda_loader::nccl::{Communicator, Nccl, NcclError, UniqueId};
///
/// const LIMIT: Duration = Duration::from_secs(60);
///
/// /// In the thread of a rank, whose GPU's primary context is current.
/// fn join(nccl: &Nccl, id: &UniqueId, rank: u32) -> Result<Arc<Communicator>, NcclError> {
///     // SAFETY: the context is current, and ranks differ.
///     let communicator = Arc::new(unsafe { nccl.communicator(id, rank, 8, LIMIT)? });
///     // The watcher gets its `Arc` here, before the wait.
///     communicator.wait()?;
///     Ok(communicator)
/// }
///
/// /// In the watcher's thread: until a step's end is reported, or its time is over.
/// fn watch(ranks: &[Arc<Communicator>], step_ended: &Receiver<()>, polls: u32) {
///     for _ in 0..polls {
///         let error = ranks.iter().any(|rank| rank.async_error().is_err());
///         match step_ended.recv_timeout(Duration::from_millis(100)) {
///             Err(RecvTimeoutError::Timeout) if !error => {}
///             Ok(()) if !error => return,
///             _ => break,
///         }
///     }
///     // One rank that fails ends all: the kernels of the others wait for it.
///     for rank in ranks {
///         let _ = rank.abort();
///     }
/// }
/// ```
///
/// NCCL frees the communicators of a process when the last of them is aborted or destroyed, and that call waits until
/// all CUDA graphs that captured their collectives are destroyed: a thread destroys its graphs before it drops its
/// communicator, and never waits for the watcher while it has graphs. A rank that finds its communicator aborted
/// destroys its graphs, too.
#[derive(Debug)]
pub struct Communicator {
    functions: Functions,
    /// Held during every call of NCCL but aborting and destroying, none of which waits for another rank. Taken by who
    /// aborts or destroys, so that nobody uses it afterwards.
    handle: Mutex<Option<Comm>>,
    rank: u32,
    world: u32,
    limit: Duration,
}

// SAFETY: NCCL binds a communicator to no thread.
unsafe impl Send for Communicator {}
// SAFETY: the lock admits one thread at a time to the handle; who aborts or destroys it has taken it out.
unsafe impl Sync for Communicator {}

impl Communicator {
    /// The communicator that `ncclCommInitRankConfig` started, with its status.
    ///
    /// # Safety
    /// 1. `handle` is null or a live handle of this library, which nobody else has.
    pub(super) unsafe fn new(
        functions: Functions,
        handle: Comm,
        status: c_int,
        (rank, world): (u32, u32),
        limit: Duration,
    ) -> Result<Self, NcclError> {
        let failed = status != SUCCESS && status != IN_PROGRESS;
        let error = failed.then(|| functions.error("ncclCommInitRankConfig", status));
        if handle.is_null() {
            let no_handle = || functions.error("ncclCommInitRankConfig", status);
            return Err(error.unwrap_or_else(no_handle));
        }
        let communicator = Self { functions, handle: Mutex::new(Some(handle)), rank, world, limit };
        match error {
            None => Ok(communicator),
            Some(error) => {
                // The first error is the one to report.
                let _ = communicator.abort();
                Err(error)
            }
        }
    }

    /// This rank.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// The number of ranks.
    pub fn world(&self) -> u32 {
        self.world
    }

    /// How far the communicator is, at once (`ncclCommGetAsyncError`). It tells nothing of collectives that have been
    /// enqueued: a watcher has a time limit for these.
    ///
    /// # Errors
    /// - [`NcclError::Call`] with the error of a call or of a connection: the communicator can only be aborted;
    /// - [`NcclError::Aborted`].
    pub fn async_error(&self) -> Result<Progress, NcclError> {
        self.progress("ncclCommGetAsyncError")
    }

    /// Waits until all ranks have joined.
    ///
    /// # Errors
    /// - [`NcclError::Call`] if that failed;
    /// - [`NcclError::Timeout`] after the limit: the communicator can only be aborted;
    /// - [`NcclError::Aborted`] if another thread aborted it meanwhile.
    pub fn wait(&self) -> Result<(), NcclError> {
        self.wait_for("ncclCommInitRankConfig")
    }

    /// Ends whatever runs, on the host and on the GPU, and frees the communicator (`ncclCommAbort`): calls in other
    /// threads return [`NcclError::Aborted`], kernels of NCCL end with undefined results, and so streams that wait for
    /// them. Aborting again does nothing.
    ///
    /// The last call of a process's ranks waits until all graphs that captured their collectives are destroyed. The
    /// calling thread needs no context; it may find that of GPU 0 current afterwards.
    ///
    /// # Errors
    /// [`NcclError::Call`]; what then remains is not freed.
    pub fn abort(&self) -> Result<(), NcclError> {
        let Some(handle) = self.lock().take() else { return Ok(()) };
        // SAFETY: the handle is live, and nobody else has it any more.
        let status = unsafe { (self.functions.comm_abort)(handle) };
        self.functions.check("ncclCommAbort", status)
    }

    /// Completes what has been enqueued and frees the communicator (`ncclCommFinalize`, `ncclCommDestroy`), with the
    /// errors that `drop` cannot report. Graphs that captured its collectives are destroyed before.
    ///
    /// # Errors
    /// As [`Communicator::wait`]; the communicator is aborted then.
    pub fn close(self) -> Result<(), NcclError> {
        // SAFETY: the handle is live.
        self.call("ncclCommFinalize", |handle| unsafe { (self.functions.comm_finalize)(handle) })?;
        let Some(handle) = self.lock().take() else { return Err(self.aborted()) };
        // SAFETY: the handle is live, and nobody else has it any more.
        let status = unsafe { (self.functions.comm_destroy)(handle) };
        self.functions.check("ncclCommDestroy", status)
    }

    /// Enqueues a sum over ranks in `stream`, a `CUstream` (`ncclAllReduce`), or captures it.
    ///
    /// # Safety
    /// 1. `stream` is live, and of the communicator's GPU and its primary context.
    /// 2. The addresses are of device memory of this GPU that holds the elements until the stream has completed the
    ///    work; a graph that captured the call keeps that promise for as long as it is launched. `send` and `receive`
    ///    are the same, or do not overlap.
    /// 3. All ranks call the same collectives in the same order, with the same numbers and types of elements; in each,
    ///    one thread does.
    /// 4. Before the communicator is closed or dropped, the stream has completed the work.
    ///
    /// # Errors
    /// As [`Communicator::wait`].
    pub unsafe fn all_reduce(
        &self,
        collective: &AllReduce,
        stream: *mut c_void,
    ) -> Result<(), NcclError> {
        // SAFETY: the caller's promise.
        self.call("ncclAllReduce", |handle| unsafe {
            enqueue(&self.functions, handle, &Collective::AllReduce(*collective), stream).1
        })
    }

    /// Enqueues a gathering of all ranks' rows in `stream`, a `CUstream` (`ncclAllGather`), or captures it.
    ///
    /// # Safety
    /// As [`Communicator::all_reduce`]; but `send` does not overlap `receive`, or is row `rank` of it.
    ///
    /// # Errors
    /// As [`Communicator::wait`].
    pub unsafe fn all_gather(
        &self,
        collective: &AllGather,
        stream: *mut c_void,
    ) -> Result<(), NcclError> {
        // SAFETY: the caller's promise.
        self.call("ncclAllGather", |handle| unsafe {
            enqueue(&self.functions, handle, &Collective::AllGather(*collective), stream).1
        })
    }

    /// Enqueues several collectives as one launch (`ncclGroupStart`, `ncclGroupEnd`), or captures it.
    ///
    /// # Safety
    /// 1. For each, what [`Communicator::all_reduce`] or [`Communicator::all_gather`] requires.
    /// 2. No result is the operand, or a part of one, of another.
    ///
    /// # Errors
    /// As [`Communicator::wait`].
    pub unsafe fn group(
        &self,
        collectives: &[Collective],
        stream: *mut c_void,
    ) -> Result<(), NcclError> {
        let functions = &self.functions;
        let mut failed = None;
        self.call("ncclGroupEnd", |handle| {
            // SAFETY: a group is of this thread alone, and ends below.
            let started = unsafe { (functions.group_start)() };
            if started != SUCCESS {
                failed = Some(("ncclGroupStart", started));
                return SUCCESS;
            }
            failed = collectives.iter().find_map(|collective| {
                // SAFETY: the handle is live, and the caller promised the rest.
                let (call, status) = unsafe { enqueue(functions, handle, collective, stream) };
                (status != SUCCESS && status != IN_PROGRESS).then_some((call, status))
            });
            // SAFETY: the group has been started. With an error in it, NCCL drops its collectives.
            let ended = unsafe { (functions.group_end)() };
            if failed.is_some() { SUCCESS } else { ended }
        })?;
        failed.map_or(Ok(()), |(call, status)| Err(functions.error(call, status)))
    }

    /// Makes a call, and waits until it is complete.
    fn call(
        &self,
        call: &'static str,
        function: impl FnOnce(Comm) -> c_int,
    ) -> Result<(), NcclError> {
        let status = {
            let handle = self.lock();
            function(handle.ok_or_else(|| self.aborted())?)
        };
        if status == IN_PROGRESS { self.wait_for(call) } else { self.functions.check(call, status) }
    }

    fn wait_for(&self, call: &'static str) -> Result<(), NcclError> {
        let start = Instant::now();
        let mut pause = FIRST_PAUSE;
        while self.progress(call)? == Progress::InProgress {
            if start.elapsed() >= self.limit {
                return Err(NcclError::Timeout { call, rank: self.rank, limit: self.limit });
            }
            thread::sleep(pause);
            pause = (2 * pause).min(LAST_PAUSE);
        }
        Ok(())
    }

    /// How far the communicator is; its error is that of `call`.
    fn progress(&self, call: &'static str) -> Result<Progress, NcclError> {
        let handle = self.lock();
        let mut state = SUCCESS;
        // SAFETY: the handle is live while the lock is held, and `state` outlives the call.
        let status = unsafe {
            (self.functions.comm_get_async_error)(handle.ok_or_else(|| self.aborted())?, &mut state)
        };
        self.functions.check("ncclCommGetAsyncError", status)?;
        if state == IN_PROGRESS {
            return Ok(Progress::InProgress);
        }
        self.functions.check(call, state).map(|()| Progress::Ready)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Comm>> {
        self.handle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn aborted(&self) -> NcclError {
        NcclError::Aborted { rank: self.rank }
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        // Destroying one that is in progress or in error is refused, and would free nothing.
        let ready = self.async_error() == Ok(Progress::Ready) && !thread::panicking();
        if let Some(handle) = self.lock().take() {
            let free = if ready { self.functions.comm_destroy } else { self.functions.comm_abort };
            // SAFETY: the handle is live, and nobody else has it any more. `drop` cannot report an error.
            let _ = unsafe { free(handle) };
        }
    }
}
