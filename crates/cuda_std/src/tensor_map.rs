//! Tensor maps: what a copy of a box of a tensor (TMA) has to know of the tensor and the box.

#[cfg(target_arch = "nvptx64")]
use core::arch::asm;

#[cfg(not(target_arch = "nvptx64"))]
mod spec;

#[cfg(not(target_arch = "nvptx64"))]
pub use spec::{Element, Swizzle, TensorMapError, TensorMapSpec};

/// A tensor map: a kernel's parameter, [`TensorMapPtr`] in its launcher.
///
/// The map, 128 opaque bytes, lies in global memory and is passed by address: a parameter passed by
/// value would be copied to local memory, where no copy can find it.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct TensorMap(u64);

impl TensorMap {
    /// Address of the map.
    #[inline(always)]
    pub(crate) fn address(self) -> u64 {
        self.0
    }

    instruction! {
        /// Has the map come to the cache of the copies that use it: the first one need not wait for
        /// it.
        "prefetch.tensormap" => pub fn prefetch(self) {
            asm!("prefetch.tensormap [{}];", in(reg64) self.0, options(nostack, preserves_flags));
        } host {
            // The emulator has no caches.
        }
    }
}

/// Address of a tensor map in the memory of a device, a multiple of 64.
#[cfg(not(target_arch = "nvptx64"))]
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct TensorMapPtr(pub u64);

#[cfg(not(target_arch = "nvptx64"))]
impl core::fmt::Debug for TensorMapPtr {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

#[cfg(not(target_arch = "nvptx64"))]
impl crate::launch::KernelArg for TensorMap {
    type Host = TensorMapPtr;

    fn push(launch: &mut crate::launch::Launch, value: TensorMapPtr) {
        u64::push(launch, value.0);
    }

    fn emulated(value: TensorMapPtr) -> Self {
        TensorMap(value.0)
    }
}
