//! Operations whose weight is kept in tiles ([`WeightLayout::Tiles`](crate::plan::WeightLayout)).
//!
//! Rows of a weight that are stored alike are columns of the output that a launch of their own
//! computes.

use cuda_std::launch::{DevicePtr, Launch, LaunchError};
use half::f16;
use kernels::Rows as Operand;
use kernels::gemm::quantised::dequantise::Dequantise;
use kernels::gemm::quantised::gather::GatherQuantised;
use kernels::gemm::quantised::prompt::QuantisedPrompt;
use kernels::gemm::quantised::{BlockFormat, QuantisedLinear, QuantisedOperands};
use kernels::gemm::{Input16, Out16, SumOrder};

use super::element::{Launched, linear16};
use super::{Lowering, sum_order};
use crate::exec::ExecError;
use crate::plan::{Dtype, Linear, Norm, Op, Plan, View, Weight, WeightId};

/// Rows of a tile.
const TILE_ROWS: usize = 16;

/// Most bytes of a dense copy: enough rows for a GEMM that fills a GPU, and few enough that some of
/// them are read from the L2 cache.
const MAX_DENSE_BYTES: usize = 64 << 20;

/// Consecutive rows of a weight that are stored alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    /// The first of them.
    start: usize,
    rows: usize,
    /// `None` where they are dense.
    format: Option<BlockFormat>,
    /// First byte in the weight.
    offset_bytes: usize,
}

/// The segments of `weight`, from the first row on.
fn segments(weight: &Weight) -> Vec<Segment> {
    let mut segments: Vec<Segment> = Vec::new();
    let (mut start, mut offset_bytes) = (0, 0);
    for part in &weight.parts {
        let format = weight.tile_format(part);
        match segments.last_mut() {
            // Tiles follow each other without a gap, if the last one is full.
            Some(last) if last.format == format && last.rows.is_multiple_of(TILE_ROWS) => {
                last.rows += part.rows;
            }
            _ => segments.push(Segment { start, rows: part.rows, format, offset_bytes }),
        }
        start += part.rows;
        offset_bytes += weight.part_bytes(part);
    }
    segments
}

/// The format of a weight of which the first half of the rows is a gate for the second, if one
/// kernel computes both: they are stored alike, each in tiles of its own.
pub(super) fn gated_format(weight: &Weight) -> Option<BlockFormat> {
    let half = weight.rows / 2;
    let is_apart = half.is_multiple_of(TILE_ROWS)
        || matches!(&weight.parts[..], [gate, _] if gate.rows == half);
    let mut formats = weight.parts.iter().map(|part| weight.tile_format(part));
    let first = formats.next()??;
    (is_apart && formats.all(|format| format == Some(first))).then_some(first)
}

/// Whether a kernel multiplies tiles, all that the weight of `op` has, and computes the norm before
/// it and the gate after it.
pub(super) fn fuses(plan: &Plan, op: &Linear) -> bool {
    let weight = plan.weight(op.weight);
    let product = Product::of(plan, op.x);
    let max_rows = plan.bounds.max_rows(plan.tensor(op.x.tensor).rows);
    let (n, k, gated) = (op.out.width, weight.cols, op.gated);
    let norms = |segment: Segment| {
        let linear = |format| QuantisedLinear { max_rows, n, k, format, gated };
        segment.format.is_some_and(|format| linear(format).fuses_norm())
    };
    let has_norm = op.norm.is_none()
        || product == Product::SmallBatch && segments(weight).into_iter().all(norms);
    let has_gate = !gated || product != Product::DenseCopy && gated_format(weight).is_some();
    has_norm && has_gate
}

/// How a linear layer is multiplied with tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Product {
    /// [`QuantisedLinear`].
    SmallBatch,
    /// [`QuantisedPrompt`].
    Prompt,
    /// With a dense copy in the workspace, some rows of the weight after the other.
    DenseCopy,
}

impl Product {
    /// The fastest for the rows of `x`. In a batch-invariant plan it is the same for any number of
    /// them, as each accumulates in an order of its own.
    pub fn of(plan: &Plan, x: View) -> Self {
        let max_rows = plan.bounds.max_rows(plan.tensor(x.tensor).rows);
        match sum_order(plan) {
            SumOrder::Fastest if max_rows <= QuantisedLinear::MAX_ROWS => Product::SmallBatch,
            SumOrder::Fastest if max_rows <= QuantisedPrompt::MAX_FAST_ROWS => Product::Prompt,
            SumOrder::SmallBatch => Product::Prompt,
            SumOrder::Fastest | SumOrder::Tiles => Product::DenseCopy,
        }
    }
}

