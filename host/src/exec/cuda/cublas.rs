//! cuBLAS on an executor's stream.

use cuda_loader::cublas::{self, Cublas, CublasError, GemmEx};
use cust::stream::Stream;

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Version;
use crate::exec::{ExecError, Gemm, GemmError};

/// Held while cuBLAS sets something up: it crashes where two threads of a process make handles, or
/// capture its kernels, at the same time (cuBLAS 13).
static SETUP: Mutex<()> = Mutex::new(());

/// Keeps other threads from setting cuBLAS up while it lives.
pub fn setup() -> MutexGuard<'static, ()> {
    SETUP.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The version of cuBLAS that is there.
///
/// # Errors
/// [`ExecError::Gemm`] if there is none.
pub fn cublas_version() -> Result<Version, ExecError> {
    Ok(cublas::version()?)
}

/// Bytes that cuBLAS needs for itself, with linear layers by `gemm`.
pub fn workspace_bytes(gemm: Gemm) -> usize {
    if gemm == Gemm::Halfwarp { 0 } else { Cublas::WORKSPACE_BYTES }
}

/// A handle of the current context on `stream`, if `gemm` is cuBLAS, with a workspace at this
/// address of the device.
///
/// # Safety
/// 1. The workspace has [`workspace_bytes`], and lives with `stream` as long as the handle.
pub unsafe fn open(
    gemm: Gemm,
    stream: &Stream,
    workspace: u64,
) -> Result<Option<Cublas>, ExecError> {
    if gemm == Gemm::Halfwarp {
        return Ok(None);
    }
    let _setup = setup();
    // SAFETY: a stream is of the context that is current, as its owner's promise is.
    Ok(Some(unsafe { Cublas::new(stream.as_inner().cast(), workspace) }?))
}

/// Starts a matrix product on the handle's stream, or captures it.
///
/// # Safety
/// 1. The matrices are in device memory that lives until the work is done, in a graph as long as
///    that.
pub unsafe fn add_gemm(cublas: &Cublas, gemm: &GemmEx) -> Result<(), ExecError> {
    // SAFETY: the caller's promise.
    Ok(unsafe { cublas.gemm_ex(gemm) }?)
}

impl From<CublasError> for ExecError {
    fn from(error: CublasError) -> Self {
        match error {
            CublasError::Call { call, status } => ExecError::Driver {
                call: call.to_owned(),
                error: format!("cuBLAS status {status}"),
            },
            missing => GemmError::Library(missing.to_string()).into(),
        }
    }
}
