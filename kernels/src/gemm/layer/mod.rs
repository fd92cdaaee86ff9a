//! A linear layer of any operands: how it is computed, and its launches.
//!
//! `Layer::schedule` is the only place that decides. What may be fused with a layer, the size of the
//! workspace, and the launches follow from it.

mod launches;
mod segments;

pub use launches::{Maps, Operands};
pub use segments::{Part, Segment, segments};

use super::fp8::LinearFp8Small;
use super::quantised::prompt::QuantisedPrompt;
use super::quantised::{BlockFormat, QuantisedLinear};
use super::{Gpu, Linear16, SumOrder, Summation};
use gpu_types::{ALIGN_BYTES, Activation, Dtype, FP8_BLOCK};
use half::f16;
use segments::gated_format;

/// Most bytes of a dense copy: enough rows for a GEMM that fills a GPU, and few enough that some of
/// them are read from the L2 cache.
const MAX_DENSE_BYTES: usize = 64 << 20;

/// `out = x * weight^T (+ bias) (+ residual)`, with what may be fused with it.
#[derive(Clone, Debug)]
pub struct Layer {
    /// Upper bound of the rows.
    pub max_rows: usize,
    /// Columns of the output: rows of the weight, or half of them in a gated layer.
    pub n: usize,
    /// Columns of the input and of the weight.
    pub k: usize,
    /// The type in which rows are multiplied.
    pub operand: Dtype,
    /// What is computed of the input first.
    pub input: Input,
    /// How the weight is stored.
    pub weight: Weight,
    /// The activation, if the output is `activation(gate) * up`, as
    /// [`GateRows`](crate::gate_rows::GateRows) computes it; the first `n` rows of the weight are
    /// those of the gate, the last `n` those of up.
    pub gate: Option<Activation>,
    /// How outputs are accumulated.
    pub summation: Summation,
}

/// What is computed of the input of a layer before it is multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// Nothing.
    Stored,
    /// RMSNorm of the input.
    Normed,
    /// `activation(gate) * x`.
    Gated(Activation),
}

/// How the weight of a layer is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Weight {
    /// Rows of the operands' type.
    Dense,
    /// Rows in E4M3.
    E4m3 {
        /// Whether blocks have scales, rows otherwise.
        in_blocks: bool,
        /// Whether the rows of x are rounded to E4M3, too.
        rounds_rows: bool,
    },
    /// Parts that follow each other, some of them in tiles of blocks. Rows that are stored alike are
    /// columns of the output that a launch of their own computes.
    Tiles(Vec<Part>),
}

/// How a layer is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Schedule {
    /// By the stored rows of the weight: [`Linear`], [`Linear16`].
    Stored,
    /// A few rows, by the weight as it is: [`LinearFp8Small`], [`QuantisedLinear`].
    SmallBatch,
    /// Any number of rows, by the tiles of the weight as they are: [`QuantisedPrompt`].
    Prompt,
    /// [`QuantiseRows`] to the workspace, then [`LinearFp8`].
    RoundedRows,
    /// With a dense copy in the workspace, some rows of the weight after the other.
    DenseCopy,
}

impl Layer {
    /// The fastest for the number of rows. In [`SumOrder::SmallBatch`] and [`SumOrder::Tiles`] it is
    /// the same for any number of them, as each accumulates in an order of its own.
    fn schedule(&self) -> Schedule {
        let is_fastest = self.summation.order == SumOrder::Fastest;
        match self.weight {
            Weight::Dense => Schedule::Stored,
            Weight::E4m3 { rounds_rows: true, .. } => Schedule::RoundedRows,
            Weight::E4m3 { .. } if is_fastest && self.max_rows <= LinearFp8Small::MAX_ROWS => {
                Schedule::SmallBatch
            }
            Weight::E4m3 { .. } => Schedule::DenseCopy,
            Weight::Tiles(_) => match self.summation.order {
                SumOrder::Fastest if self.max_rows <= QuantisedLinear::MAX_ROWS => {
                    Schedule::SmallBatch
                }
                SumOrder::Fastest if self.max_rows <= QuantisedPrompt::MAX_FAST_ROWS => {
                    Schedule::Prompt
                }
                SumOrder::SmallBatch => Schedule::Prompt,
                SumOrder::Fastest | SumOrder::Tiles => Schedule::DenseCopy,
            },
        }
    }

