//! Words that pass through a circular buffer, enumerated phases, and bytes that are expected.

use conformance_kernels::mbarrier::{
    NUM_PHASE_WORDS, NUM_PRODUCERS, NUM_THREADS, NUM_WORDS, STAGE, mbarrier_bytes, mbarrier_phases,
    mbarrier_ring_u32,
};

use crate::inputs::{blocks, random_words};
use crate::{Buffer, Case, Want};

/// Several passes through the circular buffer.
const NUM_ROUNDS: u32 = 11;

/// Several producers and consumers.
pub fn ring() -> Case {
    let x: Vec<u32> = random_words(23).take((NUM_ROUNDS * STAGE) as usize).collect();
    let mut wanted = Vec::new();
    for (round, stage) in (0..NUM_ROUNDS).zip(x.chunks(STAGE as usize)) {
        for consumer in 0..NUM_PRODUCERS {
            let warp = (NUM_PRODUCERS - 1 - consumer) as usize * 32;
            wanted.extend((0..32).map(|lane| stage[warp + (lane ^ 1)].wrapping_add(round)));
        }
    }
    let buffers = vec![Buffer::words(&x), Buffer::Out(Want::Words(wanted))];
    Case::new("mbarrier_ring", buffers, |p| {
        mbarrier_ring_u32::Args { num_rounds: NUM_ROUNDS, x: p.at(0), out: p.at(1) }
            .launch(blocks(1, NUM_THREADS))
    })
}

/// A phase counts as complete until the next one is; a new barrier is in its first phase.
pub fn phases() -> Case {
    let num_ended = [0u32, 0, 1, 2, 2, 3];
    let wanted = num_ended.into_iter().flat_map(|ended| [ended % 2, 1 - ended % 2]);
    let wanted: Vec<u32> = wanted.chain([5, 0, 0, 1]).collect();
    assert_eq!(wanted.len(), NUM_PHASE_WORDS);
    let buffers = vec![Buffer::Out(Want::Words(wanted))];
    Case::new("mbarrier_phases", buffers, |p| {
        mbarrier_phases::Args { out: p.at(0) }.launch(blocks(1, 1))
    })
}

/// A phase is complete once its bytes have arrived, whether they are expected before the copy
/// starts or after.
pub fn bytes() -> [Case; 2] {
    use mbarrier_bytes::Instance;
    [Instance::mbarrier_bytes_late, Instance::mbarrier_bytes_early].map(|instance| {
        let x: Vec<u32> = random_words(27).take(NUM_WORDS as usize).collect();
        let wanted = [&[0], &x[..]].concat();
        let buffers = vec![Buffer::words(&x), Buffer::Out(Want::Words(wanted))];
        Case::new(instance.symbol(), buffers, move |p| {
            mbarrier_bytes::Args { x: p.at(0), out: p.at(1) }.launch(instance, blocks(1, 1))
        })
    })
}
