//! Operations of encoders.

use super::element::{DeviceElement, Launched};
use super::{ExecError, Lowering};
use crate::plan::{ConstantId, Dtype, LayerNorm, StepLayout, View};
use cuda_std::launch::DevicePtr;
use kernels::encoder::add_table::AddTable;
use kernels::encoder::gelu_rows::GeluRows;
use kernels::encoder::layer_norm;
use kernels::encoder::mean_rows::{MeanRows, MeanSeqs};

impl Lowering<'_> {
    pub(super) fn layer_norm<E: DeviceElement>(
        &self,
        op: &LayerNorm,
    ) -> Result<Launched, ExecError> {
        let &LayerNorm { x, weight, bias, eps, out, keeps } = op;
        let (max_rows, width) = (self.max_rows(x), x.width);
        let norm = layer_norm::LayerNorm { max_rows, width, eps, keeps };
        let bias = bias.map_or(Ok(DevicePtr::null()), |bias| self.weight(bias))?;
        let vectors = [self.weight(weight)?, bias];
        let num_rows = self.num_rows(x);
        Ok(match self.plan.dtype(out) {
            Dtype::F32 => norm.launch(num_rows, self.view(x)?, vectors, self.view::<f32>(out)?),
            _ => norm.launch(num_rows, self.view(x)?, vectors, self.view::<E>(out)?),
        })
    }

    pub(super) fn add_table(&self, x: View, table: ConstantId) -> Result<Launched, ExecError> {
        let add = AddTable { max_rows: self.max_rows(x), width: x.width };
        let table = DevicePtr::new(self.addresses.constants[table.0]);
        Ok(add.launch(self.num_rows(x), self.input(self.step.positions), table, self.view(x)?))
    }

    pub(super) fn gelu<E: DeviceElement>(
        &self,
        x: View,
        up: Option<View>,
        out: View,
    ) -> Result<Launched, ExecError> {
        let gelu = GeluRows { max_rows: self.max_rows(out), width: out.width };
        let num_rows = self.num_rows(out);
        if self.plan.dtype(out) == Dtype::F32 {
            let up = up.map(|up| self.view::<f32>(up)).transpose()?;
            return Ok(gelu.launch(num_rows, self.view::<f32>(x)?, up, self.view(out)?));
        }
        let up = up.map(|up| self.view::<E>(up)).transpose()?;
        Ok(gelu.launch(num_rows, self.view::<E>(x)?, up, self.view(out)?))
    }

    pub(super) fn mean_rows(&self, x: View, out: View) -> Result<Launched, ExecError> {
        let mean = MeanRows { max_rows: self.max_rows(out), width: out.width };
        let seqs = MeanSeqs {
            num_rows: self.input(StepLayout::NUM_LOGIT_ROWS),
            rows: self.input(self.step.logit_rows),
            seq_ids: self.input(self.step.seq_ids),
            cu_seqlens_q: self.input(self.step.cu_seqlens_q),
        };
        Ok(mean.launch(&seqs, self.view(x)?, self.view(out)?))
    }
}
