//! Sums and maxima over a warp, lane by lane.

use conformance_kernels::reduce::{NUM_VALUES, reduce_b32};

use super::math;
use crate::inputs::{blocks, random_words, special_f32s};
use crate::{Buffer, Case, Want};

const NUM_THREADS: u32 = 64;

/// Warps of special numbers, NaN among them; of NaN alone; of zeros of both signs; of negative
/// numbers and one NaN; of random words. The sums are of integers, exact in every order.
pub fn case() -> Case {
    let specials = special_f32s().into_iter().cycle().take(32);
    let nans = [0x7f80_0001, 0xffc0_0000].into_iter().cycle().take(32);
    let zeros = (0..32).map(|lane| if lane == 17 { 0 } else { 0x8000_0000 });
    let negative = (0..32).map(|lane| if lane == 5 { 0x7fc0_0000 } else { 0xbf80_0000 + lane });
    let warps = specials.chain(nans).chain(zeros).chain(negative);
    let x: Vec<u32> = warps.chain(random_words(22)).take(6 * NUM_THREADS as usize).collect();
    let terms: Vec<f32> = random_words(23).take(x.len()).map(|word| (word >> 16) as f32).collect();
    let mut wanted = Vec::new();
    for (words, terms) in x.chunks(32).zip(terms.chunks(32)) {
        let max = |of: &dyn Fn(u32, u32) -> u32| words.iter().copied().reduce(of).unwrap_or(0);
        let of_warp = [
            max(&u32::max),
            max(&|a, b| (a as i32).max(b as i32) as u32),
            max(&math::max),
            terms.iter().sum::<f32>().to_bits(),
        ];
        wanted.extend(words.iter().flat_map(|_| of_warp));
    }
    assert_eq!(wanted.len(), x.len() * NUM_VALUES as usize);
    let terms: Vec<u32> = terms.iter().map(|term| term.to_bits()).collect();
    let buffers = vec![Buffer::words(&x), Buffer::words(&terms), Buffer::Out(Want::Words(wanted))];
    Case::new("reduce", buffers, |p| {
        reduce_b32::Args { x: p.at(0), terms: p.at(1), out: p.at(2) }.launch(blocks(6, NUM_THREADS))
    })
}
