//! The library's functions, with their types of `nccl.h`.

use std::ffi::{CStr, c_char, c_int, c_void};

use super::config::Config;
use super::find::Library;
use super::{NcclError, UniqueId, Version};

/// `ncclSuccess`.
pub(super) const SUCCESS: c_int = 0;
/// `ncclInProgress`.
pub(super) const IN_PROGRESS: c_int = 7;

macro_rules! functions {
    ($($field:ident = $name:literal: $type:ty;)*) => {
        /// The functions of NCCL that are used.
        #[derive(Clone, Copy, Debug)]
        pub(super) struct Functions {
            $(pub(super) $field: $type,)*
        }

        impl Functions {
            pub(super) fn find(library: &Library) -> Result<Self, NcclError> {
                Ok(Self {
                    // SAFETY: the type is that of the function in `nccl.h` of 2.27 to 2.32.
                    $($field: unsafe {
                        std::mem::transmute::<*mut c_void, $type>(library.function($name)?)
                    },)*
                })
            }
        }
    };
}

/// A `ncclComm_t`.
pub(super) type Comm = *mut c_void;

functions! {
    get_unique_id = c"ncclGetUniqueId": unsafe extern "C" fn(*mut UniqueId) -> c_int;
    // Handle, number of ranks, identifier, rank, configuration.
    comm_init_rank_config = c"ncclCommInitRankConfig":
        unsafe extern "C" fn(*mut Comm, c_int, UniqueId, c_int, *mut Config) -> c_int;
    comm_get_async_error = c"ncclCommGetAsyncError": unsafe extern "C" fn(Comm, *mut c_int) -> c_int;
    comm_abort = c"ncclCommAbort": unsafe extern "C" fn(Comm) -> c_int;
    comm_finalize = c"ncclCommFinalize": unsafe extern "C" fn(Comm) -> c_int;
    comm_destroy = c"ncclCommDestroy": unsafe extern "C" fn(Comm) -> c_int;
    // Operand, result, elements, type, operation, communicator, stream.
    all_reduce = c"ncclAllReduce": unsafe extern "C" fn(
        *const c_void, *mut c_void, usize, c_int, c_int, Comm, *mut c_void,
    ) -> c_int;
    // Operand, result, elements of the operand, type, communicator, stream.
    all_gather = c"ncclAllGather": unsafe extern "C" fn(
        *const c_void, *mut c_void, usize, c_int, Comm, *mut c_void,
    ) -> c_int;
    group_start = c"ncclGroupStart": unsafe extern "C" fn() -> c_int;
    group_end = c"ncclGroupEnd": unsafe extern "C" fn() -> c_int;
    get_error_string = c"ncclGetErrorString": unsafe extern "C" fn(c_int) -> *const c_char;
    get_last_error = c"ncclGetLastError": unsafe extern "C" fn(Comm) -> *const c_char;
}

impl Functions {
    /// An error for every status but success.
    pub(super) fn check(&self, call: &'static str, status: c_int) -> Result<(), NcclError> {
        if status == SUCCESS { Ok(()) } else { Err(self.error(call, status)) }
    }

    /// The error of a status, in NCCL's words.
    pub(super) fn error(&self, call: &'static str, status: c_int) -> NcclError {
        // SAFETY: both return null or a string that stays; the last error is the process's, its communicator unused.
        let [meaning, last] = unsafe {
            [(self.get_error_string)(status), (self.get_last_error)(std::ptr::null_mut())].map(
                |text| {
                    let text = (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy());
                    text.map(|text| text.trim().to_owned()).unwrap_or_default()
                },
            )
        };
        let reason = if last.is_empty() { meaning } else { format!("{meaning}: {last}") };
        NcclError::Call { call, status, reason }
    }
}

/// The version of the library, also of one that is too old for [`Functions::find`].
pub(super) fn version(library: &Library) -> Result<Version, NcclError> {
    type GetVersion = unsafe extern "C" fn(*mut c_int) -> c_int;
    let mut code: c_int = 0;
    // SAFETY: the type is that of `ncclGetVersion` in every release, and `code` outlives the call.
    let status = unsafe {
        let address = library.function(c"ncclGetVersion")?;
        let get_version = std::mem::transmute::<*mut c_void, GetVersion>(address);
        get_version(&mut code)
    };
    match u32::try_from(code) {
        Ok(code) if status == SUCCESS => Ok(Version::from_code(code)),
        _ => {
            let reason = "it does not tell its version".to_owned();
            Err(NcclError::Call { call: "ncclGetVersion", status, reason })
        }
    }
}
