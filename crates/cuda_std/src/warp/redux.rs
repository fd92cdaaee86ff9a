//! Reductions of a warp's integers, one instruction each (SM 80).
//!
//! PTX ISA: [`redux.sync`](https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-redux-sync).

#[cfg(not(target_arch = "nvptx64"))]
use super::emulated::redux;

#[cfg(target_arch = "nvptx64")]
unsafe extern "unadjusted" {
    #[link_name = "llvm.nvvm.redux.sync.add"]
    fn redux_sync_add(value: u32, mask: u32) -> u32;
    #[link_name = "llvm.nvvm.redux.sync.umin"]
    fn redux_sync_umin(value: u32, mask: u32) -> u32;
    #[link_name = "llvm.nvvm.redux.sync.umax"]
    fn redux_sync_umax(value: u32, mask: u32) -> u32;
    #[link_name = "llvm.nvvm.redux.sync.min"]
    fn redux_sync_min(value: i32, mask: u32) -> i32;
    #[link_name = "llvm.nvvm.redux.sync.max"]
    fn redux_sync_max(value: i32, mask: u32) -> i32;
    #[link_name = "llvm.nvvm.redux.sync.and"]
    fn redux_sync_and(value: u32, mask: u32) -> u32;
    #[link_name = "llvm.nvvm.redux.sync.or"]
    fn redux_sync_or(value: u32, mask: u32) -> u32;
    #[link_name = "llvm.nvvm.redux.sync.xor"]
    fn redux_sync_xor(value: u32, mask: u32) -> u32;
}

instruction! {
    /// The sum of the `value`s of the lanes `mask`, modulo 2^32. CUDA C `__reduce_add_sync`.
    "redux.sync.add.s32" => pub fn redux_add(mask: u32, value: u32) -> u32 {
        redux_sync_add(value, mask)
    } host {
        redux("redux.sync.add.s32", mask, value, u32::wrapping_add)
    }

    /// The least of the `value`s of the lanes `mask`. CUDA C `__reduce_min_sync`.
    "redux.sync.min.u32" => pub fn redux_min_u32(mask: u32, value: u32) -> u32 {
        redux_sync_umin(value, mask)
    } host {
        redux("redux.sync.min.u32", mask, value, u32::min)
    }

    /// The greatest of the `value`s of the lanes `mask`. CUDA C `__reduce_max_sync`.
    "redux.sync.max.u32" => pub fn redux_max_u32(mask: u32, value: u32) -> u32 {
        redux_sync_umax(value, mask)
    } host {
        redux("redux.sync.max.u32", mask, value, u32::max)
    }

    /// The least of the `value`s of the lanes `mask`. CUDA C `__reduce_min_sync`.
    "redux.sync.min.s32" => pub fn redux_min_i32(mask: u32, value: i32) -> i32 {
        redux_sync_min(value, mask)
    } host {
        let least = |a, b| (a as i32).min(b as i32) as u32;
        redux("redux.sync.min.s32", mask, value as u32, least) as i32
    }

    /// The greatest of the `value`s of the lanes `mask`. CUDA C `__reduce_max_sync`.
    "redux.sync.max.s32" => pub fn redux_max_i32(mask: u32, value: i32) -> i32 {
        redux_sync_max(value, mask)
    } host {
        let greatest = |a, b| (a as i32).max(b as i32) as u32;
        redux("redux.sync.max.s32", mask, value as u32, greatest) as i32
    }

    /// The bitwise and of the `value`s of the lanes `mask`. CUDA C `__reduce_and_sync`.
    "redux.sync.and.b32" => pub fn redux_and(mask: u32, value: u32) -> u32 {
        redux_sync_and(value, mask)
    } host {
        redux("redux.sync.and.b32", mask, value, |a, b| a & b)
    }

    /// The bitwise or of the `value`s of the lanes `mask`. CUDA C `__reduce_or_sync`.
    "redux.sync.or.b32" => pub fn redux_or(mask: u32, value: u32) -> u32 {
        redux_sync_or(value, mask)
    } host {
        redux("redux.sync.or.b32", mask, value, |a, b| a | b)
    }

    /// The bitwise exclusive or of the `value`s of the lanes `mask`. CUDA C `__reduce_xor_sync`.
    "redux.sync.xor.b32" => pub fn redux_xor(mask: u32, value: u32) -> u32 {
        redux_sync_xor(value, mask)
    } host {
        redux("redux.sync.xor.b32", mask, value, |a, b| a ^ b)
    }
}
