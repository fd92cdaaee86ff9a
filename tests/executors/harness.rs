//! Plans around one operation: rows go in as an embedding's table, and come out as logits.

use std::collections::BTreeMap;
use std::ops::Range;

use half::{bf16, f16};
use halfwarp::exec::{ExecError, Executor, PreparedPlan, Want};
use halfwarp::plan::{
    Attention, Bounds, Dtype, KvHeads, KvLayout, KvStorage, MaterializedAttention, NO_PAGE,
    Numerics, Op, PAGE_SIZE, Plan, PlanBuilder, Precision, ReadWeightError, Rows, StepInputs,
    StepShape, View, Weight, WeightId, WeightSource,
};
use libtest_mimic::Completion;

use crate::oracle::Approx;

/// How an executor is opened.
pub type Open = fn(&Plan, &dyn WeightSource) -> Result<Box<dyn Executor>, ExecError>;

/// An executor that is tested.
#[derive(Clone, Copy)]
pub struct Backend {
    pub name: &'static str,
    pub open: Open,
    pub is_there: bool,
    /// Whether cases in bf16 are left out: their kernels are those of f16, instance for instance,
    /// and the tests of the kernels run both.
    pub leaves_out_bf16: bool,
    /// Most operations of all steps of a case together; cases with more are ignored.
    pub max_flops: usize,
    /// Most operations of a case that runs twice.
    pub max_repeated_flops: usize,
}

/// What came of a test, or what is wrong.
pub type Outcome = Result<Completion, String>;

/// A row-major matrix.
#[derive(Clone, Debug)]
pub struct Matrix {
    pub rows: usize,
    pub cols: usize,
    pub data: Vec<f32>,
}

impl Matrix {
    /// Elements from -1 to 1, the same for the same seed and shape.
    pub fn random(seed: u64, rows: usize, cols: usize) -> Self {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (rows * 31 + cols) as u64;
        let data = (0..rows * cols).map(|_| {
            // splitmix64
            state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            ((z ^ (z >> 31)) >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        });
        Matrix { rows, cols, data: data.collect() }
    }

    /// Each element rounded to the operand's type.
    pub fn rounded(mut self, precision: Precision) -> Self {
        self.data.iter_mut().for_each(|x| *x = rounded(*x, precision.operand()));
        self
    }

    pub fn row(&self, row: usize) -> &[f32] {
        &self.data[row * self.cols..][..self.cols]
    }

    pub fn rows(&self, rows: Range<usize>) -> Matrix {
        let data = self.data[rows.start * self.cols..rows.end * self.cols].to_vec();
        Matrix { rows: rows.len(), cols: self.cols, data }
    }

    pub fn columns(&self, columns: Range<usize>) -> Matrix {
        let data = (0..self.rows).flat_map(|row| self.row(row)[columns.clone()].to_vec());
        Matrix { rows: self.rows, cols: columns.len(), data: data.collect() }
    }
}

/// The nearest number of `dtype`, of two the even one.
pub fn rounded(x: f32, dtype: Dtype) -> f32 {
    match dtype {
        Dtype::F16 => f16::from_f32(x).to_f32(),
        Dtype::BF16 => bf16::from_f32(x).to_f32(),
        _ => x,
    }
}

/// What a case's name ends in.
pub fn suffix(precision: Precision) -> String {
    if precision == Precision::F32 { String::new() } else { format!("_{precision}") }
}

/// The precisions of 16 bits.
pub const HALVES: [Precision; 2] = [Precision::F16, Precision::BF16];

/// Bounds for `num_tokens` tokens of one sequence, all of whose rows come out; `slack` rows more
/// than that are planned.
pub fn bounds(num_tokens: usize, slack: usize) -> Bounds {
    let max_tokens = num_tokens + slack;
    Bounds {
        max_tokens,
        max_seqs: 1,
        max_q_len: max_tokens,
        max_logit_rows: max_tokens,
        max_kv_len: max_tokens.next_multiple_of(PAGE_SIZE),
        mixed: false,
    }
}

/// A cache for operations that have none.
pub fn smallest_kv(bounds: &Bounds) -> KvLayout {
    KvLayout {
        layers: vec![KvHeads { num_kv_heads: 1, head_dim: 1 }],
        num_pages: bounds.max_pages_per_seq(),
        windows: None,
        dtype: Dtype::F32,
        storage: KvStorage::default(),
    }
}

/// The weights of a plan, by name.
#[derive(Default)]
pub struct Weights(BTreeMap<String, Vec<f32>>);

impl Weights {
    /// Adds those of another plan.
    pub fn extend(&mut self, other: Weights) {
        self.0.extend(other.0);
    }
}

impl WeightSource for Weights {
    fn read(&self, weight: &Weight, out: &mut [u8]) -> Result<(), ReadWeightError> {
        let values = self.0.get(&weight.name).ok_or_else(|| ReadWeightError::new(&*weight.name))?;
        let storage = weight.storage().expect("one part");
        for (out, &value) in out.chunks_exact_mut(storage.block_bytes()).zip(values) {
            match storage {
                Dtype::F16 => out.copy_from_slice(&f16::from_f32(value).to_ne_bytes()),
                Dtype::BF16 => out.copy_from_slice(&bf16::from_f32(value).to_ne_bytes()),
                _ => out.copy_from_slice(&value.to_ne_bytes()),
            }
        }
        Ok(())
    }
}

/// A plan that is being built around an operation.
#[derive(Default)]
pub struct Setup {
    pub plan: PlanBuilder,
    pub weights: Weights,
    pub numerics: Numerics,
}

impl Setup {
    pub fn new(precision: Precision) -> Self {
        Setup { numerics: precision.into(), ..Setup::default() }
    }

