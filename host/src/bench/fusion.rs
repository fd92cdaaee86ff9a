//! Fused against unfused: launches and bytes by the plan, and times on a GPU as [`kernels`] says.
//!
//! What is timed is called on one copy of its weights and its cache after the other, and each form
//! of it computes on the same inputs. A call's launches and bytes are what it adds to a plan.
//!
//! [`kernels`]: super::kernels

mod parts;
#[cfg(all(test, feature = "emulator"))]
mod tests;

use serde::Serialize;

use self::parts::Calls;
pub use super::attention::Config;
use super::kernels::{
    BenchError, calls_per_round, check_error, num_copies, relative_error, us_per_call,
};
use super::random::RandomWeights;
use crate::exec::cuda::CudaExecutor;
use crate::exec::{Executor, GpuOptions, LoweredPlan, Target, Want};
use crate::plan::{AttentionForm, Bounds, Cost, Fusion, Plan, Precision, StepInputs, StepShape};

const WEIGHTS: RandomWeights = RandomWeights::SMALL;
const MAX_COPIES: usize = 24;
/// Positions of a sequence that decodes, its new token included.
const CONTEXT: usize = 512;
/// Most rows of sequences that decode; more are one prompt.
const MAX_DECODE_ROWS: usize = 64;
/// What two forms may differ by.
const ERROR_BOUND: f64 = 1e-2;

/// The sizes of a model's layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelShape {
    /// The model.
    pub name: &'static str,
    /// Columns of the residual stream.
    pub hidden_size: usize,
    /// Query heads.
    pub num_heads: usize,
    /// KV heads.
    pub num_kv_heads: usize,
    /// Columns of a head.
    pub head_dim: usize,
    /// Columns of the gated activation.
    pub intermediate_size: usize,
    /// Whether the QKV projection has a bias.
    pub qkv_bias: bool,
}

impl ModelShape {
    /// Qwen2.5-0.5B.
    pub const QWEN: ModelShape = ModelShape {
        name: "qwen2.5-0.5b",
        hidden_size: 896,
        num_heads: 14,
        num_kv_heads: 2,
        head_dim: 64,
        intermediate_size: 4864,
        qkv_bias: true,
    };

    /// Phi-3 Mini.
    pub const PHI3: ModelShape = ModelShape {
        name: "phi-3-mini",
        hidden_size: 3072,
        num_heads: 32,
        num_kv_heads: 32,
        head_dim: 96,
        intermediate_size: 8192,
        qkv_bias: false,
    };
}

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// RMSNorm and the QKV projection.
    NormGemm,
    /// The projection of gate and up, and their gate.
    GemmSwiglu,
    /// Scores, softmax and values.
    Attention,
    /// A whole layer.
    Layer,
}

/// How it is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// With every fusion that there is a kernel for; attention in one kernel.
    Fused,
    /// With none; attention in one kernel.
    Unfused,
    /// With none, and attention in three kernels.
    Materialized,
}

impl Part {
    /// All of them.
    pub const ALL: [Part; 4] = [Part::NormGemm, Part::GemmSwiglu, Part::Attention, Part::Layer];

    /// Forms of the part, the fused one first.
    pub fn forms(self) -> &'static [Form] {
        match self {
            Part::NormGemm | Part::GemmSwiglu => &[Form::Fused, Form::Unfused],
            Part::Attention => &[Form::Fused, Form::Materialized],
            Part::Layer => &[Form::Fused, Form::Unfused, Form::Materialized],
        }
    }
}

/// One form of a part.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// What is computed.
    pub op: Part,
    /// How.
    pub form: Form,
    /// The model whose sizes it has.
    pub model: &'static str,
    /// Rows of a step.
    pub m: usize,
    /// Cached positions of each sequence.
    pub kv_len: usize,
    /// Type of the operands.
    pub dtype: String,
    /// Launches of a call.
    pub launches: usize,
    /// Bytes that a call reads, by the plan.
    pub read_bytes: usize,
    /// Bytes that it writes, by the plan.
    pub written_bytes: usize,
    /// Bytes of weights among those that it reads.
    pub weight_bytes: usize,
    /// Microseconds of a call: the median. None without a GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub us: Option<f64>,
    /// The least.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_us: Option<f64>,
    /// Norm of the difference from the fused form over its norm.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<f64>,
    /// The device, where there are times.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
}

