//! Tiles that bulk copies load and store.

use conformance_kernels::bulk::{MAX_TILE, NUM_THREADS, SHARED_BYTES, bulk_reverse_u32};
use cuda_std::launch::Geometry;

use crate::inputs::random_words;
use crate::{Buffer, Case, Want};

const NUM_TILES: u32 = 5;

/// Overlapping loads and stores of the smallest tiles, of odd ones, and of tiles for which a block
/// needs more shared memory than it has by default.
pub fn cases() -> [Case; 3] {
    [("bulk_16_bytes", 4), ("bulk_1008_bytes", 252), ("bulk", MAX_TILE)]
        .map(|(name, tile_words)| case(name, tile_words))
}

fn case(name: &'static str, tile_words: u32) -> Case {
    let x: Vec<u32> = random_words(24).take((NUM_TILES * tile_words) as usize).collect();
    let mut wanted = Vec::new();
    for (number, tile) in (0..).zip(x.chunks(tile_words as usize)) {
        wanted.extend(tile.iter().rev().map(|word| word.wrapping_add(number)));
    }
    let buffers = vec![Buffer::words(&x), Buffer::Out(Want::Words(wanted))];
    Case::new(name, buffers, move |p| {
        let block = [NUM_THREADS, 1, 1];
        let geometry = Geometry { grid: [1; 3], block, shared_bytes: SHARED_BYTES };
        let num_tiles = NUM_TILES;
        bulk_reverse_u32::Args { num_tiles, tile_words, x: p.at(0), out: p.at(1) }.launch(geometry)
    })
}
