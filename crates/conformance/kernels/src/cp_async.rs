//! `cp.async`: a matrix through shared memory, prefetched in groups.

use cuda_std::prelude::*;

/// Threads of the block.
pub const NUM_THREADS: u32 = 64;

/// Elements of a tile: one copy of 16 bytes per thread.
pub const TILE: u32 = 4 * NUM_THREADS;

/// Stages in shared memory.
const NUM_STAGES: u32 = 3;

/// Copies `x` to `out`, each tile reversed, by asynchronous copies of 16 bytes in even tiles and of
/// 4 bytes in odd tiles; elements past `len` are zero. `x` is `[len]`, `out` `[num_tiles, TILE]`.
///
/// # Safety
/// 1. One block; `x` and `out` have these lengths, and `len` is a multiple of 4, at most
///    `num_tiles * TILE`.
#[kernel(launch_bounds(NUM_THREADS))]
pub unsafe fn cp_async_f32(len: u32, num_tiles: u32, x: Global<f32>, out: GlobalMut<f32>) {
    // SAFETY: a tile is read after all threads have waited for its group and a barrier, and
    // overwritten after the next barrier.
    unsafe {
        let tiles = shared_array![f32; (NUM_STAGES * TILE) as usize];
        let mut tile = 0;
        while tile < NUM_STAGES - 1 {
            start_tile(tiles, tile, num_tiles, len, x);
            tile += 1;
        }
        let mut tile = 0;
        while tile < num_tiles {
            cp_async::wait(NUM_STAGES - 2);
            thread::sync_threads();
            start_tile(tiles, tile + NUM_STAGES - 1, num_tiles, len, x);
            let stage = tiles.offset(tile % NUM_STAGES * TILE);
            let mut i = thread::thread_idx_x();
            while i < TILE {
                out.set((tile * TILE + i) as usize, stage.get(TILE - 1 - i));
                i += NUM_THREADS;
            }
            tile += 1;
        }
    }
}

/// Issues the copies of `tile` as one group, an empty one past the last tile.
///
/// # Safety
/// 1. The tile is inside `x` up to `len`, and nothing else accesses its stage.
#[inline(always)]
#[track_caller]
unsafe fn start_tile(tiles: Shared<f32>, tile: u32, num_tiles: u32, len: u32, x: Global<f32>) {
    let stage = tiles.offset(tile % NUM_STAGES * TILE);
    let thread = thread::thread_idx_x();
    // SAFETY: only elements below `len` are read; the rest is the caller's promise.
    unsafe {
        if tile < num_tiles && tile.is_multiple_of(2) {
            let (at, from) = (4 * thread, tile * TILE + 4 * thread);
            if tile.is_multiple_of(4) {
                cp_async::copy_vec::<4, _>(stage, at, x, from as usize, from < len);
            } else {
                cp_async::copy_vec_of_line::<4, _>(stage, at, x, from as usize, from < len);
            }
        } else if tile < num_tiles {
            let mut at = thread;
            while at < TILE {
                let from = tile * TILE + at;
                cp_async::copy(stage, at, x, from as usize, from < len);
                at += NUM_THREADS;
            }
        }
    }
    cp_async::commit();
}

/// Copies `x` to `out`, each tile reversed, with an mbarrier on which the copies of all threads
/// arrive: in addition to the thread's own arrival if `COUNTED`, instead of it otherwise. Both are
/// `[num_tiles, TILE]`.
///
/// # Safety
/// 1. One block; the views have these lengths.
#[kernel(
    launch_bounds(NUM_THREADS),
    target(sm_90a),
    instances(cp_async_mbarrier_counted = <true>, cp_async_mbarrier_noinc = <false>)
)]
pub unsafe fn cp_async_mbarrier<const COUNTED: bool>(
    num_tiles: u32,
    x: Global<f32>,
    out: GlobalMut<f32>,
) {
    // SAFETY: a tile is read once its phase is complete, and overwritten after the next barrier.
    unsafe {
        let smem = shared_array![f32; TILE as usize];
        let barrier = Mbarrier::new(shared_array![u64; 1]);
        let t = thread::thread_idx_x();
        if t == 0 {
            barrier.init(NUM_THREADS);
        }
        thread::sync_threads();
        let mut tile = 0;
        while tile < num_tiles {
            let start = (tile * TILE) as usize;
            let (low, high) = (4 * t, 4 * t + 2);
            cp_async::copy(smem, low, x, start + low as usize, true);
            cp_async::copy(smem, low + 1, x, start + low as usize + 1, true);
            cp_async::copy(smem, high, x, start + high as usize, true);
            cp_async::copy(smem, high + 1, x, start + high as usize + 1, true);
            if COUNTED {
                barrier.arrive_cp_async();
                barrier.arrive();
            } else {
                barrier.arrive_cp_async_noinc();
            }
            barrier.wait(tile % 2);
            let mut i = t;
            while i < TILE {
                out.set(start + i as usize, smem.get(TILE - 1 - i));
                i += NUM_THREADS;
            }
            thread::sync_threads();
            tile += 1;
        }
    }
}
