//! A linear layer of any operands: how it is computed, and its launches.
//!
//! [`Layer::schedule`] is the only place that decides. What may be fused with a layer, the size of the
//! workspace, and the launches follow from it.

use super::fp8::dequantise::DequantiseFp8;
use super::fp8::{
    Fp8Accumulate, LinearFp8, LinearFp8Operands, LinearFp8Small, LinearFp8SmallOperands,
    SCALE_BLOCK, WeightScales,
};
use super::problem::refuse;
use super::quantised::dequantise::Dequantise;
use super::quantised::prompt::QuantisedPrompt;
use super::quantised::{BlockFormat, QuantisedLinear, QuantisedOperands};
use super::{
    Gpu, Input16, Linear, Linear16, Linear16Operands, LinearOperands, Out16, SumOrder, Summation,
};
use crate::Rows;
use crate::element::Dtype;
use crate::quantise_rows::{QuantiseRows, RowInput};
use crate::tile::element::Operand16;
use cuda_std::E4m3;
use cuda_std::launch::{DevicePtr, Launch, LaunchError};
use cuda_std::tensor_map::{EncodedTensorMap, TensorMapSpec};
use half::{bf16, f16};

/// Rows of a tile of blocks.
pub const TILE_ROWS: usize = 16;

/// Most bytes of a dense copy: enough rows for a GEMM that fills a GPU, and few enough that some of
/// them are read from the L2 cache.
const MAX_DENSE_BYTES: usize = 64 << 20;

/// Parts of the workspace start at multiples of this many bytes.
const ALIGN_BYTES: usize = 256;

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
    /// Whether the output is `silu(gate) * up`, as [`SiluMul`](crate::silu_mul::SiluMul) computes
    /// it; the first `n` rows of the weight are those of the gate, the last `n` those of up.
    pub gated: bool,
    /// How outputs are accumulated.
    pub summation: Summation,
}

/// What is computed of the input of a layer before it is multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// Nothing.
    Stored,
    /// Its RMSNorm.
    Normed,
    /// `silu(gate) * x`.
    Gated,
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

/// Rows of a weight that begin with a tile of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Their number.
    pub rows: usize,
    /// The format of their tiles; `None` where they are rows in f16.
    pub format: Option<BlockFormat>,
}

/// Consecutive rows of a weight that are stored alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The first of them.
    pub start: usize,
    /// Their number.
    pub rows: usize,
    /// As [`Part::format`].
    pub format: Option<BlockFormat>,
    /// First byte in the weight.
    pub offset_bytes: usize,
}

/// The segments of a weight of `k` columns, from the first row on.
pub fn segments(parts: &[Part], k: usize) -> Vec<Segment> {
    let mut segments: Vec<Segment> = Vec::new();
    let (mut start, mut offset_bytes) = (0, 0);
    for &Part { rows, format } in parts {
        match segments.last_mut() {
            // Tiles follow each other without a gap, if the last one is full.
            Some(last) if last.format == format && last.rows.is_multiple_of(TILE_ROWS) => {
                last.rows += rows;
            }
            _ => segments.push(Segment { start, rows, format, offset_bytes }),
        }
        start += rows;
        offset_bytes += match format {
            // What has no whole number of blocks in a row is refused when it is launched.
            Some(format) => format.packed_bytes(rows, k).unwrap_or(0),
            None => rows * k * size_of::<f16>(),
        };
    }
    segments
}

/// The format of a weight of which the first half of the rows is a gate for the second, if one
/// kernel computes both: they are stored alike, each in tiles of its own.
fn gated_format(parts: &[Part]) -> Option<BlockFormat> {
    let half = parts.iter().map(|part| part.rows).sum::<usize>() / 2;
    let is_apart =
        half.is_multiple_of(TILE_ROWS) || matches!(parts, [gate, _] if gate.rows == half);
    let first = parts.first()?.format;
    let are_alike = parts.iter().all(|part| part.format == first);
    first.filter(|_| is_apart && are_alike)
}