    /// A norm's weight or a bias, in f32.
    pub fn vector(&mut self, name: &str, elements: &Matrix) -> WeightId {
        self.weight(name, elements, Dtype::F32)
    }

    /// A linear layer's weight, in the operand's type.
    pub fn matrix(&mut self, name: &str, elements: &Matrix) -> WeightId {
        self.weight(name, elements, self.numerics.precision.operand())
    }

    /// A matrix that is no linear layer's, in f32.
    pub fn f32_matrix(&mut self, name: &str, elements: &Matrix) -> WeightId {
        self.weight(name, elements, Dtype::F32)
    }

    /// A weight of these elements; a matrix of one row is a vector.
    fn weight(&mut self, name: &str, matrix: &Matrix, storage: Dtype) -> WeightId {
        self.weights.0.insert(name.to_owned(), matrix.data.clone());
        self.plan.weight(Weight::whole(name, matrix.rows, matrix.cols, storage))
    }

    /// An operand whose row of token `i + 1` is row `i` of `rows`, which are numbers of its type.
    /// The tokens around them are NaN.
    pub fn input(&mut self, name: &str, rows: &Matrix) -> View {
        let wide = self.f32_input(&format!("{name} in f32"), rows);
        self.narrow(name, wide)
    }

    /// As [`Setup::input`], in f32 and of any numbers.
    pub fn f32_input(&mut self, name: &str, rows: &Matrix) -> View {
        self.embedding(name, rows, Dtype::F32)
    }

    /// As [`Setup::f32_input`], from a table that is kept as `storage`.
    pub fn embedding(&mut self, name: &str, rows: &Matrix, storage: Dtype) -> View {
        let nan = vec![f32::NAN; rows.cols];
        let data = [nan.clone(), rows.data.clone(), nan].concat();
        let table = self.weight(name, &Matrix { rows: rows.rows + 2, data, ..*rows }, storage);
        let out = self.plan.activation(name, Rows::Tokens, rows.cols, Dtype::F32);
        self.plan.op(Op::Embedding { table, out, scale: 1.0 });
        out
    }

    /// The operand of the same elements as `x`, which is in f32.
    pub fn narrow(&mut self, name: &str, x: View) -> View {
        if self.numerics.precision == Precision::F32 {
            return x;
        }
        let (rows, dtype) = (self.plan.rows(x), self.numerics.precision.operand());
        let out = self.plan.activation(name, rows, x.width, dtype);
        self.plan.op(Op::Cast { x, out });
        out
    }

    /// `attention` in three operations, of sequences of up to `max_kv_len` positions.
    pub fn materialized_attention(&mut self, attention: Attention, max_kv_len: usize) {
        let width = attention.num_heads * max_kv_len.next_multiple_of(PAGE_SIZE);
        let scores = self.plan.activation("scores", Rows::Tokens, width, Dtype::F32);
        let probabilities = self.activation("probabilities", width);
        let op = MaterializedAttention { attention, scores, probabilities };
        self.plan.op(Op::AttentionScores(op));
        self.plan.op(Op::AttentionSoftmax(op));
        self.plan.op(Op::AttentionValues(op));
    }

    /// An operand with a row a token.
    pub fn activation(&mut self, name: &str, width: usize) -> View {
        self.plan.activation(name, Rows::Tokens, width, self.numerics.precision.operand())
    }

