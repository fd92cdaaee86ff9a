//! The launches of a layer.

use super::segments::{TILE_ROWS, gated_format};
use super::{Input, Layer, Schedule, Segment, Weight};
use crate::Rows;
use crate::gemm::fp8::dequantise::DequantiseFp8;
use crate::gemm::fp8::{
    Fp8Accumulate, LinearFp8, LinearFp8Operands, LinearFp8Small, LinearFp8SmallOperands,
    SCALE_BLOCK, WeightScales,
};
use crate::gemm::problem::refuse;
use crate::gemm::quantised::dequantise::Dequantise;
use crate::gemm::quantised::prompt::QuantisedPrompt;
use crate::gemm::quantised::{BlockFormat, QuantisedOperands};
use crate::gemm::{Gpu, Input16, Linear, Linear16, Linear16Operands, LinearOperands, Out16};
use crate::quantise_rows::{QuantiseRows, RowInput};
use crate::tile::element::Operand16;
use cuda_std::E4m3;
use cuda_std::launch::{DevicePtr, Launch, LaunchError};
use cuda_std::tensor_map::{EncodedTensorMap, TensorMapSpec};
use gpu_types::Dtype;
use half::{bf16, f16};

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

impl Layer {
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
            (_, Weight::Tiles(parts)) if self.gate.is_some() => {
                let Some(format) = gated_format(parts) else {
                    return refuse("formats", parts.len(), "one for both halves of a gated layer");
                };
                launches.extend(self.tiles(gpu, format, self.n, operands, maps)?);
            }
            (schedule, _) => {
                for segment in self.segments() {
                    let Segment { start, rows, format, offset_bytes } = segment;
                    let operands = operands.at_row(start, offset_bytes);
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
        if matches!(self.input, Input::Gated(_)) && !is_rounded {
            return refuse("gates before the layer", 1, "none where rows are not rounded");
        }
        let is_e4m3 = matches!(self.weight, Weight::E4m3 { .. });
        if self.gate.is_some() && (is_rounded || is_e4m3 && self.schedule() == Schedule::DenseCopy)
        {
            return refuse("gates", 1, "none for so many rows by a weight in FP8");
        }
        Ok(())
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
                self.dense(gpu, n, operands.workspace, &operands.at_row(first, 0), maps)?;
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
            Dtype::F16 => self.dense_16::<f16>(gpu, n, weight, operands, maps),
            Dtype::BF16 => self.dense_16::<bf16>(gpu, n, weight, operands, maps),
            _ => self.dense_f32(gpu, n, operands),
        }
    }

    fn dense_f32(
        &self,
        gpu: Gpu,
        n: usize,
        operands: &Operands,
    ) -> Result<Option<Launch>, LaunchError> {
        if self.input != Input::Stored || self.gate.is_some() {
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
        let &Layer { max_rows, k, summation, gate, .. } = self;
        let linear_operands = Linear16Operands::<E> {
            x: operands.input(),
            weight: Rows::new(DevicePtr::new(weight), k),
            bias: operands.bias,
            residual: operands.residual,
            out: operands.output(),
        };
        let linear = Linear16 { max_rows, n, k, summation, gate };
        linear.launch(gpu, operands.num_rows, &linear_operands, maps)
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
        let &Layer { max_rows, k, gate, .. } = self;
        let order = self.summation.order;
        let prompt = QuantisedPrompt { max_rows, n, k, format, gate, order };
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
        let &Layer { max_rows, n, k, gate, .. } = self;
        let (weight, scales) = self.e4m3_rows(operands, 0);
        let small_operands = LinearFp8SmallOperands {
            x: operands.input(),
            weight,
            scales,
            bias: operands.bias,
            residual: operands.residual,
            out: operands.output(),
        };
        let small = LinearFp8Small { max_rows, n, k, gate };
        small.launch(gpu, operands.num_rows, &small_operands, maps)
    }

    fn row_scales(&self, operands: &Operands) -> DevicePtr<f32> {
        DevicePtr::new(operands.workspace + self.scales_at() as u64)
    }

    /// The rows in E4M3, in the workspace.
    fn rounded_rows(&self, operands: &Operands) -> Result<Option<Launch>, LaunchError> {
        let x = operands.x;
        let input = match (operands.norm, operands.gate, self.input) {
            (Some((weight, eps)), ..) => RowInput::Normed { x: x.cast(), weight, eps },
            (None, Some(gate), Input::Gated(activation)) => {
                RowInput::Gated { activation, gate: gate.cast(), up: x.cast() }
            }
            _ => RowInput::Stored(x.cast()),
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
    /// Operands for the weight's rows from `start` on, whose first byte is at `offset_bytes`.
    fn at_row(&self, start: usize, offset_bytes: usize) -> Self {
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
