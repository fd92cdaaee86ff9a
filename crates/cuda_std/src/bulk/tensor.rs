//! TMA copies of a box of a tensor, by its tensor map.

use super::CacheHint;
use crate::{Mbarrier, Shared, TensorMap};

/// Copies the box of `map` at `coords` (innermost first, in elements) to `dst`, completing on
/// `mbarrier` with the bytes of a whole box; elements out of bounds are zero. CUDA C
/// `cuda::ptx::cp_async_bulk_tensor`.
#[doc = ptx!(
    "cp.async.bulk.tensor.{1..4}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint"
)]
///
/// # Safety
/// 1. `map` is a tensor map of rank `RANK`, and its tensor is inside allocated memory.
/// 2. `dst` has room for a box and is 128-byte aligned; the first of `coords` is a multiple of 16
///    bytes (otherwise an H200 reports an illegal instruction).
/// 3. No thread reads or writes `dst`, or writes the box in the tensor, until the phase of
///    `mbarrier` that expects its bytes has completed.
#[inline(always)]
#[track_caller]
pub unsafe fn tensor_load<T: Copy, const RANK: usize>(
    dst: Shared<T>,
    map: TensorMap,
    coords: [i32; RANK],
    mbarrier: Mbarrier,
    hint: CacheHint,
) where
    [i32; RANK]: Coords,
{
    let (dst, map, mbarrier) = (dst.element(0), map.operand(), mbarrier.address());
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the caller's promise.
    unsafe {
        coords.load(dst, map, mbarrier, hint as u64)
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        let _ = hint;
        simt::device::tensor_load(dst, map, &coords, mbarrier, None)
    }
}

/// [`tensor_load`] to the same address in every block of the cluster whose bit is set in `blocks`;
/// the copy completes on each block's own `mbarrier`. CUDA C `cuda::ptx::cp_async_bulk_tensor`.
#[doc = ptx!(
    "cp.async.bulk.tensor.{1..4}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint"
)]
///
/// # Safety
/// As [`tensor_load`], in each of the blocks, none of which has exited.
#[inline(always)]
#[track_caller]
pub unsafe fn tensor_load_multicast<T: Copy, const RANK: usize>(
    dst: Shared<T>,
    map: TensorMap,
    coords: [i32; RANK],
    mbarrier: Mbarrier,
    blocks: u16,
    hint: CacheHint,
) where
    [i32; RANK]: Coords,
{
    let (dst, map, mbarrier) = (dst.element(0), map.operand(), mbarrier.address());
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the caller's promise.
    unsafe {
        coords.load_multicast(dst, map, mbarrier, blocks, hint as u64)
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        let _ = hint;
        simt::device::tensor_load(dst, map, &coords, mbarrier, Some(blocks))
    }
}

/// Copies a box from `src` to the box of `map` at `coords` (innermost first, in elements), in the
/// thread's current bulk group; elements out of bounds are not written. CUDA C
/// `cuda::ptx::cp_async_bulk_tensor`.
#[doc = ptx!("cp.async.bulk.tensor.{1..4}d.global.shared::cta.tile.bulk_group")]
///
/// # Safety
/// 1. `map` is a tensor map of rank `RANK`, and its tensor is inside allocated memory.
/// 2. `src` holds a box and is 128-byte aligned; no coordinate is negative, and the first is a
///    multiple of 16 bytes (otherwise an H200 reports an illegal instruction).
/// 3. No thread writes `src` until [`wait_group_read`](super::wait_group_read) has waited for the
///    group, or reads or writes the box in the tensor until [`wait_group`](super::wait_group) has.
#[inline(always)]
#[track_caller]
pub unsafe fn tensor_store<T: Copy, const RANK: usize>(
    map: TensorMap,
    coords: [i32; RANK],
    src: Shared<T>,
) where
    [i32; RANK]: Coords,
{
    let (map, src) = (map.operand(), src.element(0));
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the caller's promise.
    unsafe {
        coords.store(map, src)
    }
    #[cfg(not(target_arch = "nvptx64"))]
    simt::device::tensor_store(map, &coords, src, None)
}