    /// Whether its launches on `gpu` compute what is before the layer and the gate after it, and not
    /// slower than launches of their own.
    pub fn fuses(&self, gpu: Gpu) -> bool {
        let (is_normed, max_rows, k) = (self.input == Input::Normed, self.max_rows, self.k);
        let is_gated = self.gate.is_some();
        if let Input::Gated(_) = self.input {
            return self.schedule() == Schedule::RoundedRows && !is_gated;
        }
        match (self.schedule(), &self.weight) {
            (Schedule::Stored, _) => {
                let &Layer { n, summation, gate, .. } = self;
                let linear = Linear16 { max_rows, n, k, summation, gate };
                self.operand.is_half() && linear.fuses(gpu, is_normed)
            }
            (Schedule::RoundedRows, _) => !is_gated,
            (Schedule::SmallBatch, &Weight::E4m3 { in_blocks, .. }) => {
                let has_whole_blocks = !in_blocks || self.n.is_multiple_of(FP8_BLOCK) || !is_gated;
                has_whole_blocks && LinearFp8Small::fuses(max_rows, k, is_normed)
            }
            (Schedule::SmallBatch, Weight::Tiles(parts)) => {
                let norms = |part: &Part| {
                    part.format.is_some_and(|format| self.blocks(format, self.n).fuses_norm())
                };
                (!is_normed || parts.iter().all(norms))
                    && (!is_gated || gated_format(parts).is_some())
            }
            (Schedule::Prompt, Weight::Tiles(parts)) => {
                !is_normed && (!is_gated || gated_format(parts).is_some())
            }
            _ => !is_normed && !is_gated,
        }
    }

    /// Bytes of the workspace: the rounded rows and their scales, or a dense copy.
    pub fn workspace_bytes(&self) -> usize {
        match self.schedule() {
            Schedule::RoundedRows => self.scales_at() + self.max_rows * size_of::<f32>(),
            Schedule::DenseCopy => {
                let copied = self.segments().into_iter().filter(|segment| self.is_copied(segment));
                let rows = copied.map(|segment| segment.rows.min(self.copied_rows())).max();
                rows.unwrap_or(0) * self.k * size_of::<f16>()
            }
            _ => 0,
        }
    }

    /// Segments of the weight: consecutive rows that are stored alike.
    fn segments(&self) -> Vec<Segment> {
        match &self.weight {
            Weight::Tiles(parts) => segments(parts, self.k),
            Weight::Dense | Weight::E4m3 { .. } => {
                vec![Segment { start: 0, rows: self.n, format: None, offset_bytes: 0 }]
            }
        }
    }

    /// Whether its dense copy is multiplied in place of the segment.
    fn is_copied(&self, segment: &Segment) -> bool {
        matches!(self.weight, Weight::E4m3 { .. }) || segment.format.is_some()
    }

    /// Most rows of a dense copy.
    fn copied_rows(&self) -> usize {
        const MULTIPLE: usize = 256;
        let rows = MAX_DENSE_BYTES / (size_of::<f16>() * self.k.max(1));
        (rows / MULTIPLE * MULTIPLE).max(MULTIPLE)
    }

    /// Where the scales of rounded rows are in the workspace.
    fn scales_at(&self) -> usize {
        (self.max_rows * self.k).next_multiple_of(ALIGN_BYTES)
    }

    /// A layer of a few rows by the tiles of `n` columns.
    fn blocks(&self, format: BlockFormat, n: usize) -> QuantisedLinear {
        let &Layer { max_rows, k, gate, .. } = self;
        QuantisedLinear { max_rows, n, k, format, gate }
    }
}
