//! Tensor maps: the descriptors of TMA copies, of a tensor and the box that one copy moves.

#[cfg(target_arch = "nvptx64")]
use core::arch::asm;

#[cfg(not(target_arch = "nvptx64"))]
mod spec;

#[cfg(not(target_arch = "nvptx64"))]
pub use spec::{Element, L2Promotion, Swizzle, TensorMapError, TensorMapSpec};

/// A tensor map: a kernel's parameter, [`EncodedTensorMap`] in its launcher.
///
/// The 128 opaque bytes are passed by value, as CUDA C's `const __grid_constant__ CUtensorMap`:
/// copies read them among the launch's parameters, without a fetch from global memory. On the
/// device this type is their address.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct TensorMap(
    #[cfg(target_arch = "nvptx64")] u64,
    #[cfg(not(target_arch = "nvptx64"))] EncodedTensorMap,
);

impl TensorMap {
    /// The instructions' operand: its address.
    #[cfg(target_arch = "nvptx64")]
    #[inline(always)]
    pub(crate) fn operand(&self) -> u64 {
        self.0
    }

    /// The emulator's operand: its bytes.
    #[cfg(not(target_arch = "nvptx64"))]
    pub(crate) fn operand(&self) -> &[u8; 128] {
        &self.0.0
    }

    instruction! {
        /// Prefetches the map into the descriptor cache, so that the first copy does not wait for
        /// it.
        "prefetch.tensormap" => pub fn prefetch(self) {
            asm!("prefetch.tensormap [{}];", in(reg64) self.0, options(nostack, preserves_flags));
        } host {
            // The emulator has no caches.
        }
    }
}

/// The bytes of a map in an entry's parameter list.
// rustc aligns parameters to at most 16 bytes: `cuda_builder` raises it to the 64 that copies
// require.
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

/// An encoded tensor map: by the driver (`cuTensorMapEncodeTiled`), or by
/// [`TensorMapSpec::emulated`].
#[cfg(not(target_arch = "nvptx64"))]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct EncodedTensorMap(pub [u8; 128]);

#[cfg(not(target_arch = "nvptx64"))]
impl EncodedTensorMap {
    /// No map, for an absent optional operand.
    pub const NONE: Self = EncodedTensorMap([0; 128]);

    /// Alignment of a map's address.
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

    fn read(args: &mut crate::launch::ArgReader<'_>) -> Self {
        TensorMap(EncodedTensorMap(args.bytes(EncodedTensorMap::ALIGN)))
    }
}
