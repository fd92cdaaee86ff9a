//! Lanes that read each other's values.

use conformance_kernels::shuffle::{NUM_OPERANDS, NUM_VALUES, shuffle_b32, shuffle_up_down_b32};

use crate::inputs::{blocks, random_words, special_f32s};
use crate::{Buffer, Case, Want};

const NUM_THREADS: u32 = 64;
const NUM_BLOCKS: u32 = 2;

/// The five bits of each operand that count for `lane`.
fn operands(lane: usize) -> impl Iterator<Item = usize> {
    (0..NUM_OPERANDS as usize).map(move |operand| (operand + operand / 32 * lane) % 32)
}

/// Every lane mask and every lane, NaNs included: a shuffle preserves all bits.
pub fn case() -> Case {
    let words = special_f32s().into_iter().chain(random_words(1));
    let x: Vec<u32> = words.take((NUM_BLOCKS * NUM_THREADS) as usize).collect();
    let mut wanted = Vec::new();
    for thread in 0..x.len() {
        let (warp, lane) = (thread / 32 * 32, thread % 32);
        wanted.extend((0..NUM_OPERANDS as usize).map(|mask| x[warp + (lane ^ (mask % 32))]));
        wanted.extend(operands(lane).map(|from| x[warp + from]));
    }
    assert_eq!(wanted.len(), x.len() * NUM_VALUES as usize);
    Case::new("shuffle", vec![Buffer::words(&x), Buffer::Out(Want::Words(wanted))], |p| {
        shuffle_b32::Args { x: p.at(0), out: p.at(1) }.launch(blocks(NUM_BLOCKS, NUM_THREADS))
    })
}

/// Every distance: out of range, a lane reads its own word.
pub fn up_and_down() -> Case {
    let x: Vec<u32> = random_words(21).take((NUM_BLOCKS * NUM_THREADS) as usize).collect();
    let mut wanted = Vec::new();
    for (thread, &own) in x.iter().enumerate() {
        let lane = thread % 32;
        let up = |delta| if delta > lane { own } else { x[thread - delta] };
        let down = |delta| if lane + delta > 31 { own } else { x[thread + delta] };
        wanted.extend(operands(lane).map(up).chain(operands(lane).map(down)));
    }
    let buffers = vec![Buffer::words(&x), Buffer::Out(Want::Words(wanted))];
    Case::new("shuffle_up_down", buffers, |p| {
        shuffle_up_down_b32::Args { x: p.at(0), out: p.at(1) }
            .launch(blocks(NUM_BLOCKS, NUM_THREADS))
    })
}