/// Rows of a weight of `k` columns in a dense copy.
pub(super) fn dense_rows(k: usize) -> usize {
    const MULTIPLE: usize = 256;
    let rows = MAX_DENSE_BYTES / (size_of::<f16>() * k.max(1));
    (rows / MULTIPLE * MULTIPLE).max(MULTIPLE)
}

/// Bytes of the workspace for the dense copies of a linear layer.
pub(super) fn dense_bytes(plan: &Plan, op: &Linear) -> usize {
    let weight = plan.weight(op.weight);
    if Product::of(plan, op.x) != Product::DenseCopy {
        return 0;
    }
    let tiles = segments(weight).into_iter().filter(|segment| segment.format.is_some());
    let rows = tiles.map(|segment| segment.rows.min(dense_rows(weight.cols))).max();
    rows.unwrap_or(0) * weight.cols * size_of::<f16>()
}

impl Lowering<'_> {
    /// Whether `op` reads a weight in tiles.
    pub(super) fn reads_tiles(&self, op: &Op) -> bool {
        op.weights().into_iter().any(|id| self.plan.weight(id).has_tiles())
    }

    /// The launches of an operation that reads a weight in tiles.
    pub(super) fn tiled_op(&mut self, op: &Op) -> Result<Vec<Launch>, ExecError> {
        match *op {
            Op::Embedding { table, out } => self.tiled_embedding(op, table, out),
            Op::Linear(ref linear) if linear.gated => {
                let weight = self.plan.weight(linear.weight);
                let format = gated_format(weight);
                let format =
                    format.ok_or_else(|| unsupported(op, "halves in different formats"))?;
                let weight = self.addresses.weights[linear.weight.0];
                let launch = self.quantised_linear(linear, format, weight, 0, linear.out.width)?;
                Ok(launch.map_err(|why| unsupported(op, &why.to_string()))?.into_iter().collect())
            }
            Op::Linear(ref linear) => self.tiled_linear(op, linear),
            _ => Err(unsupported(op, "a weight in tiles, which it does not read")),
        }
    }

    fn tiled_embedding(
        &self,
        op: &Op,
        table: WeightId,
        out: View,
    ) -> Result<Vec<Launch>, ExecError> {
        let weight = self.plan.weight(table);
        let &[Segment { format: Some(format), .. }] = &segments(weight)[..] else {
            return Err(unsupported(op, "a table in several formats"));
        };
        let (n, k) = (weight.rows, weight.cols);
        let gather = GatherQuantised { max_rows: self.max_rows(out), n, k, format };
        let ids = self.input(self.step.token_ids);
        let tiles = DevicePtr::new(self.addresses.weights[table.0]);
        let launch = gather.launch(self.num_rows(out), ids, tiles, self.view(out)?);
        Ok(launch.map_err(|why| unsupported(op, &why.to_string()))?.into_iter().collect())
    }

    fn tiled_linear(&mut self, op: &Op, linear: &Linear) -> Result<Vec<Launch>, ExecError> {
        let weight = self.plan.weight(linear.weight);
        let (k, product) = (weight.cols, Product::of(self.plan, linear.x));
        let unsupported = |why: LaunchError| unsupported(op, &why.to_string());
        let mut launches = Vec::new();
        for Segment { start, rows, format, offset_bytes } in segments(weight) {
            let address = self.addresses.weights[linear.weight.0] + offset_bytes as u64;
            let Some(format) = format else {
                let dense = Operand::new(DevicePtr::<f16>::new(address), k);
                launches.extend(linear16(self, linear, dense, start, rows)?.map_err(unsupported)?);
                continue;
            };
            if product != Product::DenseCopy {
                let launch = self.quantised_linear(linear, format, address, start, rows)?;
                launches.extend(launch.map_err(unsupported)?);
                continue;
            }
            let tile_bytes = format.row_tile_bytes(k).unwrap_or(0);
            let dense = Operand::new(DevicePtr::<f16>::new(self.addresses.workspace), k);
            for first in (0..rows).step_by(dense_rows(k)) {
                let n = dense_rows(k).min(rows - first);
                let tiles = DevicePtr::new(address + (first / TILE_ROWS * tile_bytes) as u64);
                let copy = Dequantise { n, k, format }.launch(tiles, dense);
                launches.extend(copy.map_err(unsupported)?);
                // It loads the weight, which is the copy, as soon as it starts.
                let product = linear16(self, linear, dense, start + first, n)?;
                let product = product.map_err(unsupported)?;
                launches.extend(product.map(|launch| Launch { overlaps: false, ..launch }));
            }
        }
        Ok(launches)
    }

    /// Columns `start .. start + n` of the output, by tiles at `address`; all, of a gated layer.
    fn quantised_linear(
        &mut self,
        linear: &Linear,
        format: BlockFormat,
        address: u64,
        start: usize,
        n: usize,
    ) -> Result<Launched, ExecError> {
        let &Linear { x, norm, silu: _, weight, bias, gated, residual, out } = linear;
        let out = out.columns(start, n);
        let bias = bias.map(|bias| self.weight::<f32>(bias)).transpose()?;
        let residual =
            residual.map(|residual| self.view(residual.columns(start, n))).transpose()?;
        let operands = QuantisedOperands {
            x: match norm {
                Some(Norm { weight, eps }) => {
                    Input16::Normed { x: self.view(x)?, weight: self.weight(weight)?, eps }
                }
                None => Input16::Half(self.view(x)?),
            },
            weight: DevicePtr::new(address),
            bias: bias.map(|bias| bias.add(start)),
            residual,
            out: match self.plan.dtype(out) {
                Dtype::F32 => Out16::F32(self.view(out)?),
                _ => Out16::Half(self.view(out)?),
            },
        };
        let (max_rows, num_rows, k) =
            (self.max_rows(x), self.num_rows(x), self.plan.weight(weight).cols);
        if Product::of(self.plan, x) == Product::SmallBatch {
            let layer = QuantisedLinear { max_rows, n, k, format, gated };
            return Ok(layer.launch(self.gpu, num_rows, &operands));
        }
        let order = sum_order(self.plan);
        let layer = QuantisedPrompt { max_rows, n, k, format, gated, order };
        let (gpu, maps) = (self.gpu, &mut self.maps);
        Ok(layer.launch(gpu, num_rows, &operands, &mut |spec| maps.encode(spec)))
    }
}

