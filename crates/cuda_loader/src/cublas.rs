//! cuBLAS opened at run time: for comparison, and as an alternative to halfwarp's own kernels.

use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

use super::Version;

/// The library's names, newest first.
const LIBRARIES: [&CStr; 2] = [c"libcublas.so.13", c"libcublas.so.12"];

const OPERATION_NONE: c_int = 0;
const OPERATION_TRANSPOSE: c_int = 1;
/// `CUBLAS_GEMM_DEFAULT`: the library selects the algorithm.
const DEFAULT_ALGORITHM: c_int = -1;
const MAJOR_VERSION: c_int = 0;
const MINOR_VERSION: c_int = 1;

/// Type of a matrix's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum DataType {
    /// `CUDA_R_32F`.
    F32 = 0,
    /// `CUDA_R_16F`.
    F16 = 2,
    /// `CUDA_R_16BF`.
    Bf16 = 14,
}

/// Accumulator and scale type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum ComputeType {
    /// `CUBLAS_COMPUTE_16F`: for f16 operands and an f16 output only.
    F16 = 64,
    /// `CUBLAS_COMPUTE_32F`.
    F32 = 68,
}

/// Row-major `c[m, n] = a[m, k] * b[n, k]^T (+ c)`. Row strides are in elements and may exceed the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GemmEx {
    /// Rows of `a` and of `c`.
    pub m: i32,
    /// Rows of `b`, columns of `c`.
    pub n: i32,
    /// Columns of `a` and of `b`.
    pub k: i32,
    /// Address and row stride of `a`.
    pub a: (u64, i32),
    /// Address and row stride of `b`.
    pub b: (u64, i32),
    /// Address and row stride of `c`.
    pub c: (u64, i32),
    /// Type of `a` and `b`.
    pub operands: DataType,
    /// Type of `c`.
    pub output: DataType,
    /// Accumulator and scale type.
    pub compute: ComputeType,
    /// Whether `c` is accumulated into instead of overwritten.
    pub accumulate: bool,
}

/// Why a cuBLAS call is not possible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CublasError {
    /// No library was found, or none loads; the dynamic loader's reason for each.
    #[error(
        "no cuBLAS found ({0})\ninstall libcublas 12 or 13, or name its folder in LD_LIBRARY_PATH, or use halfwarp's own GEMM"
    )]
    Missing(String),
    /// The library lacks a function.
    #[error("libcublas has no {0}\ninstall libcublas 12 or 13, or use halfwarp's own GEMM")]
    NotCublas(&'static str),
    /// A call failed: its name, and the `cublasStatus_t`.
    #[error("{call} failed with cuBLAS status {status}")]
    Call {
        /// The function.
        call: &'static str,
        /// Status of the call.
        status: c_int,
    },
}

type Create = unsafe extern "C" fn(*mut *mut c_void) -> c_int;
type Destroy = unsafe extern "C" fn(*mut c_void) -> c_int;
type GetProperty = unsafe extern "C" fn(c_int, *mut c_int) -> c_int;
type SetStream = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;
type SetWorkspace = unsafe extern "C" fn(*mut c_void, *mut c_void, usize) -> c_int;
/// Handle, operations on A and B, m, n, k, alpha, A with type and stride, B likewise, beta, C likewise, compute type,
/// algorithm.
type Gemm = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    *const c_void,
    *const c_void,
    c_int,
    c_int,
    *const c_void,
    c_int,
    c_int,
    *const c_void,
    *mut c_void,
    c_int,
    c_int,
    c_int,
    c_int,
) -> c_int;

/// The loaded functions.
#[derive(Clone, Copy, Debug)]
struct Functions {
    create: Create,
    destroy: Destroy,
    get_property: GetProperty,
    set_stream: SetStream,
    set_workspace: SetWorkspace,
    gemm_ex: Gemm,
}

/// A cuBLAS handle, of the context that was current at its creation.
#[derive(Debug)]
pub struct Cublas {
    functions: Functions,
    handle: *mut c_void,
}

// SAFETY: a handle may be used by any thread, by one at a time.
unsafe impl Send for Cublas {}

impl Cublas {
    /// Workspace with which all of the library's algorithms are available on today's GPUs.
    pub const WORKSPACE_BYTES: usize = 32 << 20;

    /// A handle that works on `stream` (a `CUstream`) of the current context, with
    /// [`Cublas::WORKSPACE_BYTES`] at `workspace`.
    ///
    /// # Safety
    /// 1. A context is current in this thread; `stream` and `workspace` belong to it and outlive the handle.
    ///
    /// # Errors
    /// [`CublasError`].
    pub unsafe fn new(stream: *mut c_void, workspace: u64) -> Result<Self, CublasError> {
        // SAFETY: the caller's promise.
        unsafe { Self::with(load()?, stream, workspace) }
    }

