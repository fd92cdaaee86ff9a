//! The arguments of collectives, errors, and the end of a communicator.

use super::*;

const SUM: AllReduce =
    AllReduce { send: 0x100, receive: 0x200, count: 3, data_type: DataType::Bf16 };
const ROWS: AllGather =
    AllGather { send: 0x300, receive: 0x400, count: 5, data_type: DataType::F16 };

fn all_reduce(communicator: &Communicator) -> Result<(), NcclError> {
    // SAFETY: the stand-in accesses neither memory nor stream.
    unsafe { communicator.all_reduce(&SUM, STREAM) }
}

#[test]
fn collectives_pass_every_argument_in_its_place() {
    let (stub, nccl) = Stub::opened();
    let communicator = join(&stub, &nccl);
    assert_eq!((communicator.rank(), communicator.world()), (1, 4));
    all_reduce(&communicator).unwrap();
    let in_f32 = AllReduce { data_type: DataType::F32, ..SUM };
    // SAFETY: the stand-in accesses neither memory nor stream.
    unsafe {
        communicator.all_reduce(&in_f32, STREAM).unwrap();
        communicator.all_gather(&ROWS, STREAM).unwrap();
    }
    let calls = [
        "ncclAllReduce 0x100 0x200 3 9 0 0x2000",
        "ncclAllReduce 0x100 0x200 3 7 0 0x2000",
        "ncclAllGather 0x300 0x400 5 6 0x2000",
    ];
    assert_eq!(stub.calls(), calls);
}

#[test]
fn a_group_is_ended_even_if_one_of_it_fails() {
    let (stub, nccl) = Stub::opened();
    let communicator = join(&stub, &nccl);
    let both = [Collective::AllGather(ROWS), Collective::AllReduce(SUM)];
    // SAFETY: the stand-in accesses neither memory nor stream.
    let group = || unsafe { communicator.group(&both, STREAM) };
    let [gather, sum] =
        ["ncclAllGather 0x300 0x400 5 6 0x2000", "ncclAllReduce 0x100 0x200 3 9 0 0x2000"];
    group().unwrap();
    assert_eq!(stub.calls(), ["ncclGroupStart", gather, sum, "ncclGroupEnd"]);

    stub.set("ncclAllGather", 4);
    stub.set("ncclGroupEnd", 4);
    let error = group().unwrap_err();
    assert!(matches!(error, NcclError::Call { call: "ncclAllGather", status: 4, .. }), "{error}");
    assert_eq!(stub.calls(), ["ncclGroupStart", gather, "ncclGroupEnd"]);

    stub.set("ncclAllGather", 7);
    let error = group().unwrap_err();
    assert!(matches!(error, NcclError::Call { call: "ncclGroupEnd", status: 4, .. }), "{error}");
}

#[test]
fn a_call_that_fails_is_named_with_its_status_and_nccls_words() {
    let (stub, nccl) = Stub::opened();
    let communicator = join(&stub, &nccl);
    stub.set("ncclAllReduce", 4);
    let text = all_reduce(&communicator).unwrap_err().to_string();
    assert_eq!(text, "ncclAllReduce failed with NCCL status 4: invalid argument");
    // Enqueued by a thread of NCCL, which fails later.
    stub.set("ncclAllReduce", 7);
    stub.set("state", 6);
    stub.set("last error", 1);
    let text = all_reduce(&communicator).unwrap_err().to_string();
    assert_eq!(
        text,
        "ncclAllReduce failed with NCCL status 6: remote process exited or there was a network error: rank 1 has left"
    );
}

#[test]
fn what_cannot_be_joined_is_an_error_and_is_freed() {
    let (stub, nccl) = Stub::opened();
    let id = nccl.unique_id().unwrap();
    // SAFETY: the stand-in uses no context.
    let error = unsafe { nccl.communicator(&id, 4, 4, Duration::ZERO) }.unwrap_err();
    assert_eq!(error, NcclError::Rank { rank: 4, world: 4 });
    assert_eq!(stub.calls(), [""; 0]);

    stub.set("ncclCommInitRankConfig", 6);
    let error = join_within(&nccl, Duration::ZERO).unwrap_err();
    assert!(matches!(error, NcclError::Call { status: 6, .. }), "{error}");
    assert_eq!(stub.calls()[1..], ["ncclCommAbort"]);

    stub.set("no handle", 1);
    for status in [0, 6] {
        stub.set("ncclCommInitRankConfig", status);
        let error = join_within(&nccl, Duration::ZERO).unwrap_err();
        let is_status = |found| found == status;
        assert!(matches!(error, NcclError::Call { status, .. } if is_status(status)), "{error}");
        assert_eq!(stub.calls().len(), 1);
    }
}

#[test]
fn drop_destroys_what_is_ready_and_aborts_the_rest() {
    let (stub, nccl) = Stub::opened();
    for (state, end) in [(0, "ncclCommDestroy"), (6, "ncclCommAbort"), (7, "ncclCommAbort")] {
        let communicator = join(&stub, &nccl);
        stub.set("state", state);
        drop(communicator);
        assert_eq!(stub.calls(), [end], "state {state}");
    }
    stub.set("state", 0);
    let communicator = join(&stub, &nccl);
    let panics = std::thread::spawn(move || {
        let _communicator = communicator;
        // Without the message of a panic.
        std::panic::resume_unwind(Box::new(()));
    });
    assert!(panics.join().is_err());
    assert_eq!(stub.calls(), ["ncclCommAbort"]);
}

#[test]
fn close_reports_errors_and_frees_once() {
    let (stub, nccl) = Stub::opened();
    join(&stub, &nccl).close().unwrap();
    assert_eq!(stub.calls(), ["ncclCommFinalize", "ncclCommDestroy"]);

    let communicator = join(&stub, &nccl);
    stub.set("ncclCommFinalize", 7);
    stub.set("state", 6);
    let error = communicator.close().unwrap_err();
    assert!(matches!(error, NcclError::Call { call: "ncclCommFinalize", status: 6, .. }));
    assert_eq!(stub.calls(), ["ncclCommFinalize", "ncclCommAbort"]);
}
