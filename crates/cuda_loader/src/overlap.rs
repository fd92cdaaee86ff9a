//! Programmatic dependent launch, by `cuLaunchKernelEx`, which `cust_raw` does not declare.

use std::ffi::{c_int, c_void};
use std::mem::{offset_of, size_of};

use crate::Version;

/// The first CUDA version whose graphs preserve programmatic dependent launch (programmatic edges).
const FIRST_VERSION: Version = Version { major: 12, minor: 3 };

/// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`.
const PROGRAMMATIC_STREAM_SERIALIZATION: c_int = 6;

/// Configuration, kernel, its parameters, and null.
type LaunchKernelEx = unsafe extern "C" fn(
    *const LaunchConfig,
    *mut c_void,
    *const *mut c_void,
    *const *mut c_void,
) -> c_int;

/// A `CUlaunchConfig`.
#[repr(C)]
struct LaunchConfig {
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    stream: *mut c_void,
    attributes: *const LaunchAttribute,
    num_attributes: u32,
}

/// A `CUlaunchAttribute` whose value is an `int`.
#[repr(C)]
struct LaunchAttribute {
    id: c_int,
    _pad: c_int,
    value: c_int,
    _rest_of_the_union: [c_int; 15],
}

// As in `cuda.h`, where the union of values is 64 bytes at a multiple of 8.
const _: () = {
    assert!(size_of::<LaunchConfig>() == 56 && offset_of!(LaunchConfig, grid) == 0);
    assert!(offset_of!(LaunchConfig, block) == 12 && offset_of!(LaunchConfig, shared_bytes) == 24);
    assert!(offset_of!(LaunchConfig, stream) == 32 && offset_of!(LaunchConfig, attributes) == 40);
    assert!(offset_of!(LaunchConfig, num_attributes) == 48);
    assert!(size_of::<LaunchAttribute>() == 72 && offset_of!(LaunchAttribute, id) == 0);
    assert!(offset_of!(LaunchAttribute, value) == 8);
};

/// Launches a kernel that may start before the previous kernel of its stream has ended (programmatic dependent
/// launch); also while the stream is captured.
#[derive(Clone, Copy, Debug)]
pub struct OverlappingLauncher(LaunchKernelEx);

/// Grid, block and dynamic shared memory of a launch.
#[derive(Clone, Copy, Debug)]
pub struct LaunchShape {
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block.
    pub shared_bytes: u32,
}

/// The driver's error code of a launch, a `CUresult`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cuLaunchKernelEx returned {0}")]
pub struct LaunchRefused(pub i32);

impl OverlappingLauncher {
    /// The launcher of the address from `dlsym`, if the driver is new enough.
    pub(crate) fn new(launch_kernel_ex: *mut c_void, version: Version) -> Option<Self> {
        if version < FIRST_VERSION {
            return None;
        }
        // SAFETY: a null pointer is `None`; otherwise the type is that of `cuLaunchKernelEx` since it came with
        // CUDA 11.8.
        unsafe { std::mem::transmute::<*mut c_void, Option<LaunchKernelEx>>(launch_kernel_ex) }
            .map(OverlappingLauncher)
    }

    /// Launches `kernel`, a `CUfunction`, in `stream`, a `CUstream`, whose previous operation is a kernel launch.
    ///
    /// # Errors
    /// [`LaunchRefused`].
    ///
    /// # Safety
    /// 1. Kernel and stream are live, and of the current context.
    /// 2. `parameters` point to values of the number and types that the kernel takes.
    /// 3. The kernel's own requirements hold; it waits for the previous launch itself, in every block.
    pub unsafe fn launch(
        self,
        kernel: *mut c_void,
        shape: LaunchShape,
        stream: *mut c_void,
        parameters: &[*mut c_void],
    ) -> Result<(), LaunchRefused> {
        let attribute = LaunchAttribute {
            id: PROGRAMMATIC_STREAM_SERIALIZATION,
            _pad: 0,
            value: 1,
            _rest_of_the_union: [0; 15],
        };
        let LaunchShape { grid, block, shared_bytes } = shape;
        let config = LaunchConfig {
            grid,
            block,
            shared_bytes,
            stream,
            attributes: &attribute,
            num_attributes: 1,
        };
        // SAFETY: the caller's promise; the driver copies configuration and parameters in this call.
        match unsafe { (self.0)(&config, kernel, parameters.as_ptr(), std::ptr::null()) } {
            0 => Ok(()),
            code => Err(LaunchRefused(code)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fake of the driver's function: checks every argument, reading the structures by `cuda.h`'s layout.
    unsafe extern "C" fn checks_arguments(
        config: *const LaunchConfig,
        kernel: *mut c_void,
        parameters: *const *mut c_void,
        extra: *const *mut c_void,
    ) -> c_int {
        // SAFETY: 56 bytes of a configuration, the attribute of 72 bytes that it points to, and one parameter.
        let (config, attribute, parameter) = unsafe {
            let config = config.cast::<[u64; 7]>().read();
            let attribute = std::ptr::with_exposed_provenance::<[u32; 18]>(config[5] as usize);
            (config, attribute.read(), (*parameters).cast::<u64>().read())
        };
        let wide = |low: u64, high: u64| low | high << 32;
        let sizes = [wide(1, 2), wide(3, 4), wide(5, 6)];
        let as_wanted = config[..3] == sizes
            && config[3] as u32 == 7
            && config[4] == 0x500
            && config[6] as u32 == 1
            && attribute[0] == 6
            && attribute[2..] == [&[1], &[0; 15][..]].concat()
            && kernel.addr() == 0x600
            && parameter == 0x700
            && extra.is_null();
        if as_wanted { 0 } else { 1 }
    }

    const AT_12_3: Version = Version { major: 12, minor: 3 };

    #[test]
    fn every_argument_is_passed_in_its_place() {
        let launcher = OverlappingLauncher::new(checks_arguments as *mut c_void, AT_12_3).unwrap();
        let mut parameter = 0x700u64;
        let parameters = [(&raw mut parameter).cast::<c_void>()];
        let [stream, kernel] = [0x500, 0x600].map(std::ptr::without_provenance_mut);
        let shape = LaunchShape { grid: [1, 2, 3], block: [4, 5, 6], shared_bytes: 7 };
        let launch = |shape| {
            // SAFETY: the fake takes one parameter of 8 bytes, and uses neither stream nor kernel.
            unsafe { launcher.launch(kernel, shape, stream, &parameters) }
        };
        assert_eq!(launch(shape), Ok(()));
        assert_eq!(launch(LaunchShape { shared_bytes: 8, ..shape }), Err(LaunchRefused(1)));
    }

    #[test]
    fn drivers_that_cannot_capture_it_have_no_launcher() {
        let new = |address, minor| OverlappingLauncher::new(address, Version { minor, ..AT_12_3 });
        assert!(new(checks_arguments as *mut c_void, 2).is_none());
        assert!(new(std::ptr::null_mut(), 3).is_none());
        assert!(new(checks_arguments as *mut c_void, 8).is_some());
    }
}