/// Launches and bytes of every form of `part` in a step of `rows` rows, on a GPU with kernels for
/// `target`: no device is needed.
///
/// # Errors
/// [`BenchError::Plan`], [`BenchError::Exec`].
pub fn count(
    part: Part,
    shape: ModelShape,
    rows: usize,
    precision: Precision,
    target: Target,
) -> Result<Vec<Row>, BenchError> {
    let bench = Bench { part, shape, rows, precision, context: CONTEXT, copies: 1 };
    part.forms().iter().map(|&form| bench.count(form, target)).collect()
}

/// [`count`], and the time of every form on a GPU, once they agree.
///
/// # Errors
/// [`BenchError`].
pub fn measure(
    config: &Config,
    part: Part,
    shape: ModelShape,
    rows: usize,
) -> Result<Vec<Row>, BenchError> {
    let &Config { gpu, target, precision, ref cubin_dir } = config;
    let options = GpuOptions { target, cubin_dir: cubin_dir.clone(), ..GpuOptions::default() };
    let one = Bench { part, shape, rows, precision, context: CONTEXT, copies: 1 };
    let (cost, _) = one.call_cost(Form::Fused)?;
    let copies = num_copies(cost.read_bytes + cost.written_bytes, MAX_COPIES);
    let bench = Bench { copies, ..one };
    let calls = calls_per_round(copies);
    let mut fused = Vec::new();
    let mut measured = Vec::new();
    for &form in part.forms() {
        let largest = bench.plan(form, bench.largest_bounds(), 2 * calls + 1)?;
        let mut device = CudaExecutor::open(gpu, &options, &largest, &WEIGHTS)?.without_overlap();
        bench.fill_cache(&mut device, form)?;
        let plan = |calls| bench.plan(form, bench.step_bounds(), calls);
        let plans = [plan(2 * calls + 1)?, plan(calls + 1)?];
        let prepared = [device.prepare(&plans[0])?, device.prepare(&plans[1])?];
        let step = bench.step();
        let got = device.run(prepared[0], &step, Want::Logits)?.logits;
        device.run(prepared[1], &step, Want::Nothing)?;
        let [us, min_us] = us_per_call(&mut device, prepared, calls)?;
        if fused.is_empty() {
            fused.clone_from(&got);
        }
        let pairs = got.iter().zip(&fused).map(|(&got, &fused)| (got, f64::from(fused)));
        let error = check_error(&bench.name(form), relative_error(pairs), ERROR_BOUND)?;
        let row = one.count(form, device.target())?;
        let (us, min_us, error) = (Some(us), Some(min_us), Some(error));
        measured.push(Row { us, min_us, error, gpu: Some(device.describe()), ..row });
    }
    Ok(measured)
}

/// One part at one shape.
#[derive(Clone, Copy)]
struct Bench {
    part: Part,
    shape: ModelShape,
    rows: usize,
    precision: Precision,
    /// Positions of a sequence that decodes, its new token included.
    context: usize,
    /// Copies of the weights and of the cache.
    copies: usize,
}

impl Bench {
    fn name(&self, form: Form) -> String {
        format!("{:?} {form:?} of {} rows, {}", self.part, self.rows, self.shape.name)
    }

    /// Whether the rows are one sequence each.
    fn decodes(&self) -> bool {
        self.rows <= MAX_DECODE_ROWS
    }

    fn kv_len(&self) -> usize {
        if self.decodes() { self.context } else { self.rows }
    }

    /// Bounds of the step that is timed.
    fn step_bounds(&self) -> Bounds {
        let (max_seqs, max_q_len) = if self.decodes() { (self.rows, 1) } else { (1, self.rows) };
        Bounds {
            max_tokens: self.rows,
            max_seqs,
            max_q_len,
            max_logit_rows: self.rows,
            max_kv_len: self.kv_len(),
            mixed: false,
        }
    }

    /// Bounds of that step and of those that fill the cache.
    fn largest_bounds(&self) -> Bounds {
        let step = self.step_bounds();
        match self.decodes() {
            true => Bounds {
                max_tokens: self.context.max(self.rows),
                max_q_len: self.context,
                max_logit_rows: self.context.max(self.rows),
                ..step
            },
            false => step,
        }
    }

