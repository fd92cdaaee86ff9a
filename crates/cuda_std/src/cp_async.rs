//! Asynchronous copies from global to shared memory (SM 80). The warp need not be converged.

use crate::{Element, Global, Shared};
#[cfg(target_arch = "nvptx64")]
use core::arch::asm;

/// Copies elements `src_index .. src_index + N` of `src`, 16 bytes, to `dst_index ..` of `dst`,
/// bypassing L1. If `keep` is false it writes zeros and reads nothing. CUDA C
/// `__pipeline_memcpy_async` of 16 bytes.
#[doc = ptx!("cp.async.cg.shared.global 16")]
///
/// # Safety
/// 1. The elements are inside both views, and 16-byte aligned in both; in `src` only if `keep`.
/// 2. No thread reads or writes them in `dst`, or writes them in `src`, until [`wait`] has waited
///    for the copy.
#[inline(always)]
#[track_caller]
pub unsafe fn copy_vec<const N: usize, T: Element>(
    dst: Shared<T>,
    dst_index: u32,
    src: Global<T>,
    src_index: usize,
    keep: bool,
) {
    const { assert!(size_of::<[T; N]>() == 16, "a copy of a vector has 16 bytes") };
    let src = src.as_ptr().wrapping_add(src_index);
    // SAFETY: the caller's promise.
    unsafe { cp_async_16(dst.element(dst_index), src.cast(), if keep { 16 } else { 0 }) }
}

/// [`copy_vec`], for a line of 128 bytes that other lanes copy the rest of: asks L2 for all of it at
/// once.
#[doc = ptx!("cp.async.cg.shared.global.L2::128B 16")]
///
/// # Safety
/// As [`copy_vec`].
#[inline(always)]
#[track_caller]
pub unsafe fn copy_vec_of_line<const N: usize, T: Element>(
    dst: Shared<T>,
    dst_index: u32,
    src: Global<T>,
    src_index: usize,
    keep: bool,
) {
    const { assert!(size_of::<[T; N]>() == 16, "a copy of a vector has 16 bytes") };
    let src = src.as_ptr().wrapping_add(src_index);
    // SAFETY: the caller's promise.
    unsafe { cp_async_16_line(dst.element(dst_index), src.cast(), if keep { 16 } else { 0 }) }
}

/// [`copy_vec`] of the first `len` bytes, at most 16; the others become zeros and are not read.
#[doc = ptx!("cp.async.cg.shared.global 16")]
///
/// # Safety
/// As [`copy_vec`], of the bytes that are copied.
#[inline(always)]
#[track_caller]
pub unsafe fn copy_start<T: Element>(
    dst: Shared<T>,
    dst_index: u32,
    src: Global<T>,
    src_index: usize,
    len: u32,
) {
    let src = src.as_ptr().wrapping_add(src_index);
    // SAFETY: the caller's promise.
    unsafe { cp_async_16(dst.element(dst_index), src.cast(), len) }
}

/// [`copy_vec`] of elements `SRC ..` to `DST ..`; the indices are immediates of the instruction and
/// take no registers.
#[doc = ptx!("cp.async.cg.shared.global 16")]
///
/// # Safety
/// As [`copy_vec`].
#[inline(always)]
#[track_caller]
pub unsafe fn copy_vec_at<const DST: u32, const SRC: usize, const N: usize, T: Element>(
    dst: Shared<T>,
    src: Global<T>,
    keep: bool,
) {
    const { assert!(size_of::<[T; N]>() == 16, "a copy of a vector has 16 bytes") };
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the caller's promise.
    unsafe {
        let bytes: u32 = if keep { 16 } else { 0 };
        asm!("cp.async.cg.shared.global [{} + {dst_bytes}], [{} + {src_bytes}], 16, {};",
            in(reg32) dst.address(), in(reg64) src.as_ptr(), in(reg32) bytes,
            dst_bytes = const DST as usize * size_of::<T>(),
            src_bytes = const SRC * size_of::<T>(),
            options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "nvptx64"))]
    // SAFETY: the caller's promise.
    unsafe {
        copy_vec::<N, T>(dst, DST, src, SRC, keep)
    }
}

/// Copies element `src_index` of `src` to `dst_index` of `dst`. If `keep` is false it writes zero
/// and reads nothing. CUDA C `__pipeline_memcpy_async` of 4 bytes.
#[doc = ptx!("cp.async.ca.shared.global 4")]
///
/// # Safety
/// 1. The element is inside both views; in `src` only if `keep`.
/// 2. No thread reads or writes it in `dst`, or writes it in `src`, until [`wait`] has waited for
///    the copy.
#[inline(always)]
#[track_caller]
pub unsafe fn copy(
    dst: Shared<f32>,
    dst_index: u32,
    src: Global<f32>,
    src_index: usize,
    keep: bool,
) {
    let src = src.as_ptr().wrapping_add(src_index);
    // SAFETY: the caller's promise.
    unsafe { cp_async_4(dst.element(dst_index), src, if keep { 4 } else { 0 }) }
}

instruction! {
    "cp.async.cg.shared.global 16" => unsafe fn cp_async_16(dst: u32, src: *const u8, bytes: u32) {
        asm!("cp.async.cg.shared.global [{}], [{}], 16, {};",
            in(reg32) dst, in(reg64) src, in(reg32) bytes, options(nostack, preserves_flags));
    } host {
        simt::device::copy_async(dst, 16, src.addr() as u64, bytes as usize)
    }

    "cp.async.cg.shared.global.L2::128B 16" =>
    unsafe fn cp_async_16_line(dst: u32, src: *const u8, bytes: u32) {
        asm!("cp.async.cg.shared.global.L2::128B [{}], [{}], 16, {};",
            in(reg32) dst, in(reg64) src, in(reg32) bytes, options(nostack, preserves_flags));
    } host {
        simt::device::copy_async(dst, 16, src.addr() as u64, bytes as usize)
    }

    "cp.async.ca.shared.global 4" => unsafe fn cp_async_4(dst: u32, src: *const f32, bytes: u32) {
        asm!("cp.async.ca.shared.global [{}], [{}], 4, {};",
            in(reg32) dst, in(reg64) src, in(reg32) bytes, options(nostack, preserves_flags));
    } host {
        simt::device::copy_async(dst, 4, src.addr() as u64, bytes as usize)
    }

    /// Closes a group: the thread's copies since the last one. CUDA C `__pipeline_commit`.
    "cp.async.commit_group" => pub fn commit() {
        asm!("cp.async.commit_group;", options(nostack, preserves_flags));
    } host {
        simt::device::commit_group()
    }

    "cp.async.wait_group" => fn wait_group<const PENDING: u32>() {
        asm!("cp.async.wait_group {};", const PENDING, options(nostack, preserves_flags));
    } host {
        simt::device::wait_group(PENDING as usize)
    }
}

/// Waits until at most `pending` (a constant, 0 to 6) of the thread's newest groups are pending.
/// The copies are visible to other threads after a barrier. CUDA C `__pipeline_wait_prior`.
#[doc = ptx!("cp.async.wait_group")]
#[inline(always)]
#[track_caller]
pub fn wait(pending: u32) {
    match pending {
        0 => wait_group::<0>(),
        1 => wait_group::<1>(),
        2 => wait_group::<2>(),
        3 => wait_group::<3>(),
        4 => wait_group::<4>(),
        5 => wait_group::<5>(),
        _ => wait_group::<6>(),
    }
}
