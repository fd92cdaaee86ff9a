//! A matrix through shared memory, by asynchronous copies.

use conformance_kernels::cp_async::{NUM_THREADS, TILE, cp_async_f32, cp_async_mbarrier};

use crate::inputs::{blocks, random_words};
use crate::{Buffer, Case, Want};

const NUM_TILES: u32 = 7;

/// The last tile is partial: the rest is zero-filled without a read.
const LEN: u32 = NUM_TILES * TILE - 52;

/// Copies of both widths, with several groups pending.
pub fn case() -> Case {
    let x: Vec<u32> = random_words(3).take(LEN as usize).collect();
    let mut wanted = x.clone();
    wanted.resize((NUM_TILES * TILE) as usize, 0);
    wanted.chunks_mut(TILE as usize).for_each(<[u32]>::reverse);
    Case::new("cp_async", vec![Buffer::words(&x), Buffer::Out(Want::Words(wanted))], |p| {
        cp_async_f32::Args { len: LEN, num_tiles: NUM_TILES, x: p.at(0), out: p.at(1) }
            .launch(blocks(1, NUM_THREADS))
    })
}

/// An mbarrier on which copies arrive.
pub fn with_mbarriers() -> [Case; 2] {
    use cp_async_mbarrier::Instance;
    [Instance::cp_async_mbarrier_counted, Instance::cp_async_mbarrier_noinc].map(|instance| {
        let x: Vec<u32> = random_words(22).take((NUM_TILES * TILE) as usize).collect();
        let mut wanted = x.clone();
        wanted.chunks_mut(TILE as usize).for_each(<[u32]>::reverse);
        let buffers = vec![Buffer::words(&x), Buffer::Out(Want::Words(wanted))];
        Case::new(instance.symbol(), buffers, move |p| {
            let geometry = blocks(1, NUM_THREADS);
            cp_async_mbarrier::Args { num_tiles: NUM_TILES, x: p.at(0), out: p.at(1) }
                .launch(instance, geometry)
        })
    })
}
