//! Views of the shared memory of the cluster's other blocks (distributed shared memory).

use super::mapa;
use crate::Shared;
use crate::mbarrier::PeerMbarrier;
use core::marker::PhantomData;

#[cfg(target_arch = "nvptx64")]
use core::arch::asm;
#[cfg(not(target_arch = "nvptx64"))]
use simt::Space;

/// Shared memory of elements `T` in a block of the cluster, at an address of the `shared::cluster`
/// window.
#[repr(transparent)]
pub struct PeerShared<T> {
    address: u32,
    marker: PhantomData<*mut T>,
}

impl<T> Clone for PeerShared<T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for PeerShared<T> {}

/// Maps `shared` to the same memory in block `rank` of the cluster. CUDA C
/// `cluster.map_shared_rank`.
#[doc = ptx!("mapa.shared::cluster.u32")]
#[inline(always)]
#[track_caller]
pub fn map_shared<T: Copy>(shared: Shared<T>, rank: u32) -> PeerShared<T> {
    PeerShared { address: mapa(shared.element(0), rank), marker: PhantomData }
}

impl<T: Copy> PeerShared<T> {
    /// The view that starts `elems` elements on.
    #[inline(always)]
    #[must_use]
    pub fn offset(self, elems: u32) -> Self {
        PeerShared { address: self.element(elems), marker: PhantomData }
    }

    /// Address of element `index`.
    #[inline(always)]
    pub(crate) fn element(self, index: u32) -> u32 {
        self.address.wrapping_add(index.wrapping_mul(size_of::<T>() as u32))
    }
}

/// A number of 32 bits.
pub trait Word: Copy {
    /// The number with these bits.
    fn from_bits(bits: u32) -> Self;

    /// The bits of the number.
    fn to_bits(self) -> u32;
}

impl Word for u32 {
    #[inline(always)]
    fn from_bits(bits: u32) -> Self {
        bits
    }

    #[inline(always)]
    fn to_bits(self) -> u32 {
        self
    }
}

impl Word for f32 {
    #[inline(always)]
    fn from_bits(bits: u32) -> Self {
        f32::from_bits(bits)
    }

    #[inline(always)]
    fn to_bits(self) -> u32 {
        f32::to_bits(self)
    }
}

impl<T: Word> PeerShared<T> {
    /// Loads element `index`.
    #[doc = ptx!("ld.shared::cluster.b32")]
    ///
    /// # Safety
    /// 1. `index` is inside the memory of the view, and its block has not exited.
    /// 2. The element is written, and no thread writes it at the same time.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn get(self, index: u32) -> T {
        // SAFETY: the caller's promise.
        T::from_bits(unsafe { ld(self.element(index)) })
    }

    /// Loads elements `index .. index + 4`, 16-byte aligned.
    #[doc = ptx!("ld.shared::cluster.v4.b32")]
    ///
    /// # Safety
    /// 1. The elements are inside the memory of the view, and 16-byte aligned; its block has not
    ///    exited.
    /// 2. They are written, and no thread writes them at the same time.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn get_v4(self, index: u32) -> [T; 4] {
        // SAFETY: the caller's promise.
        unsafe { ld_v4(self.element(index)) }.map(T::from_bits)
    }

    /// Stores element `index`.
    #[doc = ptx!("st.shared::cluster.b32")]
    ///
    /// # Safety
    /// 1. `index` is inside the memory of the view, and its block has not exited.
    /// 2. No other thread reads or writes the element at the same time.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn set(self, index: u32, value: T) {
        // SAFETY: the caller's promise.
        unsafe { st(self.element(index), value.to_bits()) }
    }

    /// Stores elements `index .. index + 4`, 16-byte aligned.
    #[doc = ptx!("st.shared::cluster.v4.b32")]
    ///
    /// # Safety
    /// 1. The elements are inside the memory of the view, and 16-byte aligned; its block has not
    ///    exited.
    /// 2. No other thread reads or writes them at the same time.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn set_v4(self, index: u32, values: [T; 4]) {
        // SAFETY: the caller's promise.
        unsafe { st_v4(self.element(index), values.map(T::to_bits)) }
    }

    /// Stores element `index` asynchronously, completing on `mbarrier`, of the same block, with 4
    /// bytes. CUDA C `cuda::ptx::st_async`.
    #[doc = ptx!("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32")]
    ///
    /// # Safety
    /// 1. `index` is inside the memory of the view; its block has not exited.
    /// 2. No thread reads or writes the element until the phase of `mbarrier` that expects the
    ///    bytes has completed.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn set_async(self, index: u32, value: T, mbarrier: PeerMbarrier) {
        // SAFETY: the caller's promise.
        unsafe { st_async(self.element(index), value.to_bits(), mbarrier.address()) }
    }

    /// Stores elements `index .. index + 4`, 16-byte aligned, asynchronously, completing on
    /// `mbarrier`, of the same block, with 16 bytes. CUDA C `cuda::ptx::st_async`.
    #[doc = ptx!("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32")]
    ///
    /// # Safety
    /// 1. The elements are inside the memory of the view, and 16-byte aligned; its block has not
    ///    exited.
    /// 2. No thread reads or writes them until the phase of `mbarrier` that expects the bytes has
    ///    completed.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn set_async_v4(self, index: u32, values: [T; 4], mbarrier: PeerMbarrier) {
        let values = values.map(T::to_bits);
        // SAFETY: the caller's promise.
        unsafe { st_async_v4(self.element(index), values, mbarrier.address()) }
    }
}