    /// The pages of sequence `seq`.
    fn pages(&self, seq: usize) -> Vec<u32> {
        let num_pages = self.step_bounds().max_pages_per_seq();
        (seq * num_pages..(seq + 1) * num_pages).map(|page| page as u32).collect()
    }

    /// The step that is timed. A token's number is its row of the table.
    fn step(&self) -> StepInputs {
        let mut inputs = StepInputs::new();
        if self.decodes() {
            for seq in 0..self.rows {
                inputs.push_sequence(&[seq as u32], self.context - 1, &self.pages(seq), 0..1);
            }
        } else {
            let tokens: Vec<u32> = (0..self.rows as u32).collect();
            inputs.push_sequence(&tokens, 0, &self.pages(0), 0..self.rows);
        }
        inputs
    }

    /// Fills the positions before the new tokens of sequences that decode, in every copy.
    fn fill_cache(&self, device: &mut dyn Executor, form: Form) -> Result<(), BenchError> {
        if !self.decodes() || !self.part.attends() {
            return Ok(());
        }
        let prompt = device.prepare(&self.plan(form, self.largest_bounds(), self.copies)?)?;
        let tokens: Vec<u32> = (0..self.context as u32).collect();
        for seq in 0..self.rows {
            let mut inputs = StepInputs::new();
            inputs.push_sequence(&tokens, 0, &self.pages(seq), 0..0);
            device.run(prompt, &inputs, Want::Nothing)?;
        }
        Ok(())
    }

    fn plan(&self, form: Form, bounds: Bounds, calls: usize) -> Result<Plan, BenchError> {
        Ok(Calls::new(self, form, bounds).plan(calls)?)
    }

    /// What a call costs by the plan, and the bytes of its weights.
    fn call_cost(&self, form: Form) -> Result<(Cost, usize), BenchError> {
        let lowered = |calls| self.lowered(form, calls, Target::Sm90a);
        let (two, one) = (lowered(2)?.plan, lowered(1)?.plan);
        let shape = StepShape::of(&self.step());
        let (of_two, of_one) = (two.cost(&shape), one.cost(&shape));
        let weights = |plan: &Plan| -> usize {
            let ids = plan.ops.iter().flat_map(|op| op.weights());
            ids.map(|id| plan.weight(id).bytes()).sum()
        };
        let cost = Cost {
            read_bytes: of_two.read_bytes - of_one.read_bytes,
            written_bytes: of_two.written_bytes - of_one.written_bytes,
            flops: of_two.flops - of_one.flops,
        };
        Ok((cost, weights(&two) - weights(&one)))
    }

    fn lowered(&self, form: Form, calls: usize, target: Target) -> Result<LoweredPlan, BenchError> {
        let plan = self.plan(form, self.step_bounds(), calls)?;
        Ok(LoweredPlan::new(&plan, target)?)
    }

    fn count(&self, form: Form, target: Target) -> Result<Row, BenchError> {
        let lowered = |calls| self.lowered(form, calls, target);
        let launches = lowered(2)?.num_launches() - lowered(1)?.num_launches();
        let (Cost { read_bytes, written_bytes, .. }, weight_bytes) = self.call_cost(form)?;
        Ok(Row {
            op: self.part,
            form,
            model: self.shape.name,
            m: self.rows,
            kv_len: self.kv_len(),
            dtype: self.precision.to_string(),
            launches,
            read_bytes,
            written_bytes,
            weight_bytes,
            us: None,
            min_us: None,
            error: None,
            gpu: None,
        })
    }
}

impl Part {
    /// What `form` fuses of it, and nothing of its inputs.
    fn fusion(self, form: Form) -> Fusion {
        match (form, self) {
            (Form::Fused, Part::NormGemm) => Fusion { norm_gemm: true, ..Fusion::NONE },
            (Form::Fused, Part::GemmSwiglu) => Fusion { gemm_swiglu: true, ..Fusion::NONE },
            (Form::Fused, Part::Layer) => Fusion::ALL,
            _ => Fusion::NONE,
        }
    }

    fn attends(self) -> bool {
        matches!(self, Part::Attention | Part::Layer)
    }
}

impl Form {
    fn attention(self) -> AttentionForm {
        match self {
            Form::Materialized => AttentionForm::Materialized,
            _ => AttentionForm::Flash,
        }
    }
}
