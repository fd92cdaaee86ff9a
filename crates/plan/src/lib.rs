//! The plan: a model as a list of typed operations with shapes.
//!
//! An executor runs it; the memory budget, the profile and the comparison of precisions read it.
//! What changes from step to step lives in the [`StepInputs`]; the plan holds upper bounds
//! ([`Bounds`]).

mod budget;
mod builder;
mod check;
mod cost;
mod error;
mod fuse;
mod fusion;
mod kv;
mod memory;
mod numerics;
mod op;
mod place;
mod precision;
mod rank;
mod source;
mod state;
mod step;
mod tensor;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use budget::{BudgetError, Fits, MemoryBudget, MemoryUse};
pub use builder::PlanBuilder;
pub use cost::{Cost, SeqShape, StepShape};
pub use error::PlanError;
pub use fusion::{Fusion, UnknownFusion};
pub use gpu_types::{Accumulate, Activation, CacheType, DRAWN, Dtype, FP8_BLOCK};
pub use kv::{KvHeads, KvLayout, KvStorage, NO_PAGE, PAGE_SIZE, UnknownCacheType, WindowPools};
pub use memory::ArenaLayout;
pub use numerics::{ActivationStorage, AttentionForm, Numerics, WeightStorage};
pub use op::{
    AllReduce, AppendAttention, Attention, CausalConv, DeltaRule, ExpertGate, ExpertLinear, Groups,
    LayerNorm, Linear, MaterializedAttention, Norm, Op, QkNorm, RopeAppend, Route, Router, Scores,
    SharedExpert,
};
pub use precision::Precision;
pub use rank::Rank;
pub use source::{ReadWeightError, WeightSource};
pub use state::{CacheSize, StateLayout};
pub use step::{StepInputs, StepLayout};
pub use tensor::{
    Constant, ConstantId, PartTransform, Rows, Tensor, TensorId, View, Weight, WeightId,
    WeightLayout, WeightPart, WeightSlice,
};

/// Most rows that a weight in E4M3 multiplies without rounding them: see [`Plan::rounds_rows`].
pub const FP8_SMALL_BATCH: usize = 16;

/// Upper bounds of one step; the sizes of a real step are in its [`StepInputs`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bounds {
    /// Rows of the batch: new tokens of all sequences together.
    pub max_tokens: usize,
    /// Sequences in the batch.
    pub max_seqs: usize,
    /// New tokens of one sequence; 1 in a decode step.
    pub max_q_len: usize,
    /// Rows for which logits are computed.
    pub max_logit_rows: usize,
    /// Cached positions of one sequence, its new tokens included: the context.
    pub max_kv_len: usize,
    /// Whether sequences with one new token decode beside prompts; else each sequence of a step
    /// with prompts is one.
    pub mixed: bool,
}

impl Bounds {
    /// Bounds of a step of one sequence of `num_tokens` new tokens, which has the logits of all of
    /// them.
    pub const fn one_sequence(num_tokens: usize) -> Self {
        Bounds {
            max_tokens: num_tokens,
            max_seqs: 1,
            max_q_len: num_tokens,
            max_logit_rows: num_tokens,
            max_kv_len: num_tokens,
            mixed: false,
        }
    }

    /// Most new tokens of a sequence that decodes, 0 if none does; one with more is a prompt. The
    /// attention of the two differs in its order of accumulation.
    pub fn max_decode_q_len(&self) -> usize {
        if self.mixed || self.max_q_len == 1 { 1 } else { 0 }
    }

    /// Pages of one sequence: the width of the block table.
    pub fn max_pages_per_seq(&self) -> usize {
        self.max_kv_len.div_ceil(PAGE_SIZE)
    }

    /// Edits of logits of a step, of all rows together ([`StepInputs::edits`]).
    pub fn max_edits(&self) -> usize {
        edits_of_rows(self.max_logit_rows)
    }

    /// Columns of a head's scores of one token, where they are stored: whole pages.
    pub fn score_columns(&self) -> usize {
        self.max_pages_per_seq() * PAGE_SIZE
    }

