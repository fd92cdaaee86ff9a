//! Messages of system scope, between blocks.

use conformance_kernels::peer::{NUM_ROUNDS, NUM_THREADS, peer_flags, peer_lines};

use crate::inputs::{blocks, random_words};
use crate::{Buffer, Case, Want};

/// Both halves of a line arrive with their flag.
pub fn lines() -> Case {
    let len = (NUM_ROUNDS * NUM_THREADS * 2) as usize;
    let x: Vec<u32> = random_words(41).take(len).collect();
    let (pairs, _) = x.as_chunks::<2>();
    let answer = |[a, b]: &[u32; 2]| [a.wrapping_add(*b).rotate_left(1), a.wrapping_sub(*b)];
    let out = pairs.iter().flat_map(answer).collect();
    let line = |flag: u32, pair: [u32; 2]| [pair[0], flag, pair[1], flag];
    let flag = |at: usize| (at / NUM_THREADS as usize) as u32 + 1;
    let sent = pairs.iter().enumerate().map(|(at, pair)| line(flag(at), *pair));
    let back = pairs.iter().enumerate().map(|(at, pair)| line(flag(at), answer(pair)));
    let lines: Vec<u32> = sent.chain(back).flatten().collect();
    let buffers = vec![
        Buffer::words(&x),
        Buffer::changed(&vec![0; lines.len()], lines),
        Buffer::Out(Want::Words(out)),
    ];
    Case::new("peer_lines", buffers, |p| {
        peer_lines::Args { x: p.at(0), lines: p.at(1), out: p.at(2) }.launch(blocks(2, NUM_THREADS))
    })
}

/// What precedes a release is seen after the acquire.
pub fn flags() -> Case {
    let x: Vec<u32> = random_words(42).take(2 * NUM_THREADS as usize).collect();
    let message: Vec<u32> = x.iter().map(|x| x.rotate_left(1)).collect();
    let (first, second) = message.split_at(NUM_THREADS as usize);
    let buffers = vec![
        Buffer::words(&x),
        Buffer::Out(Want::Words(message.clone())),
        Buffer::changed(&[0; 2], vec![1; 2]),
        Buffer::Out(Want::Words([second, first].concat())),
    ];
    Case::new("peer_flags", buffers, |p| {
        peer_flags::Args { x: p.at(0), message: p.at(1), flags: p.at(2), out: p.at(3) }
            .launch(blocks(2, NUM_THREADS))
    })
}
