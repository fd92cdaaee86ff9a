//! Views of global memory.

use crate::element::{Element, assert_one_access};
#[cfg(target_arch = "nvptx64")]
use {
    crate::element::{load_vec, reinterpret, store_vec},
    core::arch::asm,
};
#[cfg(not(target_arch = "nvptx64"))]
use {crate::emulated, simt::Space};

/// Read-only global memory of elements `T`: a kernel's parameter, `DevicePtr<T>` in its launcher.
///
/// The view has no length: the launch promises that every index is in bounds, and the emulator
/// checks it.
#[repr(transparent)]
pub struct Global<T>(*const T);

/// Readable and writable global memory of elements `T`: a kernel's parameter, `DevicePtr<T>` in its
/// launcher.
#[repr(transparent)]
pub struct GlobalMut<T>(*mut T);

impl<T> Clone for Global<T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Global<T> {}

#[cfg(not(target_arch = "nvptx64"))]
impl<T> Global<T> {
    /// The view at an address of the emulator's memory.
    pub(crate) fn from_address(address: u64) -> Self {
        Global(core::ptr::without_provenance(address as usize))
    }
}

impl<T> Clone for GlobalMut<T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for GlobalMut<T> {}

#[cfg(not(target_arch = "nvptx64"))]
impl<T> GlobalMut<T> {
    /// The view at an address of the emulator's memory.
    pub(crate) fn from_address(address: u64) -> Self {
        GlobalMut(core::ptr::without_provenance_mut(address as usize))
    }
}

impl<T> Global<T> {
    /// Whether the launch passed a null pointer for an optional operand.
    #[inline(always)]
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The address in global memory.
    #[inline(always)]
    pub fn address(self) -> u64 {
        self.0.addr() as u64
    }

    /// The same memory as elements `U`; the address must be aligned for them.
    #[inline(always)]
    #[must_use]
    pub fn cast<U>(self) -> Global<U> {
        Global(self.0.cast())
    }

    /// The view that starts `elems` elements on.
    ///
    /// # Safety
    /// 1. `elems` is inside the memory of the view, or one past its end.
    #[inline(always)]
    pub unsafe fn add(self, elems: usize) -> Self {
        #[cfg(target_arch = "nvptx64")]
        // SAFETY: the caller's promise.
        return Global(unsafe { self.0.add(elems) });
        // The emulator's addresses are not host pointers; it checks them at each access.
        #[cfg(not(target_arch = "nvptx64"))]
        Global(self.0.wrapping_add(elems))
    }

    /// The view that starts `elems` elements on. It may start out of bounds if nothing accesses it
    /// there.
    #[inline(always)]
    #[must_use]
    pub fn wrapping_add(self, elems: usize) -> Self {
        Global(self.0.wrapping_add(elems))
    }

    /// The address, for an asynchronous copy.
    #[inline(always)]
    pub(crate) fn as_ptr(self) -> *const T {
        self.0
    }
}

