//! Random weights, and what operations make of them on the way to a kernel.

use half::{bf16, f16};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use crate::plan::{Dtype, Op, PlanBuilder, ReadWeightError, View, Weight, WeightSource};

/// Norms, by the start of their weights' names; and what they add to the mean of squares.
const ONES: &str = "ones";
const EPS: f32 = 1e-6;

/// Random numbers, the same for the same name of a weight; ones for a norm.
pub(crate) struct RandomWeights {
    pub(super) draw: fn(&mut ChaCha8Rng) -> f32,
}

impl RandomWeights {
    /// Numbers from -1 to 1.
    pub(crate) const UNIFORM: Self =
        RandomWeights { draw: |random| random.random_range(-1.0f32..1.0) };

    /// Normal numbers of mean 0 and deviation 1, by Box and Muller.
    pub(crate) const NORMAL: Self = RandomWeights {
        draw: |random| {
            let radius = (-2.0 * (1.0 - random.random::<f32>()).ln()).sqrt();
            radius * (std::f32::consts::TAU * random.random::<f32>()).cos()
        },
    };

    /// Numbers from -0.05 to 0.05: layer upon layer of them stays within f16.
    pub(super) const SMALL: Self =
        RandomWeights { draw: |random| random.random_range(-0.05f32..0.05) };

    /// The numbers of a weight, as it stores them.
    pub(crate) fn values(&self, weight: &Weight) -> Result<Vec<f32>, ReadWeightError> {
        let mut bytes = vec![0; weight.bytes()];
        self.read(weight, &mut bytes)?;
        let (halves, words) = (bytes.as_chunks().0.iter(), bytes.as_chunks().0.iter());
        Ok(match weight.storage() {
            Some(Dtype::F16) => halves.map(|&x| f16::from_ne_bytes(x).to_f32()).collect(),
            Some(Dtype::BF16) => halves.map(|&x| bf16::from_ne_bytes(x).to_f32()).collect(),
            _ => words.map(|&x| f32::from_ne_bytes(x)).collect(),
        })
    }
}

impl WeightSource for RandomWeights {
    fn read(&self, weight: &Weight, out: &mut [u8]) -> Result<(), ReadWeightError> {
        let seed = weight
            .name
            .bytes()
            .fold(0u64, |seed, byte| seed.wrapping_mul(31).wrapping_add(u64::from(byte)));
        let storage = weight.storage().unwrap_or(Dtype::F32);
        let is_norm = weight.name.starts_with(ONES);
        out.par_chunks_mut(1 << 20).enumerate().for_each(|(chunk, out)| {
            let mut random = ChaCha8Rng::seed_from_u64(seed);
            random.set_stream(chunk as u64);
            let mut next = || if is_norm { 1.0 } else { (self.draw)(&mut random) };
            for out in out.chunks_exact_mut(storage.block_bytes()) {
                match storage {
                    Dtype::F16 => out.copy_from_slice(&f16::from_f32(next()).to_ne_bytes()),
                    Dtype::BF16 => out.copy_from_slice(&bf16::from_f32(next()).to_ne_bytes()),
                    _ => out.copy_from_slice(&next().to_ne_bytes()),
                }
            }
        });
        Ok(())
    }
}

/// The rows of `x`, which are f32, in `dtype`: a norm rounds them.
pub(crate) fn norm(plan: &mut PlanBuilder, x: View, copy: usize, dtype: Dtype) -> View {
    let ones = plan.weight(Weight::whole(format!("{ONES}{copy}"), 1, x.width, Dtype::F32));
    let out = plan.activation(format!("normed{copy}"), plan.rows(x), x.width, dtype);
    plan.op(Op::RmsNorm { x, weight: ones, out, eps: EPS });
    out
}

/// What [`norm`] makes of a row.
pub(crate) fn normed(row: &[f32], dtype: Dtype) -> Vec<f64> {
    let squares: f64 = row.iter().map(|&value| f64::from(value).powi(2)).sum();
    let scale = 1.0 / (squares / row.len() as f64 + f64::from(EPS)).sqrt();
    let round = |value: f32| rounded((f64::from(value) * scale) as f32, dtype);
    row.iter().map(|&value| f64::from(round(value))).collect()
}

/// The nearest number that `dtype` has.
fn rounded(value: f32, dtype: Dtype) -> f32 {
    match dtype {
        Dtype::F16 => f16::from_f32(value).to_f32(),
        Dtype::BF16 => bf16::from_f32(value).to_f32(),
        _ => value,
    }
}
