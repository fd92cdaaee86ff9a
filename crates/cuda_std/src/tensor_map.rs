//! Tensor maps: what a copy of a box of a tensor (TMA) has to know of the tensor and the box.

#[cfg(target_arch = "nvptx64")]
use core::arch::asm;

#[cfg(not(target_arch = "nvptx64"))]
mod spec;

#[cfg(not(target_arch = "nvptx64"))]
pub use spec::{Element, L2Promotion, Swizzle, TensorMapError, TensorMapSpec};

/// A tensor map: a kernel's parameter, [`EncodedTensorMap`] in its launcher.
///
/// The map itself is passed, 128 opaque bytes, as CUDA C's `const __grid_constant__ CUtensorMap`:
/// copies find it among the launch's parameters, and need not fetch it from global memory before
/// the first box. On the device this is its address there.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct TensorMap(
    #[cfg(target_arch = "nvptx64")] u64,
    #[cfg(not(target_arch = "nvptx64"))] EncodedTensorMap,
);

impl TensorMap {
    /// What the instructions take: its address.
    #[cfg(target_arch = "nvptx64")]
    #[inline(always)]
    pub(crate) fn operand(&self) -> u64 {
        self.0
    }

    /// What the emulator's instructions take: its bytes.
    #[cfg(not(target_arch = "nvptx64"))]
    pub(crate) fn operand(&self) -> &[u8; 128] {
        &self.0.0
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

/// The bytes of a map in an entry's list of parameters.
// rustc aligns no parameter to more than 16 bytes: `cuda_builder` writes the 64 that copies ask for.
#[cfg(target_arch = "nvptx64")]
#[doc(hidden)]
#[repr(C, align(16))]
pub struct TensorMapBytes([u64; 16]);

#[cfg(target_arch = "nvptx64")]
impl crate::param::Param for TensorMap {
    type Entry = TensorMapBytes;

    #[inline(always)]
    fn receive(_: TensorMapBytes, address: u64) -> Self {
        TensorMap(address)
    }
}

/// A tensor map as copies read it: encoded by the driver (`cuTensorMapEncodeTiled`), or by
/// [`TensorMapSpec::emulated`].
#[cfg(not(target_arch = "nvptx64"))]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct EncodedTensorMap(pub [u8; 128]);

#[cfg(not(target_arch = "nvptx64"))]
impl EncodedTensorMap {
    /// No map at all, for an optional operand that is absent.
    pub const NONE: Self = EncodedTensorMap([0; 128]);

    /// What the address of a map is a multiple of.
    const ALIGN: usize = 64;
}

#[cfg(not(target_arch = "nvptx64"))]
impl core::fmt::Debug for EncodedTensorMap {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(not(target_arch = "nvptx64"))]
impl crate::launch::KernelArg for TensorMap {
    type Host = EncodedTensorMap;

    fn push(launch: &mut crate::launch::Launch, value: EncodedTensorMap) {
        launch.push_aligned(&value.0, EncodedTensorMap::ALIGN);
    }

    fn emulated(value: EncodedTensorMap) -> Self {
        TensorMap(value)
    }
}
