//! Sums over ranks by NCCL.
//!
//! NCCL knows nothing of the step: it adds as many rows as the plan has at most. Those after the step's are never read.

use cuda_loader::nccl::{AllReduce, DataType};
use cuda_std::launch::{DevicePtr, LaunchError};
use half::{bf16, f16};
use kernels::place_columns::PlaceColumns;

use super::{Lowering, Task};
use crate::exec::ExecError;
use crate::plan::{self, Dtype, Op, Plan, View};

/// The type of what is added over the ranks of `plan`; `None` if nothing is.
pub fn summed_dtype(plan: &Plan) -> Option<Dtype> {
    plan.ops.iter().find_map(|op| match op {
        Op::AllReduce(op) => Some(plan.dtype(op.x)),
        _ => None,
    })
}

impl Lowering<'_> {
    pub(super) fn nccl_all_reduce(&self, op: &plan::AllReduce) -> Result<Vec<Task>, ExecError> {
        let &plan::AllReduce { x, residual, norm } = op;
        if norm.is_some() {
            return Err(unsupported(op, "a norm after it".to_owned()));
        }
        let dtype = self.plan.dtype(x);
        let add = match residual {
            None => Ok(None),
            Some(residual) => match dtype {
                Dtype::F16 => self.stored_sum::<f16, f32>(x, Some(residual), residual)?,
                Dtype::BF16 => self.stored_sum::<bf16, f32>(x, Some(residual), residual)?,
                _ => self.stored_sum::<f32, f32>(x, Some(residual), residual)?,
            },
        };
        let add = add.map_err(|why: LaunchError| unsupported(op, why.to_string()))?;
        let data_type = match dtype {
            Dtype::F32 => DataType::F32,
            Dtype::F16 => DataType::F16,
            Dtype::BF16 => DataType::Bf16,
            other => return Err(unsupported(op, format!("it adds no {other}"))),
        };
        Ok(self.sum(x, data_type).into_iter().chain(add.map(Task::Launch)).collect())
    }

    /// Shares differ in width, and a row's lie side by side: each rank has zeros where others have columns, and all add.
    pub(super) fn nccl_all_gather(
        &self,
        x: View,
        first_column: usize,
        out: View,
    ) -> Result<Vec<Task>, ExecError> {
        let [max_rows, width, out_width] = [self.max_rows(x), x.width, out.width];
        let place = PlaceColumns { max_rows, width, first_column, out_width };
        let [from, to] = [x, out].map(|view| DevicePtr::new(self.address(view)));
        let launch = place.launch(self.num_rows(x), from, to);
        let launch =
            launch.map_err(|why| unsupported(&plan::AllReduce::new(out), why.to_string()))?;
        Ok(launch.map(Task::Launch).into_iter().chain(self.sum(out, DataType::F32)).collect())
    }

    /// The sum of the whole activation of `x`, in place; none of an empty one.
    fn sum(&self, x: View, data_type: DataType) -> Option<Task> {
        let address = self.addresses.tensors[x.tensor.0];
        let count = self.max_rows(x) * self.plan.tensor(x.tensor).width;
        let sum = AllReduce { send: address, receive: address, count, data_type };
        (count > 0).then_some(Task::AllReduce(sum))
    }
}

fn unsupported(op: &plan::AllReduce, why: String) -> ExecError {
    ExecError::Unsupported { op: format!("{} by NCCL", Op::AllReduce(*op).name()), why }
}

#[cfg(test)]
mod tests {
    use super::super::{Addresses, Libraries, fused, lower_with};
    use super::*;
    use crate::plan::{
        AllReduce, Bounds, KvLayout, Numerics, PlanBuilder, Precision, Rank, Rows, Weight,
    };
    use cuda_loader::nccl;
    use kernels::gemm::Gpu;

    const WIDTH: usize = 64;
    const MAX_TOKENS: usize = 5;

