//! Waits, their limit, and aborting from another thread.

use super::*;
use std::thread;
use std::time::Instant;

const ZEROS: AllReduce = AllReduce { send: 0, receive: 0, count: 0, data_type: DataType::F32 };
const CALL: &str = "ncclAllReduce 0x0 0x0 0 7 0 0x2000";

fn all_reduce(communicator: &Communicator) -> Result<(), NcclError> {
    // SAFETY: the stand-in accesses neither memory nor stream.
    unsafe { communicator.all_reduce(&ZEROS, STREAM) }
}

#[test]
fn a_wait_ends_when_ranks_have_joined_and_at_its_limit() {
    let (stub, nccl) = Stub::opened();
    stub.set("ncclCommInitRankConfig", 7);
    stub.set("state", 7);
    let limit = Duration::from_millis(20);
    let communicator = join_within(&nccl, limit).unwrap();
    assert_eq!(communicator.async_error(), Ok(Progress::InProgress));
    let start = Instant::now();
    let error = communicator.wait().unwrap_err();
    assert!((limit..100 * limit).contains(&start.elapsed()), "{:?}", start.elapsed());
    let call = "ncclCommInitRankConfig";
    assert_eq!(error, NcclError::Timeout { call, rank: 1, limit });
    assert_eq!(
        error.to_string(),
        "ncclCommInitRankConfig of rank 1 took more than 0.02 s: abort all ranks"
    );
    drop(communicator);
    assert_eq!(stub.calls()[1..], ["ncclCommAbort"]);

    let communicator = join_within(&nccl, Duration::from_secs(60)).unwrap();
    thread::scope(|scope| {
        let rank = scope.spawn(|| communicator.wait());
        thread::sleep(limit);
        assert!(!rank.is_finished());
        stub.set("state", 0);
        assert_eq!(rank.join().unwrap(), Ok(()));
    });
    assert_eq!(communicator.async_error(), Ok(Progress::Ready));
}

#[test]
fn a_rank_that_waits_is_ended_by_another_thread() {
    let (stub, nccl) = Stub::opened();
    let communicator = join(&stub, &nccl);
    stub.set("ncclAllReduce", 7);
    stub.set("state", 7);
    thread::scope(|scope| {
        let rank = scope.spawn(|| all_reduce(&communicator));
        thread::sleep(Duration::from_millis(20));
        assert!(!rank.is_finished());
        communicator.abort().unwrap();
        assert_eq!(rank.join().unwrap(), Err(NcclError::Aborted { rank: 1 }));
    });
    // Nothing reaches NCCL afterwards.
    communicator.abort().unwrap();
    assert_eq!(all_reduce(&communicator), Err(NcclError::Aborted { rank: 1 }));
    assert_eq!(communicator.async_error(), Err(NcclError::Aborted { rank: 1 }));
    drop(communicator);
    assert_eq!(stub.calls(), [CALL, "ncclCommAbort"]);
}

#[test]
fn aborting_waits_for_the_call_in_flight() {
    let (stub, nccl) = Stub::opened();
    let communicator = join(&stub, &nccl);
    stub.set("ncclAllReduce ms", 100);
    thread::scope(|scope| {
        let rank = scope.spawn(|| all_reduce(&communicator));
        thread::sleep(Duration::from_millis(30));
        communicator.abort().unwrap();
        assert_eq!(rank.join().unwrap(), Ok(()));
    });
    assert_eq!(stub.calls(), [CALL, "ncclAllReduce returns", "ncclCommAbort"]);
}

/// NCCL's last abort waits for the graphs of all ranks, whose threads have to learn of it meanwhile.
#[test]
fn calls_return_while_another_thread_is_aborting() {
    let (stub, nccl) = Stub::opened();
    let communicator = join(&stub, &nccl);
    stub.set("ncclCommAbort ms", 500);
    stub.set("ncclCommAbort", 6);
    thread::scope(|scope| {
        let watcher = scope.spawn(|| communicator.abort());
        let start = Instant::now();
        while all_reduce(&communicator) != Err(NcclError::Aborted { rank: 1 }) {
            thread::sleep(Duration::from_millis(1));
        }
        assert!(!watcher.is_finished() && start.elapsed() < Duration::from_millis(400));
        let error = watcher.join().unwrap().unwrap_err();
        assert!(matches!(error, NcclError::Call { call: "ncclCommAbort", status: 6, .. }));
    });
    let calls = stub.calls();
    assert_eq!(calls[calls.len() - 2..], ["ncclCommAbort", "ncclCommAbort returns"]);
    assert!(!calls.iter().any(|call| call.contains("freed")), "{calls:?}");
}