impl<T: Element> Global<T> {
    /// Loads element `index`.
    #[doc = ptx!("ld.global")]
    ///
    /// # Safety
    /// 1. `index` is inside the memory of the view.
    /// 2. No thread writes the element at the same time.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn get(self, index: usize) -> T {
        // SAFETY: the caller's promise.
        unsafe { load(self.0.wrapping_add(index)) }
    }

    /// Loads elements `index .. index + N`, 1 to 16 bytes. CUDA C: a load of a `float4`, for four
    /// f32.
    #[doc = ptx!("ld.global" as "ld.global{.v2, .v4}.b32")]
    ///
    /// # Safety
    /// 1. The elements are inside the memory of the view, and aligned to their size
    ///    together.
    /// 2. No thread writes them at the same time.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn get_vec<const N: usize>(self, index: usize) -> [T; N] {
        // SAFETY: the caller's promise.
        unsafe { ld(self.0.wrapping_add(index)) }
    }

    /// [`Global::get_vec`] of 4, 8 or 16 bytes if `condition` holds, zeros otherwise. A predicated
    /// instruction, so that ptxas need not wait for the load where control flow joins after a
    /// branch.
    #[doc = ptx!("ld.global" as "@p ld.global{.v2, .v4}.b32")]
    ///
    /// # Safety
    /// As [`Global::get_vec`], if `condition` holds.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn get_vec_if<const N: usize>(self, index: usize, condition: bool) -> [T; N] {
        // SAFETY: the caller's promise.
        unsafe { ld_if(self.0.wrapping_add(index), condition) }
    }

    /// [`Global::get`] of an element that may be uninitialised; see [`Global::speculate_vec_if`].
    #[doc = ptx!("ld.global")]
    ///
    /// # Safety
    /// As [`Global::get`].
    #[inline(always)]
    #[track_caller]
    pub unsafe fn speculate(self, index: usize) -> T {
        // SAFETY: the caller's promise.
        let [value] = unsafe { ld_speculative(self.0.wrapping_add(index)) };
        value
    }

    /// [`Global::get_vec_if`] of elements that may be uninitialised, so that the load can be issued
    /// before the kernel knows which of them are valid. Invalid ones have unspecified bits, which
    /// no output may depend on.
    #[doc = ptx!("ld.global" as "@p ld.global{.v2, .v4}.b32")]
    ///
    /// # Safety
    /// As [`Global::get_vec_if`].
    #[inline(always)]
    #[track_caller]
    pub unsafe fn speculate_vec_if<const N: usize>(self, index: usize, condition: bool) -> [T; N] {
        // SAFETY: the caller's promise.
        unsafe { ld_speculative_if(self.0.wrapping_add(index), condition) }
    }

    /// Loads elements `index .. index + N`, 1 to 16 bytes, without allocating them in L1: for data
    /// that is read once. Not `.nc`: ptxas sinks such loads below
    /// [`grid::wait_for_dependencies`](crate::grid::wait_for_dependencies), which they are to
    /// overlap.
    #[doc = ptx!("ld.global.L1::no_allocate" as "ld.global.L1::no_allocate{.v2, .v4}.b32")]
    ///
    /// # Safety
    /// 1. The elements are inside the memory of the view, and aligned to their size
    ///    together.
    /// 2. No thread writes them while the kernel runs.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn stream_vec<const N: usize>(self, index: usize) -> [T; N] {
        // SAFETY: the caller's promise.
        unsafe { ld_stream(self.0.wrapping_add(index)) }
    }

    /// [`Global::stream_vec`] of 4, 8 or 16 bytes if `condition` holds, zeros otherwise; see
    /// [`Global::get_vec_if`].
    #[doc = ptx!("ld.global.L1::no_allocate" as "@p ld.global.L1::no_allocate{.v2, .v4}.b32")]
    ///
    /// # Safety
    /// As [`Global::stream_vec`], if `condition` holds.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn stream_vec_if<const N: usize>(self, index: usize, condition: bool) -> [T; N] {
        // SAFETY: the caller's promise.
        unsafe { ld_stream_if(self.0.wrapping_add(index), condition) }
    }

    /// Starts to bring the line of 128 bytes that holds element `index` into L1.
    #[doc = ptx!("prefetch.global.L1")]
    #[inline(always)]
    pub fn prefetch(self, index: usize) {
        let line = self.0.wrapping_add(index);
        #[cfg(target_arch = "nvptx64")]
        // SAFETY: a prefetch has no effect but in the caches, whatever the address.
        unsafe {
            asm!("prefetch.global.L1 [{}];", in(reg64) line, options(nostack, preserves_flags));
        }
        #[cfg(not(target_arch = "nvptx64"))]
        let _ = line;
    }
}

impl<T> GlobalMut<T> {
    /// The same memory for reading, for kernels that work in place.
    #[inline(always)]
    #[must_use]
    pub fn as_global(self) -> Global<T> {
        Global(self.0)
    }

    /// The address, for an asynchronous copy.
    #[inline(always)]
    pub(crate) fn as_ptr(self) -> *mut T {
        self.0
    }

    /// The address in global memory.
    #[inline(always)]
    pub fn address(self) -> u64 {
        self.0.addr() as u64
    }

