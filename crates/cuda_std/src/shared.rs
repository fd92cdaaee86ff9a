//! Views of shared memory.

use core::marker::PhantomData;

#[cfg(target_arch = "nvptx64")]
use core::arch::asm;
#[cfg(not(target_arch = "nvptx64"))]
use simt::Space;

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

impl<T: Copy> Shared<T> {
    /// The view at `address` of the shared window.
    ///
    /// # Safety
    /// 1. `address` is aligned for `T` and inside the block's shared memory.
    #[inline(always)]
    pub unsafe fn from_address(address: u32) -> Self {
        Shared { address, marker: PhantomData }
    }

    /// The view that starts `elems` elements on.
    #[inline(always)]
    #[must_use]
    pub fn offset(self, elems: u32) -> Self {
        Shared { address: self.element(elems), marker: PhantomData }
    }

    /// The view whose start has the bits of `elems` flipped: how a swizzled tile, aligned to a
    /// power of two, is walked.
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

impl Shared<f32> {
    /// Element `index`.
    ///
    /// # Safety
    /// 1. `index` is inside the memory that the view stands for.
    /// 2. The element is written, and no thread writes it at the same time.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn get(self, index: u32) -> f32 {
        // SAFETY: the caller's promise.
        unsafe { f32::from_bits(ld(self.element(index))) }
    }

    /// Elements `index .. index + 4`, 16-byte aligned.
    ///
    /// # Safety
    /// 1. The elements are inside the memory that the view stands for, and 16-byte aligned.
    /// 2. They are written, and no thread writes them at the same time.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn get_v4(self, index: u32) -> [f32; 4] {
        // SAFETY: the caller's promise.
        unsafe { ld_v4(self.element(index)) }
    }

    /// Elements `INDEX .. INDEX + 4`, 16-byte aligned, the index part of the instruction: it takes
    /// no register.
    ///
    /// # Safety
    /// As [`Shared::<f32>::get_v4`].
    #[inline(always)]
    #[track_caller]
    pub unsafe fn get_v4_at<const INDEX: u32>(self) -> [f32; 4] {
        // SAFETY: the caller's promise.
        unsafe { ld_v4_at::<INDEX>(self.address) }
    }

    /// Writes element `index`.
    ///
    /// # Safety
    /// 1. `index` is inside the memory that the view stands for.
    /// 2. No other thread reads or writes the element at the same time.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn set(self, index: u32, value: f32) {
        // SAFETY: the caller's promise.
        unsafe { st(self.element(index), value.to_bits()) }
    }
}

impl Shared<u32> {
    /// Element `index`.
    ///
    /// # Safety
    /// As [`Shared::<f32>::get`].
    #[inline(always)]
    #[track_caller]
    pub unsafe fn get(self, index: u32) -> u32 {
        // SAFETY: the caller's promise.
        unsafe { ld(self.element(index)) }
    }

    /// Writes element `index`.
    ///
    /// # Safety
    /// As [`Shared::<f32>::set`].
    #[inline(always)]
    #[track_caller]
    pub unsafe fn set(self, index: u32, value: u32) {
        // SAFETY: the caller's promise.
        unsafe { st(self.element(index), value) }
    }
}

#[cfg(target_arch = "nvptx64")]
core::arch::global_asm!(".extern .shared .align 1024 .b8 halfwarp_dynamic_shared[];");

/// The block's dynamic shared memory, aligned to 1024 bytes: as many bytes as the launch asked for,
/// behind the [`shared_array!`]s. CUDA C `extern __shared__`.
///
/// # Safety
/// 1. The kernel stays inside the bytes that its launch asks for.
#[inline(always)]
#[track_caller]
pub unsafe fn dynamic_shared_mem<T: Copy>() -> Shared<T> {
    const { assert!(align_of::<T>() <= 1024, "dynamic shared memory is aligned to 1024 bytes") };
    // SAFETY: the start of the block's own dynamic shared memory.
    unsafe { Shared::from_address(dynamic_shared_address()) }
}

/// The [`shared_array!`] of this module and number, where the emulator owns shared memory.
#[cfg(not(target_arch = "nvptx64"))]
#[doc(hidden)]
#[track_caller]
pub unsafe fn static_shared_mem<T: Copy>(
    module: &'static str,
    number: usize,
    len: usize,
) -> Shared<T> {
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

    "ld.shared.b32" => unsafe fn ld(address: u32) -> u32 {
        let value;
        asm!("ld.shared.b32 {}, [{}];", out(reg32) value, in(reg32) address,
            options(readonly, nostack, preserves_flags));
        value
    } host {
        // SAFETY: any four bytes are a `u32`.
        unsafe { crate::emulated::load(Space::Shared, u64::from(address), 4) }
    }

    "ld.shared.v4.f32" => unsafe fn ld_v4(address: u32) -> [f32; 4] {
        let (a, b, c, d);
        asm!("ld.shared.v4.f32 {{{}, {}, {}, {}}}, [{}];",
            out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg32) address,
            options(readonly, nostack, preserves_flags));
        [a, b, c, d]
    } host {
        // SAFETY: any 16 bytes are four floats.
        unsafe { crate::emulated::load(Space::Shared, u64::from(address), 16) }
    }

    "st.shared.b32" => unsafe fn st(address: u32, value: u32) {
        asm!("st.shared.b32 [{}], {};", in(reg32) address, in(reg32) value,
            options(nostack, preserves_flags));
    } host {
        // SAFETY: a `u32` is four bytes.
        unsafe { crate::emulated::store(Space::Shared, u64::from(address), 4, value) }
    }
}

/// `ld.shared.v4.f32` with an immediate offset of `INDEX` elements.
#[inline(always)]
#[track_caller]
unsafe fn ld_v4_at<const INDEX: u32>(address: u32) -> [f32; 4] {
    #[cfg(target_arch = "nvptx64")]
    {
        let (a, b, c, d);
        // SAFETY: the caller's promise.
        unsafe {
            asm!("ld.shared.v4.f32 {{{}, {}, {}, {}}}, [{} + {}];",
                out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg32) address,
                const INDEX * 4, options(readonly, nostack, preserves_flags));
        }
        [a, b, c, d]
    }
    #[cfg(not(target_arch = "nvptx64"))]
    // SAFETY: the caller's promise.
    unsafe {
        ld_v4(address.wrapping_add(INDEX * 4))
    }
}
