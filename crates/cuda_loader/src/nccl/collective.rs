//! The collectives that halfwarp uses.

use std::ffi::{c_int, c_void};

use super::functions::{Comm, Functions};

/// `ncclSum`.
const SUM: c_int = 0;

/// Type of the elements of a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum DataType {
    /// `ncclFloat16`.
    F16 = 6,
    /// `ncclFloat32`.
    F32 = 7,
    /// `ncclBfloat16`.
    Bf16 = 9,
}

/// `receive[i] = sum over ranks of send[i]`, in every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllReduce {
    /// Address of `[count]` elements.
    pub send: u64,
    /// Address of `[count]` elements; `send` itself for a sum in place.
    pub receive: u64,
    /// Number of elements.
    pub count: usize,
    /// Type of the elements.
    pub data_type: DataType,
}

/// `receive[r, i] = send[i] of rank r`, in every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllGather {
    /// Address of `[count]` elements.
    pub send: u64,
    /// Address of `[world, count]` elements; in place if `send` is this rank's row of it.
    pub receive: u64,
    /// Elements of a rank.
    pub count: usize,
    /// Type of the elements.
    pub data_type: DataType,
}

/// A collective of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collective {
    /// A sum over ranks.
    AllReduce(AllReduce),
    /// The rows of all ranks.
    AllGather(AllGather),
}

/// Enqueues a collective: the function's name, and its status.
///
/// # Safety
/// 1. The handle is live.
/// 2. What [`super::Communicator::all_reduce`] or [`super::Communicator::all_gather`] requires.
pub(super) unsafe fn enqueue(
    functions: &Functions,
    handle: Comm,
    collective: &Collective,
    stream: *mut c_void,
) -> (&'static str, c_int) {
    let pointer = |address: u64| address as usize as *mut c_void;
    match *collective {
        Collective::AllReduce(AllReduce { send, receive, count, data_type }) => {
            let [send, receive] = [send, receive].map(pointer);
            // SAFETY: the caller's promise.
            let status = unsafe {
                let data_type = data_type as c_int;
                (functions.all_reduce)(send, receive, count, data_type, SUM, handle, stream)
            };
            ("ncclAllReduce", status)
        }
        Collective::AllGather(AllGather { send, receive, count, data_type }) => {
            let [send, receive] = [send, receive].map(pointer);
            // SAFETY: the caller's promise.
            let status = unsafe {
                (functions.all_gather)(send, receive, count, data_type as c_int, handle, stream)
            };
            ("ncclAllGather", status)
        }
    }
}