    /// A sum that is added to the residual and normed, and one rank's columns of the logits.
    fn plan(rank: Rank, precision: Precision) -> Plan {
        let bounds = Bounds {
            max_tokens: MAX_TOKENS,
            max_seqs: 2,
            max_q_len: MAX_TOKENS,
            max_logit_rows: 2,
            max_kv_len: 64,
            mixed: false,
        };
        let kv = KvLayout::none(&bounds, precision.operand());
        let mut plan = PlanBuilder::of_rank(rank);
        let table = plan.weight(Weight::whole("table", 3, WIDTH, Dtype::F32));
        let weight = plan.weight(Weight::whole("norm", 1, WIDTH, Dtype::F32));
        let hidden = plan.activation("hidden", Rows::Tokens, WIDTH, Dtype::F32);
        let x = plan.activation("x", Rows::Tokens, WIDTH, precision.operand());
        let normed = plan.activation("normed", Rows::Tokens, WIDTH, precision.operand());
        let own = plan.activation("own", Rows::Logits, WIDTH, Dtype::F32);
        let all = plan.activation("all", Rows::Logits, rank.world * WIDTH, Dtype::F32);
        let eps = 1e-5;
        plan.op(Op::Embedding { table, out: hidden, scale: 1.0 });
        plan.op(Op::RmsNorm { x: hidden, weight, out: x, eps });
        plan.op(Op::AllReduce(AllReduce::new(x)));
        plan.op(Op::Add { x, residual: hidden, out: hidden });
        plan.op(Op::RmsNorm { x: hidden, weight, out: normed, eps });
        plan.op(Op::GatherRows { x: normed, out: own });
        plan.op(Op::AllGather { x: own, first_column: rank.index * WIDTH, out: all });
        plan.finish(&Numerics::from(precision), bounds, kv, all, None).expect("a right plan")
    }

    /// Where ranks meet: symbols of kernels, and what NCCL adds.
    fn meetings(plan: &Plan, nccl: bool) -> Vec<String> {
        let libraries = Libraries { nccl, ..Libraries::default() };
        let plan = fused(plan, libraries, Gpu::HOPPER);
        let addresses = Addresses::placeholder(&plan);
        let encode = |spec: &cuda_std::tensor_map::TensorMapSpec| Ok(spec.emulated());
        let tasks = lower_with(libraries, &plan, &addresses, Gpu::HOPPER, encode).unwrap();
        let describe = |task: Task| match task {
            Task::Launch(launch) => launch.symbol.to_owned(),
            Task::Gemm(gemm) => unreachable!("{gemm:?}"),
            Task::AllReduce(sum) => {
                let nccl::AllReduce { send, receive, count, data_type } = sum;
                let tensor = addresses.tensors.iter().position(|&address| address == send);
                assert_eq!(send, receive);
                format!("{data_type:?} x {count} of {}", plan.tensors[tensor.unwrap()].name)
            }
        };
        let ops = plan.ops.iter().zip(tasks).filter(|(op, _)| op.is_collective());
        ops.flat_map(|(_, tasks)| tasks.into_iter().map(describe)).collect()
    }

    #[test]
    fn nccl_adds_in_place_of_our_kernels() {
        for rank in Rank::all(2) {
            let in_f16 = plan(rank, Precision::F16);
            assert_eq!(meetings(&in_f16, false), ["all_reduce_norm_f16_w2_v1", "all_gather_w2"]);
            let by_nccl =
                ["F16 x 320 of x", "gemm_epilogue_f16_f32", "place_columns", "F32 x 256 of all"];
            assert_eq!(meetings(&in_f16, true), by_nccl);
        }
    }

    /// Three ranks, and f32: what our kernels do not take.
    #[test]
    fn nccl_adds_what_our_kernels_do_not() {
        let rank = Rank::all(3).nth(2).unwrap();
        let in_f32 = plan(rank, Precision::F32);
        let by_nccl = ["F32 x 320 of x", "gemm_epilogue_f32", "place_columns", "F32 x 384 of all"];
        assert_eq!(meetings(&in_f32, true), by_nccl);
        assert_eq!(summed_dtype(&in_f32), Some(Dtype::F32));
    }
}
