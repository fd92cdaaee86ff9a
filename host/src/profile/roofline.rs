//! What a device gives: the bandwidth of its memory, and its rate of matrix products.

use super::{OpProfile, Rated, StepProfile};
use crate::bench::random::{RandomWeights, norm};
use crate::engine::{EngineError, StepSize, TimedStep};
use crate::exec::{self, Device, GpuOptions, Want};
use crate::model::ModelError;
use crate::plan::{
    Bounds, Dtype, KvLayout, Linear, Op, PAGE_SIZE, Plan, PlanBuilder, PlanError, Precision, Rows,
    StepInputs, StepShape, Weight,
};
use serde::Serialize;

/// The limits of a device, by measurement.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Roofline {
    /// Bytes a second: a copy of a large array, or the weight of a linear layer with one row of
    /// input, whichever is faster.
    pub bytes_per_s: f64,
    /// Floating-point operations a second of a large matrix product.
    pub flops_per_s: f64,
}

/// How large the arrays are: beyond every cache, and soon done.
struct Sizes {
    /// Rows of the matrix product.
    m: usize,
    /// Columns of the matrix product.
    n: usize,
    /// What it sums over.
    k: usize,
    /// Bytes that are copied, and those of the weight that is streamed.
    bytes: usize,
}

const REPEATS: usize = 9;

impl Roofline {
    /// Measures `device` with operands of `precision`.
    ///
    /// # Errors
    /// [`EngineError::Exec`], on the emulator always.
    pub fn measure(
        device: Device,
        options: &GpuOptions,
        precision: Precision,
    ) -> Result<Self, EngineError> {
        let sizes = match device.runs_kernels() {
            true => Sizes { m: 4096, n: 8192, k: 4096, bytes: 512 << 20 },
            false => Sizes { m: 512, n: 2048, k: 2048, bytes: 128 << 20 },
        };
        sizes.measure(device, options, precision)
    }

    /// The best of the operations that move `least_bytes` or more, and of those that compute.
    fn of(step: &StepProfile, least_bytes: usize) -> Self {
        let best = |rate: fn(&OpProfile) -> f64, ops: &mut dyn Iterator<Item = &OpProfile>| {
            ops.filter(|op| op.us > 0.0).map(rate).fold(0.0, f64::max)
        };
        let mut large = step.ops.iter().filter(|op| op.bytes() >= least_bytes);
        Roofline {
            bytes_per_s: 1e9 * best(OpProfile::gb_per_s, &mut large),
            flops_per_s: 1e12 * best(OpProfile::tflop_per_s, &mut step.ops.iter()),
        }
    }

    /// The least time of what moves `bytes` and computes `flops`, over the time that it took.
    pub fn share(&self, rated: &impl Rated) -> f64 {
        let least_s = f64::max(
            rated.bytes() as f64 / self.bytes_per_s,
            rated.flops() as f64 / self.flops_per_s,
        );
        1e6 * least_s / rated.us()
    }
}

impl Sizes {
    /// The limits of `device`, by arrays of these sizes.
    fn measure(
        &self,
        device: Device,
        options: &GpuOptions,
        precision: Precision,
    ) -> Result<Roofline, EngineError> {
        let plan = self.plan(precision).map_err(ModelError::from)?;
        let mut executor = exec::open(device.first(), options, &plan, &RandomWeights::UNIFORM)?;
        let prepared = executor.prepare(&plan)?;
        let mut inputs = StepInputs::new();
        let pages: Vec<u32> = (0..self.m.div_ceil(PAGE_SIZE) as u32).collect();
        let tokens: Vec<u32> = (0..self.m as u32).collect();
        inputs.push_sequence(&tokens, 0, &pages, 0..1);
        executor.run(prepared, &inputs, Want::Nothing)?;
        let step = TimedStep {
            times: executor.time_ops(prepared, &inputs, REPEATS)?,
            plan: executor.plan(prepared)?.clone(),
            shape: StepShape::of(&inputs),
        };
        let size = StepSize { num_seqs: 1, cached_tokens: 0, new_tokens: self.m };
        Ok(Roofline::of(&StepProfile::of(size, &step), self.bytes))
    }

    /// A copy of rows, a matrix product, and one row through a large weight.
    fn plan(&self, precision: Precision) -> Result<Plan, PlanError> {
        let &Sizes { m, n, k, bytes } = self;
        let operand = precision.operand();
        let mut plan = PlanBuilder::new();
        let copied = bytes / 2 / m / Dtype::F32.block_bytes();
        let streamed = (bytes / k / operand.block_bytes()).next_multiple_of(8);
        let table = plan.weight(Weight::whole("copied", m, copied, Dtype::F32));
        let copy = plan.activation("copy", Rows::Tokens, copied, Dtype::F32);
        plan.op(Op::Embedding { table, out: copy, scale: 1.0 });

        let x = norm(&mut plan, copy.columns(0, k), 0, operand);
        let factor = plan.weight(Weight::whole("factor", n, k, operand));
        let product = plan.activation("product", Rows::Tokens, n, operand);
        plan.op(Op::Linear(Linear::new(x, factor, product)));

        let row = plan.activation("row", Rows::Logits, k, Dtype::F32);
        plan.op(Op::GatherRows { x: copy.columns(0, k), out: row });
        let row = norm(&mut plan, row, 1, operand);
        let logits = plan.activation("logits", Rows::Logits, streamed, Dtype::F32);
        let streamed = plan.weight(Weight::whole("streamed", streamed, k, operand));
        plan.op(Op::Linear(Linear::new(row, streamed, logits)));
        let bounds = Bounds {
            max_logit_rows: 1,
            max_kv_len: m.next_multiple_of(PAGE_SIZE),
            ..Bounds::one_sequence(m)
        };
        let kv = KvLayout::none(&bounds, operand);
        let next_tokens = plan.activation("next_tokens", Rows::Logits, 1, Dtype::U32);
        plan.op(Op::Sample { x: logits, out: next_tokens });
        plan.finish(&precision.into(), bounds, kv, logits, next_tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The CPU has a roofline, in every precision: its plan is one that runs.
    #[test]
    fn a_roofline_is_measured() {
        for precision in Precision::ALL {
            let sizes = Sizes { m: 16, n: 64, k: 32, bytes: 1 << 16 };
            let options = GpuOptions::default();
            let roofline = sizes.measure(Device::Cpu, &options, precision).unwrap();
            assert!(roofline.bytes_per_s > 0.0 && roofline.flops_per_s > 0.0, "{roofline:?}");
        }
    }

    #[test]
    fn the_share_is_of_the_nearer_limit() {
        let roofline = Roofline { bytes_per_s: 1e12, flops_per_s: 1e14 };
        let op = |read_bytes, flops| OpProfile {
            index: 0,
            op: "linear",
            subject: "x".to_owned(),
            layer: None,
            us: 10.0,
            spread_us: 0.0,
            read_bytes,
            written_bytes: 0,
            flops,
            counted: None,
        };
        // 5 us of bytes and 1 us of operations; then 1 and 8.
        assert!((roofline.share(&op(5_000_000, 100_000_000)) - 0.5).abs() < 1e-12);
        assert!((roofline.share(&op(1_000_000, 800_000_000)) - 0.8).abs() < 1e-12);
    }
}
