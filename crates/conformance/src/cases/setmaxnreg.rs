//! Sums of many values that a thread holds at once.

use conformance_kernels::setmaxnreg::{NUM_THREADS, NUM_VALUES, setmaxnreg_u32};

use crate::inputs::{blocks, random_words};
use crate::{Buffer, Case, Want};

/// Registers are reallocated, and no value is lost.
pub fn case() -> Case {
    let x: Vec<u32> = random_words(26).take((NUM_VALUES * NUM_THREADS) as usize).collect();
    let rows: Vec<&[u32]> = x.chunks(NUM_THREADS as usize).collect();
    let sum = |thread: usize| {
        let products = rows.iter().zip(1u32..).map(|(row, i)| row[thread].wrapping_mul(i));
        products.fold(0u32, u32::wrapping_add)
    };
    let wanted = (0..NUM_THREADS as usize)
        .map(|thread| if thread < 128 { rows[0][thread] } else { sum(thread) });
    let buffers = vec![Buffer::words(&x), Buffer::Out(Want::Words(wanted.collect()))];
    Case::new("setmaxnreg", buffers, |p| {
        setmaxnreg_u32::Args { x: p.at(0), out: p.at(1) }.launch(blocks(1, NUM_THREADS))
    })
}
