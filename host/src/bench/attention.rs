//! Attention over a paged cache on a GPU, timed as [`kernels`](super::kernels) says.
//!
//! A token's row of a random table is its Q, K and V: what is at a position of the cache is known
//! from the position's token, and no cache is made on the host. Each copy of the inputs is a layer
//! of the cache and a Q of its own; the pages of the sequences are in random order.
//!
//! Each graph first appends the new tokens to every layer, a prompt's all and a decode step's last
//! one. One round and two have that in common: only attention itself is timed. Where appends are
//! timed, the calls are appends, and one call of attention reads what they wrote.

mod sequences;
mod shape;

use std::path::PathBuf;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use self::sequences::{FILL_TOKENS, Sequences, TABLE_ROWS};
pub use self::shape::{Shape, Step, decode_shapes, prefill_shapes};
use super::kernels::{
    BenchError, Calls, Row, attend, calls_per_round, check_error, finish, num_copies,
    relative_error,
};
use super::random::{RandomWeights, norm, normed};
use crate::exec::cuda::CudaExecutor;
use crate::exec::{ExecError, Executor, GpuOptions, PreparedPlan, Target, Want};
use crate::plan::{
    Attention, Bounds, Dtype, KvHeads, KvLayout, KvStorage, Op, Plan, PlanBuilder, PlanError,
    Precision, Rows, Weight,
};

/// What is measured.
#[derive(Clone, Debug)]
pub struct Config {
    /// The number of the GPU.
    pub gpu: usize,
    /// What the kernels are compiled for; `None`: the newest that the GPU can run.
    pub target: Option<Target>,
    /// Type of the operands and of the cache.
    pub precision: Precision,
    /// As [`GpuOptions::cubin_dir`].
    pub cubin_dir: Option<PathBuf>,
}

const WEIGHTS: RandomWeights = RandomWeights::NORMAL;
const MAX_COPIES: usize = 16;
/// Heads of rows that are verified.
const SAMPLES: usize = 64;

/// Measures `config` at a shape.
///
/// # Errors
/// [`BenchError`].
pub fn measure(config: &Config, shape: Shape) -> Result<Row<Shape>, BenchError> {
    let mut calls = open(config, shape, Timed::Attention)?;
    let [us, min_us] = calls.us()?;
    let Calls { gpu, error, .. } = calls;
    let precision = config.precision;
    Ok(Row {
        op: shape.op(),
        implementation: "halfwarp",
        dtype: precision.to_string(),
        shape,
        us,
        min_us,
        tflops: shape.flops() / us / 1e6,
        gbs: shape.bytes(precision.operand()) as f64 / us / 1e3,
        error,
        config: Some(gpu.target().name()),
        gpu: gpu.describe(),
    })
}

/// What is timed of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timed {
    /// Attention.
    Attention,
    /// The append of the new tokens' K and V to a layer of the cache.
    KvAppend,
}

/// Makes calls of `config` at a shape, and verifies attention over what was appended.
///
/// # Errors
/// [`BenchError`].
pub fn open(config: &Config, shape: Shape, timed: Timed) -> Result<Calls, BenchError> {
    shape.check()?;
    let &Config { gpu: ordinal, target, precision, ref cubin_dir } = config;
    let options = GpuOptions { target, cubin_dir: cubin_dir.clone(), ..GpuOptions::default() };
    let copies = num_copies(shape.bytes(precision.operand()), MAX_COPIES);
    let bench = Bench { shape, precision, timed, copies };
    let calls = calls_per_round(copies);
    let largest = bench.plan(bench.largest_bounds(), 2 * calls + 1)?;
    let gpu = CudaExecutor::open(ordinal, &options, &largest, &WEIGHTS)?;
    let mut gpu = gpu.without_overlap();
    let mut prepared = |calls: usize| -> Result<PreparedPlan, BenchError> {
        Ok(gpu.prepare(&bench.plan(bench.step_bounds(), calls)?)?)
    };
    let rounds = [prepared(2 * calls + 1)?, prepared(calls + 1)?];

    let sequences = Sequences::new(shape);
    bench.fill_cache(&mut gpu, &sequences)?;
    let step = sequences.step();
    let got = gpu.run(rounds[0], &step, Want::Logits)?.logits;
    bench.check_finite(&got)?;
    let error = bench.sampled_error(&largest, &sequences, &got)?;
    let error = check_error(&shape, error, bench.error_bound())?;

    gpu.run(rounds[1], &step, Want::Nothing)?;
    Ok(Calls { gpu, rounds, calls, error })
}

/// Attention of one shape.
struct Bench {
    shape: Shape,
    precision: Precision,
    timed: Timed,
    copies: usize,
}

impl Bench {
    /// Bounds of the step that is timed.
    fn step_bounds(&self) -> Bounds {
        let Shape { batch, .. } = self.shape;
        let (q_len, max_kv_len) = (self.shape.q_len(), self.shape.kv_len());
        let max_tokens = batch * q_len;
        let (max_seqs, max_q_len, max_logit_rows) = (batch, q_len, max_tokens);
        Bounds { max_tokens, max_seqs, max_q_len, max_logit_rows, max_kv_len, mixed: false }
    }

    /// Bounds of that step and of those that fill the cache.
    fn largest_bounds(&self) -> Bounds {
        let step = self.step_bounds();
        let fill_tokens = self.shape.past_len().min(FILL_TOKENS);
        Bounds {
            max_tokens: step.max_tokens.max(fill_tokens),
            max_q_len: step.max_q_len.max(fill_tokens),
            ..step
        }
    }

