//! Typed loads and stores on the emulator. Host only.

use core::mem::MaybeUninit;
use simt::{Space, device};

/// One load of the width of `T`, from an address that is a multiple of `align`.
///
/// # Safety
/// 1. Every bit pattern is a valid `T`.
#[track_caller]
pub(crate) unsafe fn load<T: Copy>(space: Space, address: u64, align: usize) -> T {
    let mut value = MaybeUninit::<T>::zeroed();
    device::load(space, address, align, bytes_of(&mut value));
    // SAFETY: the caller's promise.
    unsafe { value.assume_init() }
}

/// As [`load`], of bytes that may be uninitialised.
///
/// # Safety
/// As [`load`].
#[track_caller]
pub(crate) unsafe fn speculate<T: Copy>(space: Space, address: u64, align: usize) -> T {
    let mut value = MaybeUninit::<T>::zeroed();
    device::speculate(space, address, align, bytes_of(&mut value));
    // SAFETY: the caller's promise.
    unsafe { value.assume_init() }
}

/// The bytes of a zeroed value.
fn bytes_of<T>(value: &mut MaybeUninit<T>) -> &mut [u8] {
    // SAFETY: the bytes of `value`, all of them zero.
    unsafe { core::slice::from_raw_parts_mut(value.as_mut_ptr().cast::<u8>(), size_of::<T>()) }
}

/// One store of the width of `T`, to an address that is a multiple of `align`.
///
/// # Safety
/// 1. `T` has no padding.
#[track_caller]
pub(crate) unsafe fn store<T: Copy>(space: Space, address: u64, align: usize, value: T) {
    // SAFETY: the bytes of `value`, all of them initialised: the caller's promise.
    let bytes =
        unsafe { core::slice::from_raw_parts((&raw const value).cast::<u8>(), size_of::<T>()) };
    device::store(space, address, align, bytes);
}
