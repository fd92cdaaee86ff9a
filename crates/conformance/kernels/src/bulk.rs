//! `cp.async.bulk`: tiles through shared memory, loaded with mbarriers and stored in bulk groups.

use cuda_std::bulk::CacheHint;
use cuda_std::prelude::*;

/// Threads of the block.
pub const NUM_THREADS: u32 = 128;

/// Words of a tile.
pub const TILE: u32 = 6 << 10;

/// Stages of loaded tiles, and stages of tiles to store.
const NUM_STAGES: u32 = 2;

/// Bytes of a tile.
const TILE_BYTES: u32 = 4 * TILE;

/// Dynamic shared memory: more than the 48 KiB that a block has by default.
pub const SHARED_BYTES: u32 = 2 * NUM_STAGES * TILE_BYTES + 8 * NUM_STAGES;

/// `x` with each tile reversed, plus the tile's index: `x` and `out` are `[num_tiles, TILE]`.
///
/// # Safety
/// 1. One block with `SHARED_BYTES` of dynamic shared memory; the views have these lengths.
#[kernel(launch_bounds(NUM_THREADS), target(sm_90a))]
pub unsafe fn bulk_reverse_u32(num_tiles: u32, x: Global<u32>, out: GlobalMut<u32>) {
    let t = thread::thread_idx_x();
    // SAFETY: a tile is read once its bytes have arrived, and its stage is reloaded after a
    // barrier; a stage to store is written once its previous store has read it.
    unsafe {
        let loaded: Shared<u32> = dynamic_shared_mem();
        let stored = loaded.offset(NUM_STAGES * TILE);
        let full = Mbarrier::new(stored.offset(NUM_STAGES * TILE).cast());
        if t == 0 {
            full.init(1);
            full.offset(1).init(1);
            fence::mbarrier_init();
            load(0, num_tiles, loaded, x, full);
        }
        thread::sync_threads();
        let mut tile = 0;
        while tile < num_tiles {
            let stage = tile % NUM_STAGES;
            if t == 0 {
                load(tile + 1, num_tiles, loaded, x, full);
                bulk::wait_group_read::<{ NUM_STAGES - 1 }>();
            }
            thread::sync_threads();
            full.offset(stage).wait(tile / NUM_STAGES % 2);
            let (from, to) = (loaded.offset(stage * TILE), stored.offset(stage * TILE));
            let mut i = t;
            while i < TILE {
                to.set(i, from.get(TILE - 1 - i).wrapping_add(tile));
                i += NUM_THREADS;
            }
            fence::proxy_async_shared();
            thread::sync_threads();
            if t == 0 {
                bulk::store(out.add((tile * TILE) as usize), to, TILE_BYTES);
                bulk::commit_group();
            }
            tile += 1;
        }
        if t == 0 {
            bulk::wait_group::<0>();
        }
    }
}

/// Issues the load of `tile`, if it exists.
///
/// # Safety
/// 1. Its stage is not in use; `x` holds `num_tiles` tiles.
#[inline(always)]
#[track_caller]
unsafe fn load(tile: u32, num_tiles: u32, stages: Shared<u32>, x: Global<u32>, full: Mbarrier) {
    if tile < num_tiles {
        let stage = tile % NUM_STAGES;
        let full = full.offset(stage);
        full.arrive_expect_tx(TILE_BYTES);
        // SAFETY: the caller's promise.
        unsafe {
            let (to, from) = (stages.offset(stage * TILE), x.add((tile * TILE) as usize));
            bulk::load(to, from, TILE_BYTES, full, CacheHint::EvictFirst);
        }
    }
}
