//! Values that pass from thread to thread.

use conformance_kernels::barrier::{NUM_ROUNDS, NUM_THREADS, barrier_rotate_u32};

use crate::inputs::{blocks, random_words};
use crate::{Buffer, Case, Want};

/// The result is right only if every round waits for all threads.
pub fn case() -> Case {
    let x: Vec<u32> = random_words(2).take(NUM_THREADS as usize).collect();
    let distance: u32 = (0..NUM_ROUNDS).map(|round| 37 * round + 1).sum();
    let mut wanted = x.clone();
    wanted.rotate_left((distance % NUM_THREADS) as usize);
    Case::new("barrier", vec![Buffer::words(&x), Buffer::Out(Want::Words(wanted))], |p| {
        barrier_rotate_u32::Args { x: p.at(0), out: p.at(1) }.launch(blocks(1, NUM_THREADS))
    })
}
