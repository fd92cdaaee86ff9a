//! All-reduce between GPUs of one host, one call after the other in a graph.

use std::time::Instant;

use serde::Serialize;

use super::kernels::{BenchError, check_error, relative_error};
use super::random::{RandomWeights, norm, normed};
use crate::exec::cuda::CudaRanks;
use crate::exec::{Collectives, ExecError, Executor, GpuOptions, Want, default_cubin_dir};
use crate::plan::{
    AllReduce, Bounds, Dtype, KvLayout, Numerics, Op, PAGE_SIZE, Plan, PlanBuilder, PlanError,
    Precision, Rank, Rows, StepInputs, Weight,
};

/// Columns of a row; a smaller message is one row.
const WIDTH: usize = 4096;
/// Pairs of rounds that are timed.
const REPEATS: usize = 15;
/// A round has calls for so many bytes, and at least [`MIN_CALLS`].
const ROUND_BYTES: usize = 256 << 20;
const MIN_CALLS: usize = 16;
const MAX_CALLS: usize = 512;
/// As many of NCCL: what a graph of more takes to capture grows faster than they do.
const MAX_NCCL_CALLS: usize = 64;

const WEIGHTS: RandomWeights = RandomWeights::UNIFORM;

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// `all_reduce`.
    pub op: &'static str,
    /// `halfwarp` or `nccl`.
    #[serde(rename = "impl")]
    pub implementation: String,
    /// GPUs.
    pub world: usize,
    /// Bytes of the message, in f16.
    pub bytes: usize,
    /// Median time of a call.
    pub us: f64,
    /// Relative error of the sum.
    pub error: f64,
    /// The GPUs.
    pub gpu: String,
}

/// Measures an all-reduce of `bytes` in f16 between the first `world` GPUs, by halfwarp's kernels or NCCL.
///
/// # Errors
/// [`BenchError`].
pub fn measure(world: usize, bytes: usize, collectives: Collectives) -> Result<Row, BenchError> {
    let elems = bytes / 2;
    let width = if elems.is_multiple_of(WIDTH) { WIDTH } else { elems };
    let bench = Bench { num_rows: elems / width, width };
    let max_calls = if collectives == Collectives::Nccl { MAX_NCCL_CALLS } else { MAX_CALLS };
    let calls = (ROUND_BYTES / bytes.max(1)).clamp(MIN_CALLS, max_calls);
    let plans = |calls| -> Result<Vec<Plan>, PlanError> {
        Rank::all(world).map(|rank| bench.plan(rank, calls)).collect()
    };
    let (two_rounds, one_round) = (plans(2 * calls)?, plans(calls)?);
    let cubin_dir = default_cubin_dir();
    let options = GpuOptions { collectives, cubin_dir, ..GpuOptions::default() };
    let ordinals: Vec<usize> = (0..world).collect();
    let mut gpus = CudaRanks::open(&ordinals, &options, &two_rounds, &WEIGHTS)?.without_overlap();
    let [two, one] = [gpus.prepare_ranks(&two_rounds)?, gpus.prepare_ranks(&one_round)?];

    let inputs = bench.inputs();
    let sum = gpus.run(one, &inputs, Want::Logits)?.logits;
    gpus.run(two, &inputs, Want::Nothing)?;
    let error = bench.error(&one_round, &sum)?;
    check_error(&format_args!("{bytes} bytes"), error, 1e-3)?;
    let mut time = |plan| -> Result<f64, BenchError> {
        let start = Instant::now();
        gpus.run(plan, &inputs, Want::Nothing)?;
        Ok(1e6 * start.elapsed().as_secs_f64())
    };
    let mut times = Vec::new();
    for _ in 0..REPEATS {
        times.push((time(two)? - time(one)?) / calls as f64);
    }
    times.sort_by(f64::total_cmp);
    Ok(Row {
        op: "all_reduce",
        implementation: collectives.to_string(),
        world,
        bytes,
        us: times[REPEATS / 2],
        error,
        gpu: gpus.describe(),
    })
}

/// All-reduces of one size.
struct Bench {
    num_rows: usize,
    width: usize,
}

impl Bench {
    /// One all-reduce whose sum comes out, and `calls` of another tensor.
    fn plan(&self, rank: Rank, calls: usize) -> Result<Plan, PlanError> {
        let &Bench { num_rows, width } = self;
        let bounds = Bounds {
            max_kv_len: num_rows.next_multiple_of(PAGE_SIZE),
            ..Bounds::one_sequence(num_rows)
        };
        let kv = KvLayout::none(&bounds, Dtype::F16);
        let mut plan = PlanBuilder::of_rank(rank);
        // Its name makes its numbers, which each rank has others of.
        let name = format!("a{}", rank.index);
        let table = plan.weight(Weight::whole(name, num_rows, width, Dtype::F32));
        let hidden = plan.activation("hidden", Rows::Tokens, width, Dtype::F32);
        plan.op(Op::Embedding { table, out: hidden, scale: 1.0 });
        let verified = norm(&mut plan, hidden, 0, Dtype::F16);
        let timed = norm(&mut plan, hidden, 1, Dtype::F16);
        plan.op(Op::AllReduce(AllReduce::new(verified)));
        let sum = plan.activation("sum", Rows::Logits, width, Dtype::F32);
        plan.op(Op::GatherRows { x: verified, out: sum });
        (0..calls).for_each(|_| plan.op(Op::AllReduce(AllReduce::new(timed))));
        plan.finish(&Numerics::from(Precision::F16), bounds, kv, sum, None)
    }

    fn inputs(&self) -> StepInputs {
        let mut inputs = StepInputs::new();
        let pages: Vec<u32> = (0..self.num_rows.div_ceil(PAGE_SIZE) as u32).collect();
        let tokens: Vec<u32> = (0..self.num_rows as u32).collect();
        inputs.push_sequence(&tokens, 0, &pages, 0..self.num_rows);
        inputs
    }

    fn error(&self, plans: &[Plan], got: &[f32]) -> Result<f64, ExecError> {
        let tables = plans.iter().map(|plan| WEIGHTS.values(&plan.weights[0]));
        let tables = tables.collect::<Result<Vec<_>, _>>()?;
        let rows = |table: &Vec<f32>| -> Vec<f64> {
            table.chunks(self.width).flat_map(|row| normed(row, Dtype::F16)).collect()
        };
        let summands: Vec<Vec<f64>> = tables.iter().map(rows).collect();
        let sum = |i: usize| summands.iter().map(|rows| rows[i]).sum();
        Ok(relative_error(got.iter().enumerate().map(|(i, &got)| (got, sum(i)))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::cpu::CpuExecutor;

    #[test]
    fn the_sum_that_comes_out_is_that_of_the_ranks() {
        let bench = Bench { num_rows: 3, width: 40 };
        let plans: Vec<Plan> = Rank::all(2).map(|rank| bench.plan(rank, 2).unwrap()).collect();
        let mut cpu = CpuExecutor::open_ranks(&plans, &WEIGHTS).unwrap();
        let prepared = cpu.prepare_ranks(&plans).unwrap();
        let mut got = cpu.run(prepared, &bench.inputs(), Want::Logits).unwrap().logits;
        let error = bench.error(&plans, &got).unwrap();
        assert!(error < 1e-3, "{error:e}");
        got.rotate_left(1);
        assert!(bench.error(&plans, &got).unwrap() > 0.1);
    }
}
