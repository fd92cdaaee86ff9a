//! libcuda opened at run time.
//!
//! `cust` and `cust_raw` declare the functions of the CUDA driver API and expect the linker to find them. This crate
//! defines all of them as jumps through a table that [`load`] fills from `libcuda.so.1`. So a program builds on a
//! machine without CUDA and starts on one without a driver; until [`load`] succeeds, every function returns
//! `CUDA_ERROR_NOT_INITIALIZED`.
//!
//! [`cublas`] and [`nccl`] are opened likewise, where they are asked for; nothing needs them.
//!
//! Linux on x86-64 and aarch64.

pub mod cublas;
pub mod nccl;
mod overlap;
mod symbols;
mod tensor_map;
mod trampolines;

pub use overlap::{LaunchRefused, LaunchShape, OverlappingLauncher};
pub use tensor_map::{EncodeError, TiledTensorMap};

use std::ffi::{CStr, c_int, c_void};
use std::fmt;
use std::sync::OnceLock;

/// The driver's library.
const LIBRARY: &CStr = c"libcuda.so.1";

/// The oldest driver that accepts PTX 8.0, the version of the kernels.
const MIN_VERSION: Version = Version { major: 12, minor: 0 };

/// A version of CUDA, as a driver reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// 13 of 13.0.
    pub major: u32,
    /// 0 of 13.0.
    pub minor: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The loaded driver.
#[derive(Clone, Copy, Debug)]
pub struct Driver {
    version: Version,
    /// Newer than the functions that `cust` declares; `None` if the driver lacks it.
    encode_tiled: Option<tensor_map::EncodeTiled>,
    overlapping_launcher: Option<OverlappingLauncher>,
}

impl Driver {
    /// The newest CUDA version that the driver supports.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Launches with programmatic dependent launch (`cuLaunchKernelEx`); `None` before CUDA 12.3, whose graphs do not
    /// preserve it.
    pub fn overlapping_launcher(&self) -> Option<OverlappingLauncher> {
        self.overlapping_launcher
    }

    /// The opaque tensor map for TMA copies of boxes of this tensor (`cuTensorMapEncodeTiled`). A copy of it in a
    /// kernel's parameters, or in global memory, is aligned to 64 bytes.
    ///
    /// # Errors
    /// - [`EncodeError::Unsupported`] if the driver has no tensor maps;
    /// - [`EncodeError::Shape`] if the lengths of the slices do not agree;
    /// - [`EncodeError::Refused`] with the driver's error code.
    pub fn encode_tensor_map(&self, tensor: &TiledTensorMap<'_>) -> Result<[u8; 128], EncodeError> {
        tensor.encode(self.encode_tiled.ok_or(EncodeError::Unsupported)?)
    }
}

/// Why no driver can be called.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// The library is not found, or does not load.
    #[error("no NVIDIA driver found ({0}); install one, or use the CPU")]
    Missing(String),
    /// The library is not a CUDA driver.
    #[error("libcuda.so.1 is not a CUDA driver: {0}; reinstall the NVIDIA driver, or use the CPU")]
    NotADriver(String),
    /// The driver is older than the kernels require.
    #[error(
        "the NVIDIA driver is for CUDA {found}, the kernels need {MIN_VERSION} or newer; update it, or use the CPU"
    )]
    TooOld {
        /// The newest CUDA version that it supports.
        found: Version,
    },
}

/// Loads the driver, once; later calls, from any thread, return the first call's result.
///
/// # Errors
/// - [`LoadError::Missing`] on a machine without a driver;
/// - [`LoadError::NotADriver`] if the library lacks the function that reports its version;
/// - [`LoadError::TooOld`] for a driver before CUDA 12.0.
pub fn load() -> Result<&'static Driver, LoadError> {
    static DRIVER: OnceLock<Result<Driver, LoadError>> = OnceLock::new();
    DRIVER.get_or_init(|| load_library(LIBRARY)).as_ref().map_err(LoadError::clone)
}

fn load_library(path: &CStr) -> Result<Driver, LoadError> {
    // SAFETY: `path` ends in a zero byte. The library's constructors run; it is NVIDIA's, and stays loaded.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        return Err(LoadError::Missing(dl_error()));
    }
    // SAFETY: `library` is an open handle and the name ends in a zero byte.
    let find = |name: &CStr| unsafe { libc::dlsym(library, name.as_ptr()) };
    let version = version(find(c"cuDriverGetVersion"))?;
    if version < MIN_VERSION {
        return Err(LoadError::TooOld { found: version });
    }
    trampolines::fill(find);
    Ok(Driver {
        version,
        encode_tiled: tensor_map::function(find(c"cuTensorMapEncodeTiled")),
        overlapping_launcher: OverlappingLauncher::new(find(c"cuLaunchKernelEx"), version),
    })
}

/// Calls `cuDriverGetVersion`, which works before `cuInit`.
fn version(get_version: *mut c_void) -> Result<Version, LoadError> {
    if get_version.is_null() {
        return Err(LoadError::NotADriver(dl_error()));
    }
    let mut number: c_int = 0;
    // SAFETY: this is the signature of `cuDriverGetVersion` in every release, and `number` outlives the call.
    let code = unsafe {
        let get_version: extern "C" fn(*mut c_int) -> c_int = std::mem::transmute(get_version);
        get_version(&mut number)
    };
    match u32::try_from(number) {
        Ok(number) if code == 0 => Ok(Version { major: number / 1000, minor: number % 1000 / 10 }),
        _ => Err(LoadError::NotADriver(format!("cuDriverGetVersion returned {code}"))),
    }
}

/// The dynamic loader's last error in this thread.
fn dl_error() -> String {
    // SAFETY: `dlerror` returns null or a string that stays until the thread's next call of the loader.
    unsafe {
        let text = libc::dlerror();
        if text.is_null() {
            return "no reason given".to_owned();
        }
        CStr::from_ptr(text).to_string_lossy().into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_an_error_that_names_it() {
        let error = load_library(c"libcuda-is-not-here.so.1").unwrap_err();
        assert!(matches!(&error, LoadError::Missing(why) if why.contains("libcuda-is-not-here")));
        assert!(error.to_string().starts_with("no NVIDIA driver found"), "{error}");
    }

    #[test]
    fn another_library_is_not_a_driver() {
        let error = load_library(c"libm.so.6").unwrap_err();
        assert!(
            matches!(&error, LoadError::NotADriver(why) if why.contains("cuDriverGetVersion")),
            "{error}"
        );
    }

    extern "C" fn cuda_11_4(version: *mut c_int) -> c_int {
        // SAFETY: `version()` passes a variable of its own.
        unsafe { *version = 11_040 };
        0
    }

    extern "C" fn fails(_: *mut c_int) -> c_int {
        999
    }

    #[test]
    fn versions_are_read_and_compared() {
        let old = version(cuda_11_4 as *mut c_void).unwrap();
        assert_eq!((old.to_string().as_str(), old < MIN_VERSION), ("11.4", true));
        let error = version(fails as *mut c_void).unwrap_err();
        assert_eq!(error, LoadError::NotADriver("cuDriverGetVersion returned 999".to_owned()));
    }
}