fn unsupported(op: &Op, why: &str) -> ExecError {
    ExecError::Unsupported { op: op.name().to_owned(), why: why.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{WeightLayout, WeightPart};

    fn weight(cols: usize, parts: &[(usize, Dtype)]) -> Weight {
        let parts = parts.iter().map(|&(rows, storage)| WeightPart::new("part", rows, storage));
        let parts: Vec<WeightPart> = parts.collect();
        let rows = parts.iter().map(|part| part.rows).sum();
        Weight { name: "stack".into(), rows, cols, layout: WeightLayout::Tiles, parts }
    }

    /// As Q4_K_M stores Q, K and V, and as a model with few rows may.
    #[test]
    fn rows_that_are_stored_alike_are_one_segment() {
        let of = |parts: &[(usize, Dtype)]| -> Vec<_> {
            let segments = segments(&weight(512, parts)).into_iter();
            segments.map(|s| (s.start, s.rows, s.format, s.offset_bytes)).collect()
        };
        let (q4, q6) = (Some(BlockFormat::Q4_K), Some(BlockFormat::Q6_K));
        assert_eq!(
            of(&[(64, Dtype::Q4_K), (32, Dtype::Q4_K), (32, Dtype::Q6_K), (8, Dtype::F16)]),
            [
                (0, 96, q4, 0),
                (96, 32, q6, 96 * 2 * 144),
                (128, 8, None, 96 * 2 * 144 + 32 * 2 * 210),
            ]
        );
        // Eight rows of padding are between them.
        assert_eq!(
            of(&[(24, Dtype::Q4_K), (16, Dtype::Q4_K)]),
            [(0, 24, q4, 0), (24, 16, q4, 32 * 2 * 144)]
        );
    }

    #[test]
    fn a_gate_has_the_format_of_what_it_is_for() {
        let of = |parts: &[(usize, Dtype)]| gated_format(&weight(512, parts));
        let q4 = Some(BlockFormat::Q4_K);
        assert_eq!(of(&[(24, Dtype::Q4_K), (24, Dtype::Q4_K)]), q4);
        assert_eq!(of(&[(64, Dtype::Q4_K)]), q4);
        assert_eq!(of(&[(48, Dtype::Q4_K)]), None, "the halves share a tile");
        assert_eq!(of(&[(32, Dtype::Q4_K), (32, Dtype::Q6_K)]), None);
        assert_eq!(of(&[(32, Dtype::Q4_K), (32, Dtype::F16)]), None);
        assert_eq!(of(&[(32, Dtype::F16), (32, Dtype::F16)]), None);
    }
}
