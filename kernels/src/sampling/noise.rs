//! Random numbers of the draw: Philox4x32-10, a counter-based generator (Salmon et al., *Parallel
//! random numbers: as easy as 1, 2, 3*, SC 2011), as cuRAND and PyTorch have it.
//!
//! The key is the seed, and the counter the position in the answer and a group of four tokens: a
//! token's number is the same whatever else is sampled.

/// Tokens from one of a group to the next: those that a thread takes.
pub const GROUP_STRIDE: u32 = super::NUM_THREADS;

/// Tokens of a group: one for each output of the generator.
pub const GROUP_LEN: u32 = 4;

/// Multipliers of the rounds.
const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];

/// What is added to the key after a round.
const WEYL: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];

/// Rounds of the generator.
const NUM_ROUNDS: usize = 10;

/// The four outputs of a counter.
#[inline(always)]
pub fn philox4x32(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..NUM_ROUNDS {
        let a = u64::from(counter[0]) * u64::from(MULTIPLIERS[0]);
        let b = u64::from(counter[2]) * u64::from(MULTIPLIERS[1]);
        counter = [
            (b >> 32) as u32 ^ counter[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ counter[3] ^ key[1],
            a as u32,
        ];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    counter
}

/// The random numbers of one draw.
#[derive(Clone, Copy, Debug)]
pub struct Noise {
    /// The seed's halves, the low one first.
    pub seed: [u32; 2],
    /// Tokens that were drawn before.
    pub position: u32,
}

impl Noise {
    /// That of a draw with `seed` after `position` tokens.
    pub const fn new(seed: u64, position: u32) -> Self {
        Noise { seed: [seed as u32, (seed >> 32) as u32], position }
    }

    /// The bits of the tokens `first`, `first + GROUP_STRIDE` and so on; `first` begins a group.
    #[inline(always)]
    pub fn group(self, first: u32) -> [u32; GROUP_LEN as usize] {
        const GROUP: u32 = GROUP_LEN * GROUP_STRIDE;
        let index = first / GROUP * GROUP_STRIDE + first % GROUP_STRIDE;
        philox4x32([index, self.position, 0, 0], self.seed)
    }

    /// The bits of one token.
    #[inline(always)]
    pub fn bits(self, token: u32) -> u32 {
        let [a, b, c, d] = self.group(token);
        match token / GROUP_STRIDE % GROUP_LEN {
            0 => a,
            1 => b,
            2 => c,
            _ => d,
        }
    }
}

/// A number of (0, 1) from random bits, with the relative precision of an f32 near 0.
#[inline(always)]
pub fn uniform(bits: u32) -> f32 {
    const LARGEST: f32 = 1.0 - f32::EPSILON / 2.0;
    let uniform = (bits as f32 + 0.5) * (1.0 / (1_u64 << 32) as f32);
    if uniform < LARGEST { uniform } else { LARGEST }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers of the generator's authors (Random123, `kat_vectors`).
    #[test]
    fn philox_gives_the_known_answers() {
        let ones = philox4x32([u32::MAX; 4], [u32::MAX; 2]);
        assert_eq!(
            philox4x32([0; 4], [0; 2]),
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
        );
        assert_eq!(ones, [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        let counter = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];
        let pi = philox4x32(counter, [0xa409_3822, 0x299f_31d0]);
        assert_eq!(pi, [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
    }

    #[test]
    fn each_token_of_a_vocabulary_has_bits_of_its_own() {
        let noise = Noise { seed: [1, 2], position: 3 };
        let mut bits: Vec<u32> = (0..20_000).map(|token| noise.bits(token)).collect();
        for first in [0, 5, 1023, 4096, 4097, 8192 + 17] {
            let group = noise.group(first);
            for (i, &bits) in group.iter().enumerate() {
                assert_eq!(bits, noise.bits(first + i as u32 * GROUP_STRIDE), "{first}, {i}");
            }
        }
        bits.sort_unstable();
        bits.dedup();
        // Of 20,000 random words of 32 bits two are equal once in 21 times.
        assert!(bits.len() > 19_990, "{} of 20,000", bits.len());
    }

    #[test]
    fn uniform_numbers_are_inside_0_and_1() {
        for bits in [0, 1, 1 << 31, u32::MAX - 300, u32::MAX] {
            let uniform = uniform(bits);
            assert!(uniform > 0.0 && uniform < 1.0, "{bits}: {uniform}");
        }
        assert_eq!(uniform(0), 2f32.powi(-33));
    }
}