    /// The same memory as elements `U`; the address must be aligned for them.
    #[inline(always)]
    #[must_use]
    pub fn cast<U>(self) -> GlobalMut<U> {
        GlobalMut(self.0.cast())
    }

    /// The view that starts `elems` elements on.
    ///
    /// # Safety
    /// 1. `elems` is inside the memory of the view, or one past its end.
    #[inline(always)]
    pub unsafe fn add(self, elems: usize) -> Self {
        #[cfg(target_arch = "nvptx64")]
        // SAFETY: the caller's promise.
        return GlobalMut(unsafe { self.0.add(elems) });
        // As in `Global::add`.
        #[cfg(not(target_arch = "nvptx64"))]
        GlobalMut(self.0.wrapping_add(elems))
    }
}

impl<T: Element> GlobalMut<T> {
    /// Loads element `index`.
    #[doc = ptx!("ld.global")]
    ///
    /// # Safety
    /// 1. `index` is inside the memory of the view.
    /// 2. No other thread writes the element at the same time.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn get(self, index: usize) -> T {
        // SAFETY: the caller's promise.
        unsafe { load(self.0.wrapping_add(index)) }
    }

    /// Loads elements `index .. index + N`, 1 to 16 bytes.
    #[doc = ptx!("ld.global" as "ld.global{.v2, .v4}.b32")]
    ///
    /// # Safety
    /// 1. The elements are inside the memory of the view, and aligned to their size
    ///    together.
    /// 2. No other thread writes them at the same time.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn get_vec<const N: usize>(self, index: usize) -> [T; N] {
        // SAFETY: the caller's promise.
        unsafe { ld(self.0.wrapping_add(index)) }
    }

    /// Stores element `index`.
    #[doc = ptx!("st.global")]
    ///
    /// # Safety
    /// 1. `index` is inside the memory of the view.
    /// 2. No other thread reads or writes the element at the same time.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn set(self, index: usize, value: T) {
        // SAFETY: the caller's promise.
        unsafe { store(self.0.wrapping_add(index), value) }
    }

    /// Stores elements `index .. index + N`, 1 to 16 bytes.
    #[doc = ptx!("st.global" as "st.global{.v2, .v4}.b32")]
    ///
    /// # Safety
    /// 1. The elements are inside the memory of the view, and aligned to their size
    ///    together.
    /// 2. No other thread reads or writes them at the same time.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn set_vec<const N: usize>(self, index: usize, values: [T; N]) {
        // SAFETY: the caller's promise.
        unsafe { st(self.0.wrapping_add(index), values) }
    }
}

/// One load of the width of `T`.
#[inline(always)]
#[track_caller]
unsafe fn load<T: Element>(ptr: *const T) -> T {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the caller's promise. A plain load: LLVM infers that a kernel's parameter points to
    // global memory.
    return unsafe { *ptr };
    #[cfg(not(target_arch = "nvptx64"))]
    // SAFETY: any bits are an element.
    unsafe {
        emulated::load(Space::Global, ptr.addr() as u64, align_of::<T>())
    }
}

/// One store of the width of `T`.
#[inline(always)]
#[track_caller]
unsafe fn store<T: Element>(ptr: *mut T, value: T) {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the caller's promise.
    unsafe {
        *ptr = value
    };
    #[cfg(not(target_arch = "nvptx64"))]
    // SAFETY: an element has no padding.
    unsafe {
        emulated::store(Space::Global, ptr.addr() as u64, align_of::<T>(), value)
    }
}

/// Declares loads of `N` elements by one instruction.
macro_rules! vector_loads {
    ($($name:ident = $mnemonic:literal, $emulated:ident, $($option:ident),*;)*) => {$(
        #[inline(always)]
        #[track_caller]
        unsafe fn $name<T: Element, const N: usize>(ptr: *const T) -> [T; N] {
            const { assert_one_access::<T, N>() };
            #[cfg(target_arch = "nvptx64")]
            // SAFETY: the caller's promise.
            return unsafe { load_vec!($mnemonic, [reg64 ptr, 0], $($option),*) };
            #[cfg(not(target_arch = "nvptx64"))]
            // SAFETY: any bits are elements.
            unsafe {
                emulated::$emulated(Space::Global, ptr.addr() as u64, size_of::<[T; N]>())
            }
        }
    )*};
}

