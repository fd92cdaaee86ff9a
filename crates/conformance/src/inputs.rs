//! Inputs and geometries that several cases share.

use cuda_std::launch::Geometry;

/// Special values of f32, of both signs: zeros, the ends of the
/// subnormal and of the normal numbers, small integers and their neighbours, infinities, NaNs.
pub fn special_f32s() -> Vec<u32> {
    let magnitudes: [u32; 14] = [
        0x0000_0000, // 0
        0x0000_0001, // the smallest subnormal
        0x007f_ffff, // the largest subnormal
        0x0080_0000, // the smallest normal
        0x0080_0001,
        0x3f00_0000, // 0.5
        0x3f7f_ffff, // the last before 1
        0x3f80_0000, // 1
        0x3f80_0001,
        0x4040_0000, // 3
        0x7f7f_ffff, // the largest
        0x7f80_0000, // infinity
        0x7f80_0001, // a signalling NaN
        0x7fc0_0000, // a quiet NaN
    ];
    magnitudes.into_iter().flat_map(|bits| [bits, bits | 0x8000_0000]).collect()
}

/// Random words, determined by `seed`.
pub fn random_words(seed: u64) -> impl Iterator<Item = u32> {
    // SplitMix64.
    let mut state = seed;
    std::iter::repeat_with(move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed >> 32) as u32
    })
}

/// Random floats from -`limit` to `limit`, as words.
pub fn random_f32s(seed: u64, limit: f32) -> impl Iterator<Item = u32> {
    random_words(seed)
        .map(move |word| (limit * (word as f32 / (1u64 << 31) as f32 - 1.0)).to_bits())
}

/// A grid of blocks in x, without dynamic shared memory.
pub fn blocks(num_blocks: u32, num_threads: u32) -> Geometry {
    Geometry { grid: [num_blocks, 1, 1], block: [num_threads, 1, 1], shared_bytes: 0 }
}

/// f16, or codes of other 16-bit formats, two to a word.
pub fn words_of_halves(halves: &[u16]) -> Vec<u32> {
    let (pairs, _) = halves.as_chunks::<2>();
    pairs.iter().map(|&[low, high]| u32::from(low) | u32::from(high) << 16).collect()
}

/// Bytes, four to a word.
pub fn words_of_bytes(bytes: &[u8]) -> Vec<u32> {
    let (words, _) = bytes.as_chunks::<4>();
    words.iter().map(|word| u32::from_le_bytes(*word)).collect()
}
