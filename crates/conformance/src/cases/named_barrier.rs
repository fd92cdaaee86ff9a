//! Values that producer warps pass to consumer warps through two buffers.

use conformance_kernels::named_barrier::{
    NUM_PRODUCERS, NUM_ROUNDS, NUM_THREADS, named_barrier_u32,
};

use crate::inputs::{blocks, random_words};
use crate::{Buffer, Case, Want};

/// The result is right only if both sides wait for each other.
pub fn case() -> Case {
    let len = (2 * NUM_ROUNDS * NUM_PRODUCERS) as usize;
    let x: Vec<u32> = random_words(25).map(|word| word >> 1).take(len).collect();
    let buffers_of_x = x.chunks(NUM_PRODUCERS as usize);
    let wanted = buffers_of_x.flat_map(|buffer| buffer.iter().rev().map(|value| value << 1));
    let buffers = vec![Buffer::words(&x), Buffer::Out(Want::Words(wanted.collect()))];
    Case::new("named_barrier", buffers, |p| {
        named_barrier_u32::Args { x: p.at(0), out: p.at(1) }.launch(blocks(1, NUM_THREADS))
    })
}
