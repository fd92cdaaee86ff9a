//! Tiles that bulk copies load and store.

use conformance_kernels::bulk::{NUM_THREADS, SHARED_BYTES, TILE, bulk_reverse_u32};
use cuda_std::launch::Geometry;

use crate::inputs::random_words;
use crate::{Buffer, Case, Want};

const NUM_TILES: u32 = 5;

/// Overlapping loads and stores, in more shared memory than a block has by default.
pub fn case() -> Case {
    let x: Vec<u32> = random_words(24).take((NUM_TILES * TILE) as usize).collect();
    let mut wanted = Vec::new();
    for (number, tile) in (0..).zip(x.chunks(TILE as usize)) {
        wanted.extend(tile.iter().rev().map(|word| word.wrapping_add(number)));
    }
    let buffers = vec![Buffer::words(&x), Buffer::Out(Want::Words(wanted))];
    Case::new("bulk", buffers, |p| {
        let block = [NUM_THREADS, 1, 1];
        let geometry = Geometry { grid: [1; 3], block, shared_bytes: SHARED_BYTES };
        bulk_reverse_u32::Args { num_tiles: NUM_TILES, x: p.at(0), out: p.at(1) }.launch(geometry)
    })
}