instruction! {
    "ld.shared::cluster.b32" => unsafe fn ld(address: u32) -> u32 {
        let value;
        asm!("ld.shared::cluster.b32 {}, [{}];", out(reg32) value, in(reg32) address,
            options(readonly, nostack, preserves_flags));
        value
    } host {
        // SAFETY: any four bytes are a `u32`.
        unsafe { crate::emulated::load(Space::Cluster, u64::from(address), 4) }
    }

    "ld.shared::cluster.v4.b32" => unsafe fn ld_v4(address: u32) -> [u32; 4] {
        let (a, b, c, d);
        asm!("ld.shared::cluster.v4.b32 {{{}, {}, {}, {}}}, [{}];",
            out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg32) address,
            options(readonly, nostack, preserves_flags));
        [a, b, c, d]
    } host {
        // SAFETY: any 16 bytes are four words.
        unsafe { crate::emulated::load(Space::Cluster, u64::from(address), 16) }
    }

    "st.shared::cluster.b32" => unsafe fn st(address: u32, value: u32) {
        asm!("st.shared::cluster.b32 [{}], {};", in(reg32) address, in(reg32) value,
            options(nostack, preserves_flags));
    } host {
        // SAFETY: a `u32` is four bytes.
        unsafe { crate::emulated::store(Space::Cluster, u64::from(address), 4, value) }
    }

    "st.shared::cluster.v4.b32" => unsafe fn st_v4(address: u32, value: [u32; 4]) {
        asm!("st.shared::cluster.v4.b32 [{}], {{{}, {}, {}, {}}};", in(reg32) address,
            in(reg32) value[0], in(reg32) value[1], in(reg32) value[2], in(reg32) value[3],
            options(nostack, preserves_flags));
    } host {
        // SAFETY: four words are 16 bytes.
        unsafe { crate::emulated::store(Space::Cluster, u64::from(address), 16, value) }
    }

    "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32" =>
    unsafe fn st_async(address: u32, value: u32, mbarrier: u32) {
        asm!("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [{}], {}, [{}];",
            in(reg32) address, in(reg32) value, in(reg32) mbarrier,
            options(nostack, preserves_flags));
    } host {
        simt::device::store_async(address, &[value], mbarrier)
    }

    "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32" =>
    unsafe fn st_async_v4(address: u32, value: [u32; 4], mbarrier: u32) {
        asm!(
            "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 \
             [{}], {{{}, {}, {}, {}}}, [{}];",
            in(reg32) address, in(reg32) value[0], in(reg32) value[1], in(reg32) value[2],
            in(reg32) value[3], in(reg32) mbarrier, options(nostack, preserves_flags)
        );
    } host {
        simt::device::store_async(address, &value, mbarrier)
    }
}
