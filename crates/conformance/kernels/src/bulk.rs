//! `cp.async.bulk`: tiles through shared memory, loaded with mbarriers and stored in bulk groups.

use cuda_std::bulk::CacheHint;
use cuda_std::prelude::*;

/// Threads of the block.
pub const NUM_THREADS: u32 = 128;

/// Most words of a tile.
pub const MAX_TILE: u32 = 6 << 10;

/// Stages of loaded tiles, and stages of tiles to store.
const NUM_STAGES: u32 = 2;

/// Dynamic shared memory: more than the 48 KiB that a block has by default.
pub const SHARED_BYTES: u32 = 2 * NUM_STAGES * 4 * MAX_TILE + 8 * NUM_STAGES;

/// `x` with each tile reversed, plus the tile's index: `x` and `out` are `[num_tiles, tile_words]`.
///
/// # Safety
/// 1. One block with `SHARED_BYTES` of dynamic shared memory; the views have these lengths; a tile
///    is a multiple of 4 words, at most `MAX_TILE`.
#[kernel(launch_bounds(NUM_THREADS), target(sm_90a))]
pub unsafe fn bulk_reverse_u32(
    num_tiles: u32,
    tile_words: u32,
    x: Global<u32>,
    out: GlobalMut<u32>,
) {
    let t = thread::thread_idx_x();
    let tiles = Tiles { num_tiles, words: tile_words, x };
    // SAFETY: a tile is read once its bytes have arrived, and its stage is reloaded after a
    // barrier; a stage to store is written once its previous store has read it.
    unsafe {
        let loaded: Shared<u32> = dynamic_shared_mem();
        let stored = loaded.offset(NUM_STAGES * tile_words);
        let full = Mbarrier::new(stored.offset(NUM_STAGES * tile_words).cast());
        if t == 0 {
            full.init(1);
            full.offset(1).init(1);
            fence::mbarrier_init();
            tiles.load(0, loaded, full);
        }
        thread::sync_threads();
        let mut tile = 0;
        while tile < num_tiles {
            let stage = tile % NUM_STAGES;
            if t == 0 {
                tiles.load(tile + 1, loaded, full);
                bulk::wait_group_read::<{ NUM_STAGES - 1 }>();
            }
            thread::sync_threads();
            full.offset(stage).wait(tile / NUM_STAGES % 2);
            let start = stage * tile_words;
            let (from, to) = (loaded.offset(start), stored.offset(start));
            let mut i = t;
            while i < tile_words {
                to.set(i, from.get(tile_words - 1 - i).wrapping_add(tile));
                i += NUM_THREADS;
            }
            fence::proxy_async_shared();
            thread::sync_threads();
            if t == 0 {
                bulk::store(out.add((tile * tile_words) as usize), to, 4 * tile_words);
                bulk::commit_group();
            }
            tile += 1;
        }
        if t == 0 {
            bulk::wait_group::<0>();
        }
    }
}

/// The tiles of `x`.
#[derive(Clone, Copy)]
struct Tiles {
    num_tiles: u32,
    words: u32,
    x: Global<u32>,
}

impl Tiles {
    /// Issues the load of `tile`, if it exists.
    ///
    /// # Safety
    /// 1. Its stage is not in use; `x` holds all tiles.
    #[inline(always)]
    #[track_caller]
    unsafe fn load(self, tile: u32, stages: Shared<u32>, full: Mbarrier) {
        if tile < self.num_tiles {
            let stage = tile % NUM_STAGES;
            let full = full.offset(stage);
            full.arrive_expect_tx(4 * self.words);
            // SAFETY: the caller's promise.
            unsafe {
                let from = self.x.add((tile * self.words) as usize);
                let to = stages.offset(stage * self.words);
                bulk::load(to, from, 4 * self.words, full, CacheHint::EvictFirst);
            }
        }
    }
}