    /// # Safety
    /// As [`Cublas::new`].
    unsafe fn with(
        functions: Functions,
        stream: *mut c_void,
        workspace: u64,
    ) -> Result<Self, CublasError> {
        let mut handle = ptr::null_mut();
        // SAFETY: `handle` outlives the call.
        check("cublasCreate", unsafe { (functions.create)(&mut handle) })?;
        let cublas = Cublas { functions, handle };
        // SAFETY: the handle is live, and the caller promised the stream.
        check("cublasSetStream", unsafe { (functions.set_stream)(handle, stream) })?;
        // cublasSetStream resets the workspace, so that the workspace is set after it.
        // SAFETY: the handle is live, and the caller promised the workspace.
        check("cublasSetWorkspace", unsafe {
            let workspace = workspace as usize as *mut c_void;
            (functions.set_workspace)(handle, workspace, Self::WORKSPACE_BYTES)
        })?;
        Ok(cublas)
    }

    /// Enqueues `cublasGemmEx` on the handle's stream.
    ///
    /// # Safety
    /// 1. The addresses are of device memory that holds the matrices until the stream has completed the work.
    ///
    /// # Errors
    /// [`CublasError::Call`].
    pub unsafe fn gemm_ex(&self, gemm: &GemmEx) -> Result<(), CublasError> {
        let &GemmEx { m, n, k, a, b, c, operands, output, compute, accumulate } = gemm;
        // alpha and beta have the compute type: 1 in f16 is 0x3c00.
        let one = if compute == ComputeType::F16 { 0x3c00 } else { 1f32.to_bits() };
        let beta = if accumulate { one } else { 0u32 };
        let pointer = |address: u64| address as usize as *mut c_void;
        // cuBLAS is column-major: row-major `c` is its `c^T[n, m] = b * a^T`, from `b^T[k, n]` and `a^T[k, m]`.
        // SAFETY: the handle is live, alpha and beta outlive the call, and the caller promised the rest.
        let status = unsafe {
            (self.functions.gemm_ex)(
                self.handle,
                OPERATION_TRANSPOSE,
                OPERATION_NONE,
                n,
                m,
                k,
                (&raw const one).cast(),
                pointer(b.0),
                operands as c_int,
                b.1,
                pointer(a.0),
                operands as c_int,
                a.1,
                (&raw const beta).cast(),
                pointer(c.0),
                output as c_int,
                c.1,
                compute as c_int,
                DEFAULT_ALGORITHM,
            )
        };
        check("cublasGemmEx", status)
    }
}

impl Drop for Cublas {
    fn drop(&mut self) {
        // SAFETY: the handle is live. `drop` cannot report an error.
        let _ = unsafe { (self.functions.destroy)(self.handle) };
    }
}

fn check(call: &'static str, status: c_int) -> Result<(), CublasError> {
    if status == 0 { Ok(()) } else { Err(CublasError::Call { call, status }) }
}

/// The version of the library, which this call loads.
///
/// # Errors
/// [`CublasError`].
pub fn version() -> Result<Version, CublasError> {
    version_of(&load()?)
}

fn version_of(functions: &Functions) -> Result<Version, CublasError> {
    let property = |which| {
        let mut value = 0;
        // SAFETY: `value` outlives the call.
        check("cublasGetProperty", unsafe { (functions.get_property)(which, &mut value) })?;
        Ok(value as u32)
    };
    Ok(Version { major: property(MAJOR_VERSION)?, minor: property(MINOR_VERSION)? })
}

/// Loads the library, once.
fn load() -> Result<Functions, CublasError> {
    static FUNCTIONS: OnceLock<Result<Functions, CublasError>> = OnceLock::new();
    FUNCTIONS.get_or_init(|| load_first(&LIBRARIES)).clone()
}

fn load_first(names: &[&CStr]) -> Result<Functions, CublasError> {
    let mut reasons = Vec::new();
    for name in names {
        // SAFETY: `name` ends in a zero byte. The library's constructors run; it is NVIDIA's, and stays loaded.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if !library.is_null() {
            return functions(library);
        }
        reasons.push(super::dl_error());
    }
    Err(CublasError::Missing(reasons.join("; ")))
}

fn functions(library: *mut c_void) -> Result<Functions, CublasError> {
    let find = |name: &'static CStr| {
        // SAFETY: `library` is an open handle and the name ends in a zero byte.
        let function = unsafe { libc::dlsym(library, name.as_ptr()) };
        let missing = || CublasError::NotCublas(name.to_str().unwrap_or_default());
        (!function.is_null()).then_some(function).ok_or_else(missing)
    };
    // SAFETY: the types are those of the functions since cuBLAS 11.
    unsafe {
        Ok(Functions {
            create: std::mem::transmute::<*mut c_void, Create>(find(c"cublasCreate_v2")?),
            destroy: std::mem::transmute::<*mut c_void, Destroy>(find(c"cublasDestroy_v2")?),
            get_property: std::mem::transmute::<*mut c_void, GetProperty>(find(
                c"cublasGetProperty",
            )?),
            set_stream: std::mem::transmute::<*mut c_void, SetStream>(find(c"cublasSetStream_v2")?),
            set_workspace: std::mem::transmute::<*mut c_void, SetWorkspace>(find(
                c"cublasSetWorkspace_v2",
            )?),
            gemm_ex: std::mem::transmute::<*mut c_void, Gemm>(find(c"cublasGemmEx")?),
        })
    }
}

#[cfg(test)]
mod tests;