    /// The tokens are appended to every copy, then come `calls` calls over the copies: of
    /// attention, or of appends and then one of attention. The output of the first of attention
    /// comes out as logits, without calls a Q; those of the others go to one place: so do the
    /// peers', whose allocator gives a call the memory that the one before has left.
    fn plan(&self, bounds: Bounds, calls: usize) -> Result<Plan, PlanError> {
        let Shape { num_heads, num_kv_heads, head_dim, .. } = self.shape;
        let (q_width, kv_width) = (self.shape.q_width(), self.shape.kv_width());
        let (width, dtype) = (q_width + 2 * kv_width, self.precision.operand());
        let mut plan = PlanBuilder::new();
        let table = plan.weight(Weight::whole("qkv".to_owned(), TABLE_ROWS, width, dtype));
        let qkv = plan.activation("qkv", Rows::Tokens, width, Dtype::F32);
        plan.op(Op::Embedding { table, out: qkv, scale: 1.0 });
        let (k, v) = (qkv.columns(q_width, kv_width), qkv.columns(q_width + kv_width, kv_width));
        let (appends, calls) = match self.timed {
            Timed::Attention => (0, calls),
            Timed::KvAppend => (calls, calls.min(1)),
        };
        for append in 0..self.copies + appends {
            plan.op(Op::KvAppend { layer: append % self.copies, k, v });
        }
        let mut queries = Vec::new();
        for layer in 0..self.copies {
            queries.push(norm(&mut plan, qkv.columns(0, q_width), layer, dtype));
        }
        let output = plan.activation("out", Rows::Tokens, q_width, dtype);
        let verified = plan.activation("verified", Rows::Tokens, q_width, dtype);
        for call in 0..calls {
            let layer = call % self.copies;
            plan.op(Op::Attention(Attention {
                layer,
                q: queries[layer],
                out: if call == 0 { verified } else { output },
                num_heads,
                num_kv_heads,
                head_dim,
                softmax_scale: self.softmax_scale(),
                causal: self.shape.is_causal(),
                window: None,
                sinks: None,
                softcap: None,
            }));
        }
        let kv = KvLayout {
            layers: vec![KvHeads { num_kv_heads, head_dim }; self.copies],
            num_pages: self.shape.batch * self.shape.pages_per_seq(),
            windows: None,
            dtype: self.precision.cache(),
            storage: KvStorage::default(),
        };
        let verified = if calls == 0 { queries[0] } else { verified };
        finish(plan, &self.precision.into(), bounds, kv, verified)
    }

    fn softmax_scale(&self) -> f32 {
        (self.shape.head_dim as f32).sqrt().recip()
    }

    /// Appends all positions before those of the timed step.
    fn fill_cache(
        &self,
        executor: &mut dyn Executor,
        sequences: &Sequences,
    ) -> Result<(), BenchError> {
        let fill = executor.prepare(&self.plan(self.largest_bounds(), 0)?)?;
        for inputs in sequences.past_steps() {
            executor.run(fill, &inputs, Want::Nothing)?;
        }
        Ok(())
    }

    /// Error bound: P of 16 bits is rounded as V is; a sum in f32 is rounded at each position.
    fn error_bound(&self) -> f64 {
        if self.precision == Precision::F32 { 1e-4 } else { 1e-2 }
    }

    fn check_finite(&self, got: &[f32]) -> Result<(), BenchError> {
        let is_finite = |row: &[f32]| row.iter().all(|value| value.is_finite());
        match got.chunks_exact(self.shape.q_width()).position(|row| !is_finite(row)) {
            Some(row) => Err(BenchError::NotFinite { shape: self.shape.to_string(), row }),
            None => Ok(()),
        }
    }

    /// The largest relative error of a head of a row, of a sample of the first call's output.
    fn sampled_error(
        &self,
        plan: &Plan,
        sequences: &Sequences,
        got: &[f32],
    ) -> Result<f64, ExecError> {
        let Shape { batch, num_heads, head_dim, .. } = self.shape;
        let table = WEIGHTS.values(&plan.weights[0])?;
        let mut random = ChaCha8Rng::seed_from_u64(2);
        let bounds = [batch, self.shape.q_len(), num_heads];
        let samples: Vec<[usize; 3]> =
            (0..SAMPLES).map(|_| bounds.map(|bound| random.random_range(0..bound))).collect();
        let errors: Vec<f64> = samples
            .into_par_iter()
            .map(|[seq, token, head]| {
                let row = seq * self.shape.q_len() + token;
                let got = &got[(row * num_heads + head) * head_dim..][..head_dim];
                let wanted = self.attend(&table, sequences.tokens(seq), token, head);
                relative_error(got.iter().copied().zip(wanted))
            })
            .collect();
        Ok(errors
            .into_iter()
            .fold(0.0, |worst, error| if error > worst || error.is_nan() { error } else { worst }))
    }

    /// Attention of one head of a new token, from the tokens of its sequence.
    fn attend(&self, table: &[f32], tokens: &[u32], token: usize, head: usize) -> Vec<f64> {
        let Shape { num_heads, num_kv_heads, head_dim, .. } = self.shape;
        let (q_width, kv_width) = (self.shape.q_width(), self.shape.kv_width());
        let position = self.shape.past_len() + token;
        let visible = if self.shape.is_causal() { position + 1 } else { self.shape.kv_len() };
        let row =
            |token: u32, start: usize| &table[token as usize * (q_width + 2 * kv_width) + start..];
        let q = normed(&row(tokens[position], 0)[..q_width], self.precision.operand());
        let q = &q[head * head_dim..][..head_dim];
        let k = q_width + head / (num_heads / num_kv_heads) * head_dim;
        let [k, v] = [k, k + kv_width].map(|start| {
            tokens[..visible].iter().map(|&token| row(token, start)).collect::<Vec<_>>()
        });
        attend(self.softmax_scale(), q, &k, &v)
    }
}

#[cfg(test)]
mod tests;
