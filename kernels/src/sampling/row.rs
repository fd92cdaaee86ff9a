//! A row of logits, and what its sampling says.

use super::noise::{self, Noise};
use super::{BLOCK_COLUMNS, LOG2_E, NUM_THREADS, ROW_SAMPLING_LEN, UNROLL, wanted_mass};
use cuda_std::prelude::*;

/// A row of logits.
#[derive(Clone, Copy)]
pub(super) struct Row {
    pub logits: Global<f32>,
    pub vocab_size: u32,
}

impl Row {
    /// The thread's logits of the columns of `block`; negative infinity outside the row.
    ///
    /// # Safety
    /// 1. As [`Row::load_from`].
    #[inline(always)]
    pub unsafe fn load(self, block: u32) -> [f32; UNROLL as usize] {
        // SAFETY: the caller's promise.
        unsafe { self.load_from(block * BLOCK_COLUMNS + thread::thread_idx_x()) }
    }

    /// The logits of `first` and every `NUM_THREADS`th column after it; negative infinity outside the
    /// row.
    ///
    /// # Safety
    /// 1. `logits` holds `vocab_size` elements.
    #[inline(always)]
    pub unsafe fn load_from<const LEN: usize>(self, first: u32) -> [f32; LEN] {
        let mut values = [f32::NEG_INFINITY; LEN];
        unroll!(step in 0..LEN, {
            let column = first + step as u32 * NUM_THREADS;
            if column < self.vocab_size {
                // SAFETY: inside by the check.
                values[step] = unsafe { self.logits.get(column as usize) };
            }
        });
        values
    }
}

/// How a row is sampled: a [`RowSampling`](super::RowSampling) as the device has it.
#[derive(Clone, Copy)]
pub(super) struct Sampling {
    inverse_temperature: f32,
    top_k: u32,
    top_p: f32,
    /// The largest distance that min-p allows.
    max_distance: f32,
    noise: Noise,
}

impl Sampling {
    /// That of `row`.
    ///
    /// # Safety
    /// 1. `sampling` holds that many rows of `ROW_SAMPLING_LEN`, at a multiple of 16 bytes.
    #[inline(always)]
    pub unsafe fn load(sampling: Global<u32>, row: usize) -> Self {
        // SAFETY: the caller's promise.
        let ([inverse_temperature, top_k, top_p, max_distance], [low, high, position, _]) = unsafe {
            let row = sampling.add(row * ROW_SAMPLING_LEN);
            (row.get_vec(0), row.get_vec(4))
        };
        Sampling {
            inverse_temperature: f32::from_bits(inverse_temperature),
            top_k,
            top_p: f32::from_bits(top_p),
            max_distance: f32::from_bits(max_distance),
            noise: Noise { seed: [low, high], position },
        }
    }

    /// Whether the row's token is that of the largest logit.
    #[inline(always)]
    pub fn is_greedy(&self) -> bool {
        self.inverse_temperature == 0.0
    }

    /// Whether top-k or top-p leave tokens out.
    #[inline(always)]
    pub fn is_truncated(&self) -> bool {
        self.top_k > 0 || self.has_top_p()
    }

    /// Whether top-p leaves tokens out.
    #[inline(always)]
    pub fn has_top_p(&self) -> bool {
        self.top_p < 1.0
    }

    /// Tokens that top-k keeps.
    #[inline(always)]
    pub fn top_k(&self) -> u32 {
        if self.top_k == 0 { u32::MAX } else { self.top_k }
    }

    /// The mass that top-p keeps of `mass`.
    #[inline(always)]
    pub fn wanted_mass(&self, mass: u64) -> u64 {
        wanted_mass(self.top_p, mass)
    }

    /// Whether min-p keeps a token at a distance.
    #[inline(always)]
    pub fn keeps(&self, distance: f32) -> bool {
        distance <= self.max_distance
    }

    /// The random bits of its tokens.
    #[inline(always)]
    pub fn noise(&self) -> Noise {
        self.noise
    }

    /// What the token at `distance` with random `bits` has in the race: the largest wins.
    #[inline(always)]
    pub fn score(&self, distance: f32, bits: u32) -> f32 {
        -(distance * self.inverse_temperature + ln_exponential(noise::uniform(bits)))
    }
}

/// `ln(-ln(1 - uniform))`.
#[inline(always)]
fn ln_exponential(uniform: f32) -> f32 {
    // Near 0 the logarithm of `1 - uniform` has no precision left.
    let exponential = if uniform < 1.0 / 16.0 {
        let tail = math::fma(uniform, math::fma(uniform, 0.2, 0.25), 1.0 / 3.0);
        uniform * math::fma(uniform, math::fma(uniform, tail, 0.5), 1.0)
    } else {
        -math::log2_approx(1.0 - uniform) / LOG2_E
    };
    math::log2_approx(exponential) / LOG2_E
}
