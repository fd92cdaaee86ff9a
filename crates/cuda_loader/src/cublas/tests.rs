//! Errors of loading, and the arguments that a fake library receives.

use super::*;
use std::cell::RefCell;

#[test]
fn the_error_for_a_missing_library_names_the_candidates() {
    let error = load_first(&[c"libcublas-is-not-here.so.2", c"libcublas-is-not-here.so.1"]);
    let error = error.unwrap_err().to_string();
    assert!(error.starts_with("no cuBLAS found (libcublas-is-not-here.so.2: "), "{error}");
    assert!(error.contains("; libcublas-is-not-here.so.1: "), "{error}");
}

#[test]
fn another_library_is_not_cublas() {
    let error = load_first(&[c"libm.so.6"]).unwrap_err();
    assert_eq!(error, CublasError::NotCublas("cublasCreate_v2"));
}

const HANDLE: usize = 0x1000;
const STREAM: usize = 0x2000;
const WORKSPACE: u64 = 0x3000;

/// A call that the fake library received.
#[derive(Clone, Debug, PartialEq)]
enum Call {
    Create,
    SetStream(usize),
    SetWorkspace(usize, usize),
    Gemm {
        operations: [c_int; 2],
        sizes: [c_int; 3],
        factors: [u32; 2],
        /// Address, type and stride.
        matrices: [(usize, c_int, c_int); 3],
        compute: c_int,
        algorithm: c_int,
    },
    Destroy,
}

thread_local! {
    static CALLS: RefCell<Vec<Call>> = const { RefCell::new(Vec::new()) };
    /// Statuses of `set_stream` and of `gemm_ex`.
    static STATUSES: RefCell<[c_int; 2]> = const { RefCell::new([0; 2]) };
}

fn record(call: Call) {
    CALLS.with_borrow_mut(|calls| calls.push(call));
}

fn calls() -> Vec<Call> {
    CALLS.take()
}

unsafe extern "C" fn create(handle: *mut *mut c_void) -> c_int {
    record(Call::Create);
    // SAFETY: `Cublas::with` passes a variable of its own.
    unsafe { *handle = ptr::without_provenance_mut(HANDLE) };
    0
}

unsafe extern "C" fn destroy(handle: *mut c_void) -> c_int {
    assert_eq!(handle.addr(), HANDLE);
    record(Call::Destroy);
    0
}

unsafe extern "C" fn get_property(which: c_int, value: *mut c_int) -> c_int {
    // SAFETY: `version_of` passes a variable of its own.
    unsafe { *value = [13, 1][which as usize] };
    0
}

unsafe extern "C" fn set_stream(handle: *mut c_void, stream: *mut c_void) -> c_int {
    assert_eq!(handle.addr(), HANDLE);
    record(Call::SetStream(stream.addr()));
    STATUSES.with_borrow(|statuses| statuses[0])
}

unsafe extern "C" fn set_workspace(
    handle: *mut c_void,
    workspace: *mut c_void,
    bytes: usize,
) -> c_int {
    assert_eq!(handle.addr(), HANDLE);
    record(Call::SetWorkspace(workspace.addr(), bytes));
    0
}

#[allow(clippy::too_many_arguments)]
unsafe extern "C" fn gemm_ex(
    handle: *mut c_void,
    operation_a: c_int,
    operation_b: c_int,
    m: c_int,
    n: c_int,
    k: c_int,
    alpha: *const c_void,
    a: *const c_void,
    a_type: c_int,
    a_stride: c_int,
    b: *const c_void,
    b_type: c_int,
    b_stride: c_int,
    beta: *const c_void,
    c: *mut c_void,
    c_type: c_int,
    c_stride: c_int,
    compute: c_int,
    algorithm: c_int,
) -> c_int {
    assert_eq!(handle.addr(), HANDLE);
    record(Call::Gemm {
        operations: [operation_a, operation_b],
        sizes: [m, n, k],
        // SAFETY: `gemm_ex` passes two words.
        factors: unsafe { [*alpha.cast::<u32>(), *beta.cast::<u32>()] },
        matrices: [
            (a.addr(), a_type, a_stride),
            (b.addr(), b_type, b_stride),
            (c.addr(), c_type, c_stride),
        ],
        compute,
        algorithm,
    });
    STATUSES.with_borrow(|statuses| statuses[1])
}

const FAKE: Functions =
    Functions { create, destroy, get_property, set_stream, set_workspace, gemm_ex };

fn open() -> Result<Cublas, CublasError> {
    // SAFETY: the fake accesses neither.
    unsafe { Cublas::with(FAKE, ptr::without_provenance_mut(STREAM), WORKSPACE) }
}

const GEMM: GemmEx = GemmEx {
    m: 2,
    n: 3,
    k: 4,
    a: (64, 5),
    b: (128, 6),
    c: (256, 7),
    operands: DataType::F16,
    output: DataType::F16,
    compute: ComputeType::F16,
    accumulate: true,
};

#[test]
fn the_workspace_is_set_after_the_stream() {
    drop(open().unwrap());
    let workspace = Call::SetWorkspace(WORKSPACE as usize, 32 << 20);
    assert_eq!(calls(), [Call::Create, Call::SetStream(STREAM), workspace, Call::Destroy]);
}

#[test]
fn a_handle_that_cannot_be_set_up_is_destroyed() {
    STATUSES.with_borrow_mut(|statuses| statuses[0] = 1);
    let error = open().unwrap_err();
    assert_eq!(error, CublasError::Call { call: "cublasSetStream", status: 1 });
    assert_eq!(calls(), [Call::Create, Call::SetStream(STREAM), Call::Destroy]);
}

#[test]
fn row_major_matrices_are_the_transposed_column_major_ones() {
    let cublas = open().unwrap();
    let of = |gemm: &GemmEx| {
        calls();
        // SAFETY: the fake accesses no matrix.
        unsafe { cublas.gemm_ex(gemm) }.unwrap();
        calls()
    };
    let in_f16 = Call::Gemm {
        operations: [OPERATION_TRANSPOSE, OPERATION_NONE],
        sizes: [3, 2, 4],
        factors: [0x3c00; 2],
        matrices: [(128, 2, 6), (64, 2, 5), (256, 2, 7)],
        compute: 64,
        algorithm: -1,
    };
    assert_eq!(of(&GEMM), std::slice::from_ref(&in_f16));

    let [bf16, f32] = [DataType::Bf16, DataType::F32];
    let gemm = GemmEx {
        operands: bf16,
        output: f32,
        compute: ComputeType::F32,
        accumulate: false,
        ..GEMM
    };
    let Call::Gemm { operations, sizes, algorithm, .. } = in_f16 else { unreachable!() };
    let in_f32 = Call::Gemm {
        operations,
        sizes,
        factors: [0x3f80_0000, 0],
        matrices: [(128, 14, 6), (64, 14, 5), (256, 0, 7)],
        compute: 68,
        algorithm,
    };
    assert_eq!(of(&gemm), [in_f32]);
}

#[test]
fn a_call_that_fails_is_named_with_its_status() {
    let cublas = open().unwrap();
    STATUSES.with_borrow_mut(|statuses| statuses[1] = 15);
    // SAFETY: the fake accesses no matrix.
    let error = unsafe { cublas.gemm_ex(&GEMM) }.unwrap_err();
    assert_eq!(error.to_string(), "cublasGemmEx failed with cuBLAS status 15");
}

#[test]
fn the_version_is_that_of_the_library() {
    assert_eq!(version_of(&FAKE).unwrap().to_string(), "13.1");
}
