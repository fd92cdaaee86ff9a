//! Views of shared memory.

use core::marker::PhantomData;

use crate::element::{Element, assert_one_access};
#[cfg(target_arch = "nvptx64")]
use {
    crate::element::{load_vec, reinterpret, store_vec},
    core::arch::asm,
};
#[cfg(not(target_arch = "nvptx64"))]
use {crate::emulated, simt::Space};

pub use cuda_std_macros::shared_array;

/// Shared memory of elements `T`, at a 32-bit address of the block's shared window.
#[repr(transparent)]
pub struct Shared<T> {
    address: u32,
    marker: PhantomData<*mut T>,
}

impl<T> Clone for Shared<T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Shared<T> {}

impl<T> Shared<T> {
    /// The view at `address` of the shared window.
    ///
    /// # Safety
    /// 1. `address` is aligned for `T` and inside the block's shared memory.
    #[inline(always)]
    pub unsafe fn from_address(address: u32) -> Self {
        Shared { address, marker: PhantomData }
    }

    /// The address in the shared window.
    #[inline(always)]
    pub fn address(self) -> u32 {
        self.address
    }

    /// The same memory as elements `U`; the address must be aligned for them.
    #[inline(always)]
    #[must_use]
    pub fn cast<U>(self) -> Shared<U> {
        Shared { address: self.address, marker: PhantomData }
    }

    /// The view that starts `elems` elements on.
    #[inline(always)]
    #[must_use]
    pub fn offset(self, elems: u32) -> Self {
        Shared { address: self.element(elems), marker: PhantomData }
    }

    /// The view at this address xor `elems` elements: addresses a chunk of a swizzled tile that is
    /// aligned to a power of two.
    #[inline(always)]
    #[must_use]
    pub fn xor(self, elems: u32) -> Self {
        Shared { address: self.address ^ (elems * size_of::<T>() as u32), marker: PhantomData }
    }

    /// Address of element `index`.
    #[inline(always)]
    pub(crate) fn element(self, index: u32) -> u32 {
        self.address.wrapping_add(index.wrapping_mul(size_of::<T>() as u32))
    }
}

impl<T: Element> Shared<T> {
    /// Loads element `index`.
    #[doc = ptx!("ld.shared")]
    ///
    /// # Safety
    /// 1. `index` is inside the memory of the view.
    /// 2. The element is written, and no thread writes it at the same time.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn get(self, index: u32) -> T {
        // SAFETY: the caller's promise.
        let [value] = unsafe { self.get_vec(index) };
        value
    }

    /// Loads elements `index .. index + N`, 1 to 16 bytes.
    #[doc = ptx!("ld.shared" as "ld.shared{.v2, .v4}.b32")]
    ///
    /// # Safety
    /// 1. The elements are inside the memory of the view, and aligned to their size
    ///    together.
    /// 2. They are written, and no thread writes them at the same time.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn get_vec<const N: usize>(self, index: u32) -> [T; N] {
        // SAFETY: the caller's promise.
        unsafe { ld::<T, 0, N>(self.element(index)) }
    }

    /// Loads elements `INDEX .. INDEX + N`; the index is an immediate of the instruction and takes
    /// no register.
    #[doc = ptx!("ld.shared" as "ld.shared{.v2, .v4}.b32")]
    ///
    /// # Safety
    /// As [`Shared::get_vec`].
    #[inline(always)]
    #[track_caller]
    pub unsafe fn get_vec_at<const INDEX: u32, const N: usize>(self) -> [T; N] {
        // SAFETY: the caller's promise.
        unsafe { ld::<T, INDEX, N>(self.address) }
    }

    /// Stores element `index`.
    #[doc = ptx!("st.shared")]
    ///
    /// # Safety
    /// 1. `index` is inside the memory of the view.
    /// 2. No other thread reads or writes the element at the same time.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn set(self, index: u32, value: T) {
        // SAFETY: the caller's promise.
        unsafe { self.set_vec(index, [value]) }
    }

    /// Stores elements `index .. index + N`, 1 to 16 bytes.
    #[doc = ptx!("st.shared" as "st.shared{.v2, .v4}.b32")]
    ///
    /// # Safety
    /// 1. The elements are inside the memory of the view, and aligned to their size
    ///    together.
    /// 2. No other thread reads or writes them at the same time.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn set_vec<const N: usize>(self, index: u32, values: [T; N]) {
        // SAFETY: the caller's promise.
        unsafe { st(self.element(index), values) }
    }
}

/// One load of `N` elements, `INDEX` elements after `address`.
#[inline(always)]
#[track_caller]
unsafe fn ld<T: Element, const INDEX: u32, const N: usize>(address: u32) -> [T; N] {
    const { assert_one_access::<T, N>() };
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the caller's promise.
    return unsafe {
        load_vec!(
            "ld.shared",
            [reg32 address, INDEX as usize * size_of::<T>()],
            readonly, nostack, preserves_flags
        )
    };
    #[cfg(not(target_arch = "nvptx64"))]
    {
        let address = address.wrapping_add(INDEX.wrapping_mul(size_of::<T>() as u32));
        // SAFETY: any bits are elements.
        unsafe { emulated::load(Space::Shared, u64::from(address), size_of::<[T; N]>()) }
    }
}

/// One store of `N` elements.
#[inline(always)]
#[track_caller]
unsafe fn st<T: Element, const N: usize>(address: u32, values: [T; N]) {
    const { assert_one_access::<T, N>() };
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the caller's promise.
    unsafe {
        store_vec!("st.shared", [reg32 address], values)
    };
    #[cfg(not(target_arch = "nvptx64"))]
    // SAFETY: elements have no padding.
    unsafe {
        emulated::store(Space::Shared, u64::from(address), size_of::<[T; N]>(), values)
    }
}

#[cfg(target_arch = "nvptx64")]
core::arch::global_asm!(".extern .shared .align 1024 .b8 halfwarp_dynamic_shared[];");

/// The block's dynamic shared memory, aligned to 1024 bytes. Its size is an argument of the launch;
/// it follows the [`shared_array!`]s. CUDA C `extern __shared__`.
#[doc = ptx!("mov.u32 %r, halfwarp_dynamic_shared")]
///
/// # Safety
/// 1. The kernel stays within the size that its launch sets.
#[inline(always)]
#[track_caller]
pub unsafe fn dynamic_shared_mem<T>() -> Shared<T> {
    const { assert!(align_of::<T>() <= 1024, "dynamic shared memory is aligned to 1024 bytes") };
    // SAFETY: the address of the block's dynamic shared memory.
    unsafe { Shared::from_address(dynamic_shared_address()) }
}

/// The [`shared_array!`] of this module and number, in the emulator's shared memory.
#[cfg(not(target_arch = "nvptx64"))]
#[doc(hidden)]
#[track_caller]
pub unsafe fn static_shared_mem<T>(module: &'static str, number: usize, len: usize) -> Shared<T> {
    let bytes = len * size_of::<T>();
    let address = simt::device::static_shared((module, number), bytes, align_of::<T>());
    Shared { address, marker: PhantomData }
}

instruction! {
    "mov.u32 %r, halfwarp_dynamic_shared" => fn dynamic_shared_address() -> u32 {
        let address;
        asm!("mov.u32 {}, halfwarp_dynamic_shared;", out(reg32) address,
            options(pure, nomem, nostack, preserves_flags));
        address
    } host {
        simt::device::dynamic_shared()
    }
}