vector_loads! {
    ld = "ld.global", load, readonly, nostack, preserves_flags;
    ld_speculative = "ld.global", speculate, readonly, nostack, preserves_flags;
    ld_stream = "ld.global.L1::no_allocate", load, pure, readonly, nostack, preserves_flags;
}

/// Declares predicated loads of 4, 8 or 16 bytes.
macro_rules! conditional_loads {
    ($($name:ident = $mnemonic:literal, $emulated:ident, $($option:ident),*;)*) => {$(
        #[inline(always)]
        #[track_caller]
        unsafe fn $name<T: Element, const N: usize>(ptr: *const T, condition: bool) -> [T; N] {
            const {
                assert!(
                    matches!(size_of::<[T; N]>(), 4 | 8 | 16),
                    "a conditional load has 4, 8 or 16 bytes"
                )
            };
            #[cfg(target_arch = "nvptx64")]
            // SAFETY: the caller's promise.
            unsafe {
                let condition = u32::from(condition);
                match const { size_of::<[T; N]>() } {
                    4 => {
                        let a: u32;
                        asm!("{{ .reg .pred p; setp.ne.b32 p, {condition}, 0; mov.b32 {a}, 0;",
                            concat!("@p ", $mnemonic, ".b32 {a}, [{ptr}]; }}"),
                            a = out(reg32) a,
                            ptr = in(reg64) ptr, condition = in(reg32) condition,
                            options($($option),*));
                        reinterpret([a])
                    }
                    8 => {
                        let (a, b): (u32, u32);
                        asm!("{{ .reg .pred p; setp.ne.b32 p, {condition}, 0;",
                            "mov.b32 {a}, 0; mov.b32 {b}, 0;",
                            concat!("@p ", $mnemonic, ".v2.b32 {{{a}, {b}}}, [{ptr}]; }}"),
                            a = out(reg32) a, b = out(reg32) b,
                            ptr = in(reg64) ptr, condition = in(reg32) condition,
                            options($($option),*));
                        reinterpret([a, b])
                    }
                    _ => {
                        let (a, b, c, d): (u32, u32, u32, u32);
                        asm!("{{ .reg .pred p; setp.ne.b32 p, {condition}, 0;",
                            "mov.b32 {a}, 0; mov.b32 {b}, 0; mov.b32 {c}, 0; mov.b32 {d}, 0;",
                            concat!("@p ", $mnemonic, ".v4.b32 {{{a}, {b}, {c}, {d}}}, [{ptr}]; }}"),
                            a = out(reg32) a, b = out(reg32) b, c = out(reg32) c, d = out(reg32) d,
                            ptr = in(reg64) ptr, condition = in(reg32) condition,
                            options($($option),*));
                        reinterpret([a, b, c, d])
                    }
                }
            }
            #[cfg(not(target_arch = "nvptx64"))]
            // SAFETY: any bits are elements, zeros included.
            unsafe {
                if condition {
                    emulated::$emulated(Space::Global, ptr.addr() as u64, size_of::<[T; N]>())
                } else {
                    core::mem::zeroed()
                }
            }
        }
    )*};
}

conditional_loads! {
    ld_if = "ld.global", load, readonly, nostack, preserves_flags;
    ld_speculative_if = "ld.global", speculate, readonly, nostack, preserves_flags;
    ld_stream_if = "ld.global.L1::no_allocate", load, pure, readonly, nostack, preserves_flags;
}

/// One store of `N` elements.
#[inline(always)]
#[track_caller]
unsafe fn st<T: Element, const N: usize>(ptr: *mut T, values: [T; N]) {
    const { assert_one_access::<T, N>() };
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the caller's promise.
    unsafe {
        store_vec!("st.global", [reg64 ptr], values)
    };
    #[cfg(not(target_arch = "nvptx64"))]
    // SAFETY: elements have no padding.
    unsafe {
        emulated::store(Space::Global, ptr.addr() as u64, size_of::<[T; N]>(), values)
    }
}
