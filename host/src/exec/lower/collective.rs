//! Operations in which all ranks take part.

use cuda_std::launch::{DevicePtr, Launch, LaunchError};
use kernels::all_reduce::{
    Algorithm, AllGather, AllReduce, AllReduceAdd, AllReduceNorm, NormOperands, Ranks, Workspace,
    one_shot_max_bytes,
};
use kernels::element::Half;
use kernels::gemm::OutputOf;

use super::Lowering;
use super::element::{DeviceElement, Launched};
use crate::exec::ExecError;
use crate::plan::{self, Dtype, Norm, Op, Plan, View};

/// Bytes of the workspace that a rank of `plan` meets the others in: the same for all plans of a
/// model. 0 for one that is alone.
///
/// # Errors
/// [`ExecError::Unsupported`] for a world of another size than kernels take.
pub fn rank_workspace_bytes(plan: &Plan) -> Result<usize, ExecError> {
    match plan.rank.is_alone() {
        true => Ok(0),
        false => workspace(plan).map(|workspace| workspace.bytes()),
    }
}

/// Whether one kernel computes `op`, which has a norm.
pub(super) fn fuses(plan: &Plan, op: &plan::AllReduce) -> bool {
    let out = op.norm.map(|(_, out)| plan.dtype(out));
    let (_, width) = norm_shape(plan);
    plan.dtype(op.x) != Dtype::F32 && out == Some(plan.dtype(op.x)) && op.x.width == width
}

/// Rows and columns of the sums of `plan`, which all have one width, that one shot adds to the residual and norms.
fn norm_shape(plan: &Plan) -> (usize, usize) {
    let width = plan.ops.iter().find_map(|op| match op {
        Op::AllReduce(op) => Some(op.x.width),
        _ => None,
    });
    let width = width.filter(|&width| AllReduceNorm::takes(width));
    width.map_or((0, 0), |width| (max_elems(plan) / width, width))
}

/// Elements of a sum for which one shot is taken.
fn max_elems(plan: &Plan) -> usize {
    one_shot_max_bytes(plan.rank.world) / size_of::<u16>()
}

fn workspace(plan: &Plan) -> Result<Workspace, ExecError> {
    Workspace::new(plan.rank.world, max_elems(plan), norm_shape(plan)).map_err(|why| {
        let op = format!("{} ranks", plan.rank.world);
        ExecError::Unsupported { op, why: why.to_string() }
    })
}

impl Lowering<'_> {
    pub(super) fn all_reduce<E: DeviceElement + Half>(
        &self,
        op: &plan::AllReduce,
    ) -> Result<Vec<Launch>, ExecError>
    where
        f32: OutputOf<E>,
    {
        let &plan::AllReduce { x, residual, norm } = op;
        let unsupported = |why: LaunchError| self.unsupported(op, &why);
        let (max_rows, num_rows) = (self.max_rows(x), self.num_rows(x));
        let (ranks, all) = (self.ranks(op)?, self.rank_tensors::<E>(x));
        let sum = AllReduce { max_rows, width: x.width };
        let launches = match (residual, norm) {
            (Some(residual), Some((Norm { weight, eps }, out))) => {
                let operands = NormOperands {
                    x: &all,
                    residual: self.view(residual)?.ptr,
                    weight: self.weight(weight)?,
                    out: &self.rank_tensors(out),
                };
                let norm = AllReduceNorm { max_rows, hidden_size: x.width, eps };
                vec![norm.launch(&ranks, num_rows, &operands)]
            }
            // A norm before it by two shots has left each rank its own rows of the residual.
            (Some(residual), None) if self.by_two_shots(sum)? && AllReduceNorm::takes(x.width) => {
                let add = AllReduceAdd { max_rows, hidden_size: x.width };
                vec![add.launch(&ranks, num_rows, &all, &self.rank_tensors(residual))]
            }
            (Some(residual), None) => {
                let add = self.stored_sum::<E, f32>(x, Some(residual), residual)?;
                vec![sum.launch(&ranks, num_rows, &all), add]
            }
            (None, _) => vec![sum.launch(&ranks, num_rows, &all)],
        };
        let launches: Result<Vec<_>, _> = launches.into_iter().collect();
        Ok(launches.map_err(unsupported)?.into_iter().flatten().collect())
    }

    fn by_two_shots(&self, sum: AllReduce) -> Result<bool, ExecError> {
        Ok(sum.algorithm(&workspace(self.plan)?) == Algorithm::TwoShot)
    }

    pub(super) fn all_gather(
        &self,
        x: View,
        first_column: usize,
        out: View,
    ) -> Result<Launched, ExecError> {
        let all_gather = AllGather {
            max_rows: self.max_rows(x),
            width: x.width,
            out_width: out.width,
            first_column,
        };
        let own = DevicePtr::new(self.address(x));
        let ranks = self.ranks(&plan::AllReduce::new(x))?;
        Ok(all_gather.launch(&ranks, self.num_rows(x), own, &self.rank_tensors(out)))
    }

    fn ranks(&self, op: &plan::AllReduce) -> Result<Ranks, ExecError> {
        let addresses = self.addresses.ranks.iter();
        let addresses = addresses.map(|rank| DevicePtr::new(rank.workspace)).collect();
        Ranks::new(self.plan.rank.index, workspace(self.plan)?, addresses)
            .map_err(|why| self.unsupported(op, &why))
    }

    fn unsupported(&self, op: &plan::AllReduce, why: &LaunchError) -> ExecError {
        ExecError::Unsupported { op: Op::AllReduce(*op).name().to_owned(), why: why.to_string() }
    }

    /// The whole activation of `view`, of every rank.
    fn rank_tensors<T>(&self, view: View) -> Vec<DevicePtr<T>> {
        let ranks = self.addresses.ranks.iter();
        ranks.map(|rank| DevicePtr::new(rank.tensors[view.tensor.0])).collect()
    }
}

/// Why kernels of ours do not sum f32.
pub fn only_16_bits() -> ExecError {
    let why = format!("{} operands; kernels that add over GPUs take F16 or BF16", Dtype::F32);
    ExecError::Unsupported { op: "all_reduce".to_owned(), why }
}