/// [`tensor_store`] that adds to the tensor's elements, each addition atomic. CUDA C
/// `cuda::ptx::cp_reduce_async_bulk_tensor`.
#[doc = ptx!("cp.reduce.async.bulk.tensor.{1..4}d.global.shared::cta.add.tile.bulk_group")]
///
/// # Safety
/// As [`tensor_store`]; other additions to the same elements may be pending.
#[inline(always)]
#[track_caller]
pub unsafe fn tensor_reduce_add<T: Copy, const RANK: usize>(
    map: TensorMap,
    coords: [i32; RANK],
    src: Shared<T>,
) where
    [i32; RANK]: Coords,
{
    let (map, src) = (map.operand(), src.element(0));
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the caller's promise.
    unsafe {
        coords.reduce_add(map, src)
    }
    #[cfg(not(target_arch = "nvptx64"))]
    simt::device::tensor_store(map, &coords, src, Some(simt::device::Reduce::Add))
}

/// The coordinates of an element: 1 to 4 of them.
#[cfg(not(target_arch = "nvptx64"))]
pub trait Coords {}

/// The coordinates of an element, 1 to 4 of them, and the instructions of that rank.
#[cfg(target_arch = "nvptx64")]
pub trait Coords {
    /// [`tensor_load`].
    unsafe fn load(self, dst: u32, map: u64, mbarrier: u32, hint: u64);
    /// [`tensor_load_multicast`].
    unsafe fn load_multicast(self, dst: u32, map: u64, mbarrier: u32, blocks: u16, hint: u64);
    /// [`tensor_store`].
    unsafe fn store(self, map: u64, src: u32);
    /// [`tensor_reduce_add`].
    unsafe fn reduce_add(self, map: u64, src: u32);
}

macro_rules! coords {
    ($rank:literal, $list:literal, $($axis:literal)+) => {
        #[cfg(not(target_arch = "nvptx64"))]
        impl Coords for [i32; $rank] {}

        // SAFETY of every block: one instruction on operands that the caller vouches for.
        #[cfg(target_arch = "nvptx64")]
        impl Coords for [i32; $rank] {
            #[inline(always)]
            unsafe fn load(self, dst: u32, map: u64, mbarrier: u32, hint: u64) {
                // SAFETY: as above.
                unsafe {
                    core::arch::asm!(
                        concat!(
                            "cp.async.bulk.tensor.", $rank, "d.shared::cluster.global.tile",
                            ".mbarrier::complete_tx::bytes.L2::cache_hint",
                            " [{dst}], [{map}, ", $list, "], [{mbarrier}], {hint};"
                        ),
                        $(in(reg32) self[$axis],)+
                        dst = in(reg32) dst, map = in(reg64) map, mbarrier = in(reg32) mbarrier,
                        hint = in(reg64) hint, options(nostack, preserves_flags)
                    );
                }
            }

            #[inline(always)]
            unsafe fn load_multicast(
                self, dst: u32, map: u64, mbarrier: u32, blocks: u16, hint: u64,
            ) {
                // SAFETY: as above.
                unsafe {
                    core::arch::asm!(
                        concat!(
                            "cp.async.bulk.tensor.", $rank, "d.shared::cluster.global.tile",
                            ".mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint",
                            " [{dst}], [{map}, ", $list, "], [{mbarrier}], {blocks}, {hint};"
                        ),
                        $(in(reg32) self[$axis],)+
                        dst = in(reg32) dst, map = in(reg64) map, mbarrier = in(reg32) mbarrier,
                        blocks = in(reg16) blocks, hint = in(reg64) hint,
                        options(nostack, preserves_flags)
                    );
                }
            }

            #[inline(always)]
            unsafe fn store(self, map: u64, src: u32) {
                // SAFETY: as above.
                unsafe {
                    core::arch::asm!(
                        concat!(
                            "cp.async.bulk.tensor.", $rank, "d.global.shared::cta.tile.bulk_group",
                            " [{map}, ", $list, "], [{src}];"
                        ),
                        $(in(reg32) self[$axis],)+
                        map = in(reg64) map, src = in(reg32) src,
                        options(nostack, preserves_flags)
                    );
                }
            }

            #[inline(always)]
            unsafe fn reduce_add(self, map: u64, src: u32) {
                // SAFETY: as above.
                unsafe {
                    core::arch::asm!(
                        concat!(
                            "cp.reduce.async.bulk.tensor.", $rank,
                            "d.global.shared::cta.add.tile.bulk_group",
                            " [{map}, ", $list, "], [{src}];"
                        ),
                        $(in(reg32) self[$axis],)+
                        map = in(reg64) map, src = in(reg32) src,
                        options(nostack, preserves_flags)
                    );
                }
            }
        }
    };
}

coords!(1, "{{{0}}}", 0);
coords!(2, "{{{0}, {1}}}", 0 1);
coords!(3, "{{{0}, {1}, {2}}}", 0 1 2);
coords!(4, "{{{0}, {1}, {2}, {3}}}", 0 1 2 3);
