//! The embedding of a step's tokens.

use super::Lowering;
use super::linear;
use crate::exec::ExecError;
use crate::plan::{Op, View, WeightId};
use cuda_std::launch::{DevicePtr, Launch};
use kernels::gemm::layer::{Segment, segments};
use kernels::gemm::quantised::gather::GatherQuantised;

impl Lowering<'_> {
    /// The tokens that a step's own may stand for.
    pub(super) fn drawn(&self) -> Option<DevicePtr<u32>> {
        Some(DevicePtr::new(self.addresses.drawn))
    }

    /// The rows of a table in tiles.
    pub(super) fn tiled_embedding(
        &self,
        op: &Op,
        table: WeightId,
        out: View,
        scale: f32,
    ) -> Result<Vec<Launch>, ExecError> {
        let unsupported = |why: String| ExecError::Unsupported { op: op.name().to_owned(), why };
        let weight = self.plan.weight(table);
        let (n, k) = (weight.rows, weight.cols);
        let &[Segment { format: Some(format), .. }] = &segments(&linear::parts(weight), k)[..]
        else {
            return Err(unsupported("a table in several formats".to_owned()));
        };
        let gather = GatherQuantised { max_rows: self.max_rows(out), n, k, scale, format };
        let ids = self.input(self.step.token_ids);
        let tiles = DevicePtr::new(self.addresses.weights[table.0]);
        let launch = gather.launch(self.num_rows(out), ids, self.drawn(), tiles, self.view(out)?);
        Ok(launch.map_err(|why| unsupported(why.to_string()))?.into_iter().collect())
    }
}