    /// The plan whose logits are the rows of `out`.
    pub fn finish(mut self, bounds: Bounds, kv: KvLayout, out: View) -> (Plan, Weights) {
        let logits = self.plan.activation("logits", Rows::Logits, out.width, Dtype::F32);
        self.plan.op(Op::GatherRows { x: out, out: logits });
        (finish_with_logits(self.plan, &self.numerics, bounds, kv, logits), self.weights)
    }
}

/// The plan of these logits.
pub fn finish_with_logits(
    mut plan: PlanBuilder,
    numerics: &Numerics,
    bounds: Bounds,
    kv: KvLayout,
    logits: View,
) -> Plan {
    let next_tokens = plan.activation("next_tokens", Rows::Logits, 1, Dtype::U32);
    plan.op(Op::Sample { x: logits, out: next_tokens });
    plan.finish(numerics, bounds, kv, logits, next_tokens).expect("a plan that fits")
}

/// The pages that a layer with a window still has of a sequence, when its tokens from `past_len` on
/// are new: attention reads blocks of 128 keys as a whole.
pub fn within_window(pages: &[u32], past_len: usize, window: usize) -> Vec<u32> {
    let num_left = (past_len + 1).saturating_sub(window) / 128 * 2;
    let page = |(index, &page)| if index < num_left { NO_PAGE } else { page };
    pages.iter().enumerate().map(page).collect()
}

/// A step of one sequence with rows `0 .. num_tokens` of the input, at positions from `past_len`
/// on.
pub fn one_sequence(num_tokens: usize, past_len: usize) -> StepInputs {
    let tokens: Vec<u32> = (1..=num_tokens as u32).collect();
    let pages: Vec<u32> = (0..(past_len + num_tokens).div_ceil(PAGE_SIZE) as u32).collect();
    let mut inputs = StepInputs::new();
    inputs.push_sequence(&tokens, past_len, &pages, 0..num_tokens);
    inputs
}

/// A step, which of the plans it takes, and the logits that are right.
pub struct Step {
    pub plan: usize,
    pub inputs: StepInputs,
    pub expected: Vec<Approx>,
}

/// Opens an executor for the first plan, prepares all of them, runs the steps, and compares their
/// logits; then again, which has to give the same bits. A case with more operations than the
/// backend can take is ignored.
pub fn check(backend: Backend, plans: &[Plan], weights: &Weights, steps: &[Step]) -> Outcome {
    check_within(backend, &plans[0], plans, weights, steps)
}

/// [`check`] with an executor that is opened with `largest`, which no step runs.
pub fn check_within(
    backend: Backend,
    largest: &Plan,
    plans: &[Plan],
    weights: &Weights,
    steps: &[Step],
) -> Outcome {
    let is_bf16 = |plan: &Plan| plan.tensors.iter().any(|tensor| tensor.dtype == Dtype::BF16);
    if backend.leaves_out_bf16 && plans.iter().any(is_bf16) {
        return Ok(Completion::ignored_with("as in f16, which runs"));
    }
    let flops = |step: &Step| plans[step.plan].cost(&StepShape::of(&step.inputs)).flops;
    let flops: usize = steps.iter().map(flops).sum();
    if flops > backend.max_flops {
        let (name, max) = (backend.name, backend.max_flops);
        let reason = format!("too large for {name}: {flops} operations, more than {max}");
        return Ok(Completion::ignored_with(reason));
    }
    let plans: Vec<Plan> = plans.iter().map(without_sampling).collect();
    let text = |error: ExecError| error.to_string();
    let mut executor = (backend.open)(&without_sampling(largest), weights).map_err(text)?;
    let prepared: Vec<PreparedPlan> =
        plans.iter().map(|plan| executor.prepare(plan)).collect::<Result<_, _>>().map_err(text)?;
    let mut first_bits: Vec<Vec<u32>> = Vec::new();
    for round in 0..if flops > backend.max_repeated_flops { 1 } else { 2 } {
        for (index, step) in steps.iter().enumerate() {
            let output =
                executor.run(prepared[step.plan], &step.inputs, Want::Logits).map_err(text)?;
            let width = plans[step.plan].output.width;
            matches_oracle(&output.logits, &step.expected, width)
                .map_err(|error| format!("step {index}, round {round}: {error}"))?;
            let bits: Vec<u32> = output.logits.iter().map(|value| value.to_bits()).collect();
            match first_bits.get(index) {
                None => first_bits.push(bits),
                Some(first) if *first != bits => {
                    return Err(format!("step {index}: other bits in the second round"));
                }
                Some(_) => {}
            }
        }
    }
    Ok(Completion::Completed)
}

/// The plan for its logits alone: `sample::*` are the tests of the tokens, which take 1,024 threads
/// for every row.
pub fn without_sampling(plan: &Plan) -> Plan {
    let mut plan = plan.clone();
    plan.ops.retain(|op| !matches!(op, Op::Sample { .. }));
    plan
}

/// NaN and infinities are at the same places, and everything else is within its tolerance.
pub fn matches_oracle(got: &[f32], expected: &[Approx], width: usize) -> Result<(), String> {
    if got.len() != expected.len() {
        return Err(format!("{} elements, expected {}", got.len(), expected.len()));
    }
    let excess = |(got, expected): (&f32, &Approx)| expected.excess(*got);
    let worst = got.iter().zip(expected).map(excess).enumerate().max_by(|a, b| a.1.total_cmp(&b.1));
    match worst {
        Some((index, excess)) if excess > 1.0 => Err(format!(
            "[{}, {}]: got {:e}, expected {:e} within {:e}: {excess:.1} times the tolerance",
            index / width,
            index % width,
            got[index],
            expected[index].value,
            expected[index].tolerance,
        )),
        _ => Ok(()),
    }
}