    /// Rows of an activation.
    pub fn max_rows(&self, rows: Rows) -> usize {
        match rows {
            Rows::Tokens => self.max_tokens,
            Rows::Logits => self.max_logit_rows,
        }
    }
}

/// Edits that a step of so many logit rows has room for: of each a thousand tokens that came
/// before, and of one row those of a long answer.
pub fn edits_of_rows(num_rows: usize) -> usize {
    4096 + 1024 * num_rows
}

/// What a plan computes of the rows for which logits are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PlanOutput {
    /// Logits, and the tokens drawn of them.
    Logits,
    /// The hidden state after the final norm, which is what embeddings are made of.
    Hidden,
    /// What a model that reads a text as a whole makes of it: an embedding, or scores.
    Pooled,
}

/// A model as operations, in the order in which they run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Whose share of the model it computes.
    pub rank: Rank,
    /// Upper bounds that every shape is computed from.
    pub bounds: Bounds,
    /// Activations, indexed by [`TensorId`].
    pub tensors: Vec<Tensor>,
    /// Weights, indexed by [`WeightId`]; the same for every `bounds` of one model.
    pub weights: Vec<Weight>,
    /// Tables computed on the host, indexed by [`ConstantId`]; the same for every `bounds` of one
    /// model.
    pub constants: Vec<Constant>,
    /// Layout and size of the paged KV cache.
    pub kv: KvLayout,
    /// Layout and size of the recurrent states.
    pub states: StateLayout,
    /// Operations, in order.
    pub ops: Vec<Op>,
    /// Logits, `[logit_rows, vocab_size]` f32; of a plan of [`PlanOutput::Hidden`] the hidden
    /// state, `[logit_rows, hidden_size]` f32, of [`PlanOutput::Pooled`] a row of each sequence.
    pub output: View,
    /// The token drawn of each row of logits, or why there is none, `[logit_rows, 1]` u32.
    pub next_tokens: Option<View>,
    /// Only [`PlanBuilder::finish`] sets it, and checks the plan against it.
    numerics: Numerics,
}

impl Plan {
    /// How it computes.
    pub fn numerics(&self) -> &Numerics {
        &self.numerics
    }

    /// What the host reads after a step.
    pub fn outputs(&self) -> impl Iterator<Item = View> + Clone {
        [self.output].into_iter().chain(self.next_tokens)
    }

    /// Whether it decodes: no sequence has more than one new token.
    pub fn decodes(&self) -> bool {
        self.bounds.max_q_len == 1
    }

    /// Whether the rows that `op` multiplies are rounded to E4M3 first, each with a scale of its
    /// own: what tensor cores multiply with E4M3. A small batch, which is bound by reading the
    /// weight, is multiplied as it is, but in a batch-invariant plan.
    pub fn rounds_rows(&self, op: &Linear) -> bool {
        let is_fp8 = self.weight(op.weight).storage().is_some_and(Dtype::is_fp8);
        let max_rows = self.bounds.max_rows(self.tensor(op.x.tensor).rows);
        let is_large = self.numerics.batch_invariant || max_rows > FP8_SMALL_BATCH;
        is_fp8 && is_large && self.numerics.activations == ActivationStorage::Fp8
    }

    /// The activation `id`.
    pub fn tensor(&self, id: TensorId) -> &Tensor {
        &self.tensors[id.0]
    }

    /// The element type of `view`'s activation.
    pub fn dtype(&self, view: View) -> Dtype {
        self.tensor(view.tensor).dtype
    }

    /// The weight `id`.
    pub fn weight(&self, id: WeightId) -> &Weight {
        &self.weights[id.0]
    }

    /// The constant `id`.
    pub fn constant(&self, id: ConstantId) -> &Constant {
        &self.constants[id.0]
    }

    /// The offset of each step input in the step buffer.
    pub fn step_layout(&self) -> StepLayout {
        StepLayout::new(&self.bounds, self.kv.windows.is_some())
    }
}
