//! Lanes that vote, match, reduce and elect, lane by lane.

use conformance_kernels::vote::{NUM_VALUES, vote_b32, vote_elect};

use crate::inputs::{blocks, random_words};
use crate::{Buffer, Case, Want};

/// All lanes, halves of the warp, every other lane, a few, one.
const MASKS: [u32; 6] = [u32::MAX, 0xffff, 0xaaaa_aaaa, 0x8000_0111, 0x0001_0000, 0xffff_0000];

/// Words whose bit 0 is set in all lanes and bit 1 in none, for unanimous votes; few different
/// values in byte 2, and one value in byte 3 of the lower half of the warp.
pub fn votes() -> Case {
    let lanes = random_words(20).take(32).zip(0u32..);
    let words: Vec<u32> = lanes
        .map(|(word, lane)| {
            let word = word & !0b10 & !0x00fc_0000 | 1;
            if lane < 16 { word & 0x00ff_ffff | 0x9500_0000 } else { word }
        })
        .collect();
    let mut wanted = Vec::new();
    for (i, mask) in MASKS.into_iter().enumerate() {
        for lane in 0..32 {
            let mask = if mask >> lane & 1 == 1 { mask } else { !mask };
            wanted.extend(values(&words, mask, i, lane));
        }
    }
    let buffers =
        vec![Buffer::words(&MASKS), Buffer::words(&words), Buffer::Out(Want::Words(wanted))];
    Case::new("vote", buffers, |p| {
        vote_b32::Args { num_masks: MASKS.len() as u32, masks: p.at(0), x: p.at(1), out: p.at(2) }
            .launch(blocks(1, 32))
    })
}

/// The words that `lane` writes for mask `i`.
fn values(words: &[u32], mask: u32, i: usize, lane: usize) -> [u32; NUM_VALUES as usize] {
    let lanes = || (0..32).filter(|lane| mask >> lane & 1 == 1);
    let those = |is_one: &dyn Fn(u32) -> bool| {
        lanes().filter(|&lane| is_one(words[lane])).fold(0, |set, lane| set | 1 << lane)
    };
    let all = |of: &dyn Fn(u32, u32) -> u32| {
        lanes().map(|lane| words[lane]).reduce(of).expect("the mask is not empty")
    };
    let ballot = those(&|word| word >> i & 1 == 1);
    let same_byte = |shift: u32| those(&|word| word >> shift & 0xff == words[lane] >> shift & 0xff);
    [
        u32::from(ballot == mask),
        u32::from(ballot != 0),
        ballot,
        same_byte(16),
        u32::from(same_byte(24) == mask),
        all(&|a, b| a.wrapping_add(b)),
        all(&|a, b| a.min(b)),
        all(&|a, b| a.max(b)),
        all(&|a, b| (a as i32).min(b as i32) as u32),
        all(&|a, b| (a as i32).max(b as i32) as u32),
        all(&|a, b| a & b),
        all(&|a, b| a | b),
        all(&|a, b| a ^ b),
        words[mask.trailing_zeros() as usize],
        words[lane],
        1,
    ]
}

/// Any one lane of the mask, and the same one twice.
pub fn elections() -> Case {
    let wanted = vec![1; MASKS.len() * 32 * 2];
    let buffers = vec![Buffer::words(&MASKS), Buffer::Out(Want::Words(wanted))];
    Case::new("vote_elect", buffers, |p| {
        vote_elect::Args { num_masks: MASKS.len() as u32, masks: p.at(0), out: p.at(1) }
            .launch(blocks(1, 32))
    })
}
