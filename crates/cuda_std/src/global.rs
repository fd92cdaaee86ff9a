//! Views of global memory.

#[cfg(target_arch = "nvptx64")]
use core::arch::asm;
#[cfg(not(target_arch = "nvptx64"))]
use simt::Space;

/// Read-only global memory of elements `T`: a kernel's parameter, `DevicePtr<T>` in its launcher.
///
/// The view has no length: that every index is inside is what a launch promises, and what the
/// emulator checks.
#[repr(transparent)]
pub struct Global<T>(*const T);

/// Global memory of elements `T` that is read and written: a kernel's parameter, `DevicePtr<T>` in
/// its launcher.
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

impl<T: Copy> Global<T> {
    /// Whether the launch gave no memory for this optional operand.
    #[inline(always)]
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The view that starts `elems` elements on.
    ///
    /// # Safety
    /// 1. `elems` is inside the memory that the view stands for, or one past its end.
    #[inline(always)]
    pub unsafe fn add(self, elems: usize) -> Self {
        #[cfg(target_arch = "nvptx64")]
        // SAFETY: the caller keeps `elems` inside.
        return Global(unsafe { self.0.add(elems) });
        // The emulator's addresses are no pointers of the host: it checks them when they are used.
        #[cfg(not(target_arch = "nvptx64"))]
        Global(self.0.wrapping_add(elems))
    }

    /// The view that starts `elems` elements on, which may be outside of the memory as long as it
    /// is not accessed.
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

    /// Element `index`. PTX `ld.global`.
    ///
    /// # Safety
    /// 1. `index` is inside the memory that the view stands for.
    /// 2. No thread writes the element at the same time.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn get(self, index: usize) -> T {
        // SAFETY: the caller keeps `index` inside, and writers away.
        unsafe { load(self.0.wrapping_add(index)) }
    }
}

impl Global<f32> {
    /// Elements `index .. index + 4` through the read-only cache, not kept in L1: for weights that
    /// are read once. CUDA C `__ldg` of a `float4`.
    ///
    /// # Safety
    /// 1. The four elements are inside the memory that the view stands for, and 16-byte aligned.
    /// 2. No thread writes them while the kernel runs.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn stream_v4(self, index: usize) -> [f32; 4] {
        // SAFETY: the caller's promise.
        unsafe { ld_nc_stream_v4(self.0.wrapping_add(index)) }
    }

    /// Elements `index .. index + 4`. CUDA C: a `float4`.
    ///
    /// # Safety
    /// 1. The four elements are inside the memory that the view stands for, and 16-byte aligned.
    /// 2. No thread writes them at the same time.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn get_v4(self, index: usize) -> [f32; 4] {
        // SAFETY: the caller's promise.
        unsafe { ld_v4(self.0.wrapping_add(index)) }
    }
}

impl<T: Copy> GlobalMut<T> {
    /// The address, for an asynchronous copy.
    #[inline(always)]
    pub(crate) fn as_ptr(self) -> *mut T {
        self.0
    }

    /// The view that starts `elems` elements on.
    ///
    /// # Safety
    /// 1. `elems` is inside the memory that the view stands for, or one past its end.
    #[inline(always)]
    pub unsafe fn add(self, elems: usize) -> Self {
        #[cfg(target_arch = "nvptx64")]
        // SAFETY: the caller keeps `elems` inside.
        return GlobalMut(unsafe { self.0.add(elems) });
        // As in `Global::add`.
        #[cfg(not(target_arch = "nvptx64"))]
        GlobalMut(self.0.wrapping_add(elems))
    }

    /// Element `index`. PTX `ld.global`.
    ///
    /// # Safety
    /// 1. `index` is inside the memory that the view stands for.
    /// 2. No other thread writes the element at the same time.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn get(self, index: usize) -> T {
        // SAFETY: the caller keeps `index` inside, and writers away.
        unsafe { load(self.0.wrapping_add(index)) }
    }

    /// Writes element `index`. PTX `st.global`.
    ///
    /// # Safety
    /// 1. `index` is inside the memory that the view stands for.
    /// 2. No other thread reads or writes the element at the same time.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn set(self, index: usize, value: T) {
        // SAFETY: the caller keeps `index` inside, and other threads away.
        unsafe { store(self.0.wrapping_add(index), value) }
    }
}

/// One load of the width of `T`.
#[inline(always)]
#[track_caller]
unsafe fn load<T: Copy>(ptr: *const T) -> T {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the caller's promise. A plain load: LLVM sees that a kernel's parameter points to
    // global memory.
    return unsafe { *ptr };
    #[cfg(not(target_arch = "nvptx64"))]
    // SAFETY: the elements that a launch gives are of type `T`.
    unsafe {
        crate::emulated::load(Space::Global, ptr.addr() as u64, align_of::<T>())
    }
}

/// One store of the width of `T`.
#[inline(always)]
#[track_caller]
unsafe fn store<T: Copy>(ptr: *mut T, value: T) {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the caller's promise.
    unsafe {
        *ptr = value
    };
    #[cfg(not(target_arch = "nvptx64"))]
    // SAFETY: a kernel's elements are numbers: they have no padding.
    unsafe {
        crate::emulated::store(Space::Global, ptr.addr() as u64, align_of::<T>(), value)
    }
}

instruction! {
    "ld.global.v4.f32" => unsafe fn ld_v4(ptr: *const f32) -> [f32; 4] {
        let (a, b, c, d);
        asm!("ld.global.v4.f32 {{{}, {}, {}, {}}}, [{}];",
            out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg64) ptr,
            options(readonly, nostack, preserves_flags));
        [a, b, c, d]
    } host {
        // SAFETY: any 16 bytes are four floats.
        unsafe { crate::emulated::load(Space::Global, ptr.addr() as u64, 16) }
    }

    "ld.global.nc.L1::no_allocate.v4.f32" => unsafe fn ld_nc_stream_v4(ptr: *const f32) -> [f32; 4] {
        let (a, b, c, d);
        asm!("ld.global.nc.L1::no_allocate.v4.f32 {{{}, {}, {}, {}}}, [{}];",
            out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg64) ptr,
            options(pure, readonly, nostack, preserves_flags));
        [a, b, c, d]
    } host {
        // SAFETY: the caller's promise.
        unsafe { ld_v4(ptr) }
    }
}
