//! A stand-in for libnccl, compiled by the tests as a library of its own: it records calls, and returns what a test
//! sets. `--cfg lacks_abort` leaves a function out.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Mutex;
use std::time::Duration;

static CALLS: Mutex<Vec<String>> = Mutex::new(Vec::new());
static VALUES: Mutex<BTreeMap<String, c_int>> = Mutex::new(BTreeMap::new());
static LIVE: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

fn record(call: String) {
    CALLS.lock().unwrap().push(call);
}

fn value(name: &str) -> c_int {
    VALUES.lock().unwrap().get(name).copied().unwrap_or(0)
}

/// Records a call with a communicator, takes as long as the test says, and returns the status that it says.
fn call(name: &str, comm: *mut c_void, arguments: &str) -> c_int {
    if !LIVE.lock().unwrap().contains(&comm.addr()) {
        record(format!("{name} of a freed communicator"));
    }
    record(format!("{name}{arguments}"));
    let slow = value(&format!("{name} ms"));
    if slow != 0 {
        std::thread::sleep(Duration::from_millis(slow as u64));
        record(format!("{name} returns"));
    }
    value(name)
}

fn free(name: &str, comm: *mut c_void) -> c_int {
    let status = call(name, comm, "");
    LIVE.lock().unwrap().remove(&comm.addr());
    status
}

/// Sets the status of a function, or another value.
#[unsafe(no_mangle)]
unsafe extern "C" fn stub_set(name: *const c_char, value: c_int) {
    let name = unsafe { CStr::from_ptr(name) }.to_str().unwrap().to_owned();
    VALUES.lock().unwrap().insert(name, value);
}

/// Takes the calls so far, a line each: the number of bytes written.
#[unsafe(no_mangle)]
unsafe extern "C" fn stub_take_calls(text: *mut u8, capacity: usize) -> usize {
    let lines = std::mem::take(&mut *CALLS.lock().unwrap()).join("\n");
    assert!(lines.len() <= capacity);
    unsafe { text.copy_from_nonoverlapping(lines.as_ptr(), lines.len()) };
    lines.len()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> c_int {
    unsafe { *version = value("version") };
    value("ncclGetVersion")
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct Id([u8; 128]);

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclGetUniqueId(id: *mut Id) -> c_int {
    unsafe { *id = Id(std::array::from_fn(|i| i as u8 + 100)) };
    value("ncclGetUniqueId")
}

/// The words of the configuration, of which the defaults are left out: `offset=value`.
unsafe fn config_text(config: *const u8) -> String {
    let size = unsafe { *config.cast::<usize>() };
    let [magic, version] = [8, 12].map(|at| unsafe { *config.add(at).cast::<u32>() });
    let mut text = format!("{size} {magic:#x} {version}");
    for at in (16..size).step_by(4) {
        let word = unsafe { *config.add(at).cast::<i32>() };
        // Two pointers, of two words each, and the padding at the end of 2.32's.
        let default = if matches!(at, 32 | 36 | 48 | 52) { 0 } else { i32::MIN };
        if word != default && at != 116 {
            text += &format!(" {at}={word}");
        }
    }
    text
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommInitRankConfig(
    comm: *mut *mut c_void,
    world: c_int,
    id: Id,
    rank: c_int,
    config: *const u8,
) -> c_int {
    let ids = id.0.iter().enumerate().all(|(i, &byte)| byte == i as u8 + 100);
    let config = unsafe { config_text(config) };
    record(format!("ncclCommInitRankConfig {rank} of {world}, id {ids}, config {config}"));
    let handle = 0x1000 * (1 + rank as usize);
    if value("no handle") == 0 {
        LIVE.lock().unwrap().insert(handle);
        unsafe { *comm = std::ptr::without_provenance_mut(handle) };
    }
    value("ncclCommInitRankConfig")
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommGetAsyncError(comm: *mut c_void, state: *mut c_int) -> c_int {
    if !LIVE.lock().unwrap().contains(&comm.addr()) {
        record("ncclCommGetAsyncError of a freed communicator".to_owned());
    }
    unsafe { *state = value("state") };
    value("ncclCommGetAsyncError")
}

#[cfg(not(lacks_abort))]
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommAbort(comm: *mut c_void) -> c_int {
    free("ncclCommAbort", comm)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommFinalize(comm: *mut c_void) -> c_int {
    call("ncclCommFinalize", comm, "")
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommDestroy(comm: *mut c_void) -> c_int {
    free("ncclCommDestroy", comm)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclAllReduce(
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    data_type: c_int,
    operation: c_int,
    comm: *mut c_void,
    stream: *mut c_void,
) -> c_int {
    let [send, receive, stream] = [send.addr(), receive.addr(), stream.addr()];
    let text = format!(" {send:#x} {receive:#x} {count} {data_type} {operation} {stream:#x}");
    call("ncclAllReduce", comm, &text)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclAllGather(
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    data_type: c_int,
    comm: *mut c_void,
    stream: *mut c_void,
) -> c_int {
    let [send, receive, stream] = [send.addr(), receive.addr(), stream.addr()];
    let text = format!(" {send:#x} {receive:#x} {count} {data_type} {stream:#x}");
    call("ncclAllGather", comm, &text)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclGroupStart() -> c_int {
    record("ncclGroupStart".to_owned());
    value("ncclGroupStart")
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclGroupEnd() -> c_int {
    record("ncclGroupEnd".to_owned());
    value("ncclGroupEnd")
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclGetErrorString(status: c_int) -> *const c_char {
    match status {
        4 => c"invalid argument",
        6 => c"remote process exited or there was a network error",
        _ => c"another status",
    }
    .as_ptr()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclGetLastError(_: *mut c_void) -> *const c_char {
    if value("last error") == 0 { c"" } else { c"rank 1 has left\n" }.as_ptr()
}