/// The operands of a [`Layer`], with memory for its `max_rows` rows.
#[derive(Clone, Copy, Debug)]
pub struct Operands {
    /// The device's count of rows.
    pub num_rows: DevicePtr<u32>,
    /// `[max_rows, k]`, of the operands' type; in f32 where it is normed.
    pub x: Rows<()>,
    /// The weight of the norm, `[k]`, and what is added to the mean of squares.
    pub norm: Option<(DevicePtr<f32>, f32)>,
    /// `[max_rows, k]`: the gate of [`Input::Gated`], of the operands' type.
    pub gate: Option<Rows<()>>,
    /// First byte of the weight.
    pub weight: u64,
    /// Scales of a weight in E4M3.
    pub scales: DevicePtr<f32>,
    /// `[n]`; `[2 * n]` if gated.
    pub bias: Option<DevicePtr<f32>>,
    /// `[max_rows, n]`, for outputs in f32 alone.
    pub residual: Option<Rows<f32>>,
    /// `[max_rows, n]`.
    pub out: Rows<()>,
    /// Whether the output is in f32, else of the operands' type.
    pub out_is_f32: bool,
    /// [`Layer::workspace_bytes`].
    pub workspace: u64,
}

/// Encodes tensor maps.
pub type Maps<'a> = &'a mut dyn FnMut(&TensorMapSpec) -> EncodedTensorMap;

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

    /// Whether its launches compute what is before the layer and the gate after it, and not slower
    /// than launches of their own.
    pub fn fuses(&self) -> bool {
        let (is_normed, max_rows, k) = (self.input == Input::Normed, self.max_rows, self.k);
        if self.input == Input::Gated {
            return self.schedule() == Schedule::RoundedRows && !self.gated;
        }
        match (self.schedule(), &self.weight) {
            (Schedule::Stored, _) => {
                let is_half = matches!(self.operand, Dtype::F16 | Dtype::Bf16);
                let is_small = self.summation.order != SumOrder::Tiles;
                is_half && is_small && Linear16::fuses(max_rows, k, is_normed)
            }
            (Schedule::RoundedRows, _) => !self.gated,
            (Schedule::SmallBatch, &Weight::E4m3 { in_blocks, .. }) => {
                let has_whole_blocks =
                    !in_blocks || self.n.is_multiple_of(SCALE_BLOCK as usize) || !self.gated;
                has_whole_blocks && LinearFp8Small::fuses(max_rows, k, is_normed)
            }
            (Schedule::SmallBatch, Weight::Tiles(parts)) => {
                let norms = |part: &Part| {
                    part.format.is_some_and(|format| self.blocks(format, self.n).fuses_norm())
                };
                (!is_normed || parts.iter().all(norms))
                    && (!self.gated || gated_format(parts).is_some())
            }
            (Schedule::Prompt, Weight::Tiles(parts)) => {
                !is_normed && (!self.gated || gated_format(parts).is_some())
            }
            _ => !is_normed && !self.gated,
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

    /// The launches on `gpu`, in order; none if there are no rows or no columns.
    ///
    /// # Errors
    /// [`LaunchError`] of the kernels: for a norm or a gate where [`Layer::fuses`] is false, and for
    /// sizes, strides and types that none of them takes.
    pub fn launches(
        &self,
        gpu: Gpu,
        operands: &Operands,
        maps: Maps<'_>,
    ) -> Result<Vec<Launch>, LaunchError> {
        self.check_gates()?;
        let mut launches = Vec::new();
        match (self.schedule(), &self.weight) {
            (Schedule::Stored, _) => {
                launches.extend(self.dense(gpu, self.n, operands.weight, operands, maps)?);
            }
            (Schedule::SmallBatch, Weight::E4m3 { .. }) => {
                launches.extend(self.fp8_small_batch(gpu, operands, maps)?);
            }
            (Schedule::RoundedRows, _) => {
                launches.extend(self.rounded_rows(operands)?);
                launches.extend(self.fp8_product(gpu, operands, maps)?);
            }
            (_, Weight::Tiles(parts)) if self.gated => {
                let Some(format) = gated_format(parts) else {
                    return refuse("formats", parts.len(), "one for both halves of a gated layer");
                };
                launches.extend(self.tiles(gpu, format, self.n, operands, maps)?);
            }
            (schedule, _) => {
                for segment in self.segments() {
                    let Segment { start, rows, format, offset_bytes } = segment;
                    let operands = operands.from_row(start, offset_bytes);
                    if self.is_copied(&segment) && schedule == Schedule::DenseCopy {
                        self.copied(gpu, &segment, &operands, maps, &mut launches)?;
                    } else if let Some(format) = format {
                        launches.extend(self.tiles(gpu, format, rows, &operands, maps)?);
                    } else {
                        launches.extend(self.dense(gpu, rows, operands.weight, &operands, maps)?);
                    }
                }
            }
        }
        Ok(launches)
    }

    /// Refuses gates that the launches would leave out.
    fn check_gates(&self) -> Result<(), LaunchError> {
        let is_rounded = self.schedule() == Schedule::RoundedRows;
        if self.input == Input::Gated && !is_rounded {
            return refuse("gates before the layer", 1, "none where rows are not rounded");
        }
        let is_e4m3 = matches!(self.weight, Weight::E4m3 { .. });
        if self.gated && (is_rounded || is_e4m3 && self.schedule() == Schedule::DenseCopy) {
            return refuse("gates", 1, "none for so many rows by a weight in FP8");
        }
        Ok(())
    }

    /// Its weight by rows that are stored alike.
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

    /// Copies of rows, each followed by the product with them.
    fn copied(
        &self,
        gpu: Gpu,
        segment: &Segment,
        operands: &Operands,
        maps: Maps<'_>,
        launches: &mut Vec<Launch>,
    ) -> Result<(), LaunchError> {
        let k = self.k;
        let dense = Rows::new(DevicePtr::<f16>::new(operands.workspace), k);
        for first in (0..segment.rows).step_by(self.copied_rows()) {
            let n = self.copied_rows().min(segment.rows - first);
            launches.extend(match segment.format {
                Some(format) => {
                    let tile_bytes = format.row_tile_bytes(k).unwrap_or(0);
                    let offset_bytes = first / TILE_ROWS * tile_bytes;
                    let tiles = DevicePtr::new(operands.weight + offset_bytes as u64);
                    Dequantise { n, k, format }.launch(tiles, dense)?
                }
                None => {
                    let (weight, scales) = self.e4m3_rows(operands, first);
                    DequantiseFp8 { n, k }.launch(weight, scales, dense)?
                }
            });
            // It loads the weight, which is the copy, as soon as it starts.
            let product =
                self.dense(gpu, n, operands.workspace, &operands.from_row(first, 0), maps)?;
            launches.extend(product.map(|launch| Launch { overlaps: false, ..launch }));
        }
        Ok(())
    }

    /// The product of all rows of x and `n` dense rows of a weight.
    fn dense(
        &self,
        gpu: Gpu,
        n: usize,
        weight: u64,
        operands: &Operands,
        maps: Maps<'_>,
    ) -> Result<Option<Launch>, LaunchError> {
        match self.operand {
            Dtype::F32 => self.dense_f32(gpu, n, operands),
            Dtype::F16 => self.dense_16::<f16>(gpu, n, weight, operands, maps),
            Dtype::Bf16 => self.dense_16::<bf16>(gpu, n, weight, operands, maps),
        }
    }

    fn dense_f32(
        &self,
        gpu: Gpu,
        n: usize,
        operands: &Operands,
    ) -> Result<Option<Launch>, LaunchError> {
        if self.input != Input::Stored || self.gated {
            return refuse("operand bits", 32, "16 for a layer with a fused norm or gate");
        }
        let &Layer { max_rows, k, .. } = self;
        let linear_operands = LinearOperands {
            x: operands.x.cast(),
            weight: Rows::new(DevicePtr::new(operands.weight), k),
            bias: operands.bias,
            residual: operands.residual,
            out: operands.out.cast(),
        };
        let linear = Linear { max_rows, n, k };
        linear.launch(gpu, self.summation.order, operands.num_rows, &linear_operands)
    }

    fn dense_16<E: Operand16>(
        &self,
        gpu: Gpu,
        n: usize,
        weight: u64,
        operands: &Operands,
        maps: Maps<'_>,
    ) -> Result<Option<Launch>, LaunchError> {
        let &Layer { max_rows, k, summation, gated, .. } = self;
        let linear_operands = Linear16Operands::<E> {
            x: operands.input(),
            weight: Rows::new(DevicePtr::new(weight), k),
            bias: operands.bias,
            residual: operands.residual,
            out: operands.output(),
        };
        let linear = Linear16 { max_rows, n, k, summation, gated };
        linear.launch(gpu, operands.num_rows, &linear_operands, maps)
    }

    fn blocks(&self, format: BlockFormat, n: usize) -> QuantisedLinear {
        let &Layer { max_rows, k, gated, .. } = self;
        QuantisedLinear { max_rows, n, k, format, gated }
    }

    /// `n` columns of the output, by tiles of this format.
    fn tiles(
        &self,
        gpu: Gpu,
        format: BlockFormat,
        n: usize,
        operands: &Operands,
        maps: Maps<'_>,
    ) -> Result<Option<Launch>, LaunchError> {
        let tiles = QuantisedOperands {
            x: operands.input(),
            weight: DevicePtr::new(operands.weight),
            bias: operands.bias,
            residual: operands.residual,
            out: operands.output(),
        };
        if self.schedule() == Schedule::SmallBatch {
            return self.blocks(format, n).launch(gpu, operands.num_rows, &tiles);
        }
        let &Layer { max_rows, k, gated, .. } = self;
        let order = self.summation.order;
        let prompt = QuantisedPrompt { max_rows, n, k, format, gated, order };
        prompt.launch(gpu, operands.num_rows, &tiles, maps)
    }

    /// The rows of a weight in E4M3 from `first` on, the first of a block, and their scales.
    fn e4m3_rows(&self, operands: &Operands, first: usize) -> (Rows<E4m3>, WeightScales) {
        let weight = DevicePtr::new(operands.weight).add(first * self.k);
        let scales = match self.weight {
            Weight::E4m3 { in_blocks: true, .. } => {
                let block = SCALE_BLOCK as usize;
                WeightScales::Blocks(operands.scales.add(first / block * self.k.div_ceil(block)))
            }
            _ => WeightScales::Rows(operands.scales.add(first)),
        };
        (Rows::new(weight, self.k), scales)
    }

    fn fp8_small_batch(
        &self,
        gpu: Gpu,
        operands: &Operands,
        maps: Maps<'_>,
    ) -> Result<Option<Launch>, LaunchError> {
        let &Layer { max_rows, n, k, gated, .. } = self;
        let (weight, scales) = self.e4m3_rows(operands, 0);
        let small_operands = LinearFp8SmallOperands {
            x: operands.input(),
            weight,
            scales,
            bias: operands.bias,
            residual: operands.residual,
            out: operands.output(),
        };
        let small = LinearFp8Small { max_rows, n, k, gated, order: self.summation.order };
        small.launch(gpu, operands.num_rows, &small_operands, maps)
    }

    /// Where the scales of rounded rows are in the workspace.
    fn scales_at(&self) -> usize {
        (self.max_rows * self.k).next_multiple_of(ALIGN_BYTES)
    }

    fn row_scales(&self, operands: &Operands) -> DevicePtr<f32> {
        DevicePtr::new(operands.workspace + self.scales_at() as u64)
    }

    /// The rows in E4M3, in the workspace.
    fn rounded_rows(&self, operands: &Operands) -> Result<Option<Launch>, LaunchError> {
        let input = match (operands.norm, operands.gate) {
            (Some((weight, eps)), _) => RowInput::Normed { x: operands.x.cast(), weight, eps },
            (None, Some(gate)) => RowInput::Gated { gate: gate.cast(), up: operands.x.cast() },
            (None, None) => RowInput::Stored(operands.x.cast()),
        };
        let rows = QuantiseRows { max_rows: self.max_rows, width: self.k };
        let out = DevicePtr::new(operands.workspace);
        rows.launch(operands.num_rows, &input, out, self.row_scales(operands))
    }

    /// The product of the rows in the workspace.
    fn fp8_product(
        &self,
        gpu: Gpu,
        operands: &Operands,
        maps: Maps<'_>,
    ) -> Result<Option<Launch>, LaunchError> {
        let &Layer { max_rows, n, k, .. } = self;
        let (weight, weight_scales) = self.e4m3_rows(operands, 0);
        let fp8_operands = LinearFp8Operands::<f16> {
            x: Rows::new(DevicePtr::new(operands.workspace), k),
            x_scales: self.row_scales(operands),
            weight,
            weight_scales,
            bias: operands.bias,
            residual: operands.residual,
            out: operands.output(),
        };
        // What the tensor cores lose of an accumulator is far below what the elements have lost.
        let accumulate = match weight_scales {
            WeightScales::Rows(_) => Fp8Accumulate::Fast,
            WeightScales::Blocks(_) => Fp8Accumulate::TwoLevel,
        };
        let linear = LinearFp8 { max_rows, n, k, accumulate };
        linear.launch(gpu, operands.num_rows, &fp8_operands, maps)
    }
}

impl Operands {
    /// Those of the weight's rows from `start` on, whose first byte is at `offset_bytes`.
    fn from_row(&self, start: usize, offset_bytes: usize) -> Self {
        let out_bytes = if self.out_is_f32 { size_of::<f32>() } else { size_of::<f16>() };
        let residual = self.residual;
        Operands {
            weight: self.weight + offset_bytes as u64,
            bias: self.bias.map(|bias| bias.add(start)),
            residual: residual.map(|rows| Rows::new(rows.ptr.add(start), rows.row_stride)),
            out: Rows::new(
                DevicePtr::new(self.out.ptr.0 + (start * out_bytes) as u64),
                self.out.row_stride,
            ),
            ..*self
        }
    }

    fn input<E>(&self) -> Input16<E> {
        match self.norm {
            Some((weight, eps)) => Input16::Normed { x: self.x.cast(), weight, eps },
            None => Input16::Half(self.x.cast()),
        }
    }

    fn output<E>(&self) -> Out16<E> {
        if self.out_is_f32 { Out16::F32(self.out.cast()) } else { Out16::Half(self.out.cast()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const Q4: Option<BlockFormat> = Some(BlockFormat::Q4_K);
    const Q6: Option<BlockFormat> = Some(BlockFormat::Q6_K);

    fn parts(parts: &[(usize, Option<BlockFormat>)]) -> Vec<Part> {
        parts.iter().map(|&(rows, format)| Part { rows, format }).collect()
    }

    /// As Q4_K_M stores Q, K and V, and as a model with few rows may.
    #[test]
    fn rows_that_are_stored_alike_are_one_segment() {
        let found = |rows: &[(usize, Option<BlockFormat>)]| -> Vec<_> {
            let segments = segments(&parts(rows), 512).into_iter();
            segments.map(|s| (s.start, s.rows, s.format, s.offset_bytes)).collect()
        };
        assert_eq!(
            found(&[(64, Q4), (32, Q4), (32, Q6), (8, None)]),
            [
                (0, 96, Q4, 0),
                (96, 32, Q6, 96 * 2 * 144),
                (128, 8, None, 96 * 2 * 144 + 32 * 2 * 210),
            ]
        );
        // Eight rows of padding are between them.
        assert_eq!(found(&[(24, Q4), (16, Q4)]), [(0, 24, Q4, 0), (24, 16, Q4, 32 * 2 * 144)]);
    }

    #[test]
    fn a_gate_has_the_format_of_what_it_is_for() {
        let found = |rows: &[(usize, Option<BlockFormat>)]| gated_format(&parts(rows));
        assert_eq!(found(&[(24, Q4), (24, Q4)]), Q4);
        assert_eq!(found(&[(64, Q4)]), Q4);
        assert_eq!(found(&[(48, Q4)]), None, "the halves share a tile");
        assert_eq!(found(&[(32, Q4), (32, Q6)]), None);
        assert_eq!(found(&[(32, Q4), (32, None)]), None);
        assert_eq!(found(&[(32, None), (32, None)]), None);
    }
}
