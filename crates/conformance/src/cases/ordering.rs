//! Plain accesses of several blocks, ordered by atomic operations.

use conformance_kernels::ordering::{
    NUM_ROUNDS, NUM_THREADS, ordering_last_block, ordering_messages, ordering_semaphore,
};

use crate::inputs::{blocks, random_words};
use crate::{Buffer, Case, Want};

/// Blocks of the kernels.
const NUM_BLOCKS: u32 = 6;

/// No update is lost between blocks.
pub fn semaphore() -> Case {
    let sum = NUM_ROUNDS * (1..=NUM_BLOCKS).sum::<u32>();
    let buffers = vec![Buffer::changed(&[0], vec![0]), Buffer::changed(&[0], vec![sum])];
    Case::new("ordering_semaphore", buffers, |p| {
        ordering_semaphore::Args { lock: p.at(0), sum: p.at(1) }.launch(blocks(NUM_BLOCKS, 1))
    })
}

/// The last block sees the values of all blocks.
pub fn last_block() -> Case {
    let x: Vec<u32> = random_words(36).take((NUM_BLOCKS * NUM_THREADS) as usize).collect();
    let parts: Vec<u32> = x.iter().map(|x| x.rotate_left(1)).collect();
    let hash = parts.iter().fold(0u32, |sum, part| sum.wrapping_mul(3).wrapping_add(*part));
    let buffers = vec![
        Buffer::words(&x),
        Buffer::Out(Want::Words(parts)),
        Buffer::changed(&[0], vec![NUM_BLOCKS]),
        Buffer::Out(Want::Words(vec![hash])),
    ];
    Case::new("ordering_last_block", buffers, |p| {
        let geometry = blocks(NUM_BLOCKS, NUM_THREADS);
        ordering_last_block::Args { x: p.at(0), parts: p.at(1), arrived: p.at(2), sum: p.at(3) }
            .launch(geometry)
    })
}

/// Every message arrives completely.
pub fn messages() -> Case {
    let num_words = (NUM_ROUNDS * NUM_THREADS) as usize;
    let x: Vec<u32> = random_words(37).map(|word| word >> 1).take(num_words).collect();
    let last = x[num_words - NUM_THREADS as usize..].to_vec();
    let buffers = vec![
        Buffer::words(&x),
        Buffer::changed(&[0], vec![2 * NUM_ROUNDS]),
        Buffer::Out(Want::Words(last)),
        Buffer::Out(Want::Words(x.iter().map(|word| word + 1).collect())),
    ];
    Case::new("ordering_messages", buffers, |p| {
        let geometry = blocks(2, NUM_THREADS);
        ordering_messages::Args { x: p.at(0), turn: p.at(1), message: p.at(2), out: p.at(3) }
            .launch(geometry)
    })
}
