//! The launches on Hopper.

use super::{ExpertLinear, ExpertOperands, Stored, Workspace};
use crate::Rows;
use crate::activation::{gate_arg, num_parts};
use crate::element::{Number, type_of};
use crate::gemm::Gpu;
use crate::gemm::config::wgmma::BLOCK_K;
use crate::gemm::experts::wgmma::{BLOCK_COLUMNS, GATE_ROWS, NUM_THREADS, Stages, dense, packed};
use crate::gemm::layer::Maps;
use crate::gemm::problem::tensor_map;
use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError, arg_u32};
use cuda_std::tensor_map::TensorMapSpec;
use gpu_types::Target;
use half::f16;

impl ExpertLinear {
    /// Whether [`wgmma`](super::super::wgmma) computes the layer where it is the fastest.
    pub(super) fn has_wgmma(&self, gpu: Gpu) -> bool {
        let is_dense = self.stored == Stored::Dense;
        let has_groups = self.gate.is_none() || self.n.is_multiple_of(GATE_ROWS as usize);
        gpu.target == Target::Sm90a && (!is_dense || has_groups)
    }

    /// Most choices of a chunk: no more than tokens, as each has an expert once.
    pub(super) fn wgmma_rows(&self) -> u32 {
        let rows = |most: u32| self.max_tokens.min(most as usize) as u32;
        match self.stored {
            Stored::Dense => dense::mma_rows(rows(dense::MAX_CHUNK_ROWS)),
            _ => packed::mma_rows(rows(packed::MAX_CHUNK_ROWS)),
        }
    }

    /// The products in f16 or bf16.
    pub(super) fn launch_wgmma<E: Number>(
        &self,
        gpu: Gpu,
        operands: &ExpertOperands<E>,
        products: Rows<E>,
        at: &Workspace,
        maps: Maps<'_>,
    ) -> Result<Option<Launch>, LaunchError> {
        self.check(operands)?;
        arg_u32("elements of x", self.max_tokens.saturating_mul(operands.x.row_stride))?;
        let x_rows = self.wgmma_rows();
        let columns = self.n.div_ceil(BLOCK_COLUMNS as usize / num_parts(self.gate));
        let tiles = columns.saturating_mul(self.max_chunks(x_rows as usize));
        let geometry = |stages: Stages| {
            let grid = [tiles.min(gpu.num_sms), 1, 1];
            Geometry::new(grid, NUM_THREADS as usize, stages.shared_bytes() as usize)
        };
        let (top_k, columns) = (self.top_k as u32, arg_u32("n", columns)?);
        let (chunks, order) = (DevicePtr::new(at.chunks), DevicePtr::new(at.order));
        let (n, k, gate) = (arg_u32("n", self.n)?, arg_u32("k", self.k)?, gate_arg(self.gate));
        let (x, x_stride) = (DevicePtr::new(operands.x.ptr.0), operands.x.stride_arg()?);
        let x_choice_stride = self.x_choice_stride(operands.x_by_choice);
        let ([bias, up_bias], out) = (operands.bias, products.untyped_ptr());
        let (out_stride, out_choice_stride) = (products.stride_arg()?, n);
        if self.stored == Stored::Dense {
            let stages = dense::stages(x_rows);
            let Some(geometry) = geometry(stages)? else { return Ok(None) };
            let args = dense::experts_wgmma::Args {
                top_k,
                chunks,
                order,
                columns,
                num_stages: stages.num,
                x_rows,
                n,
                k,
                gate,
                up_is_first: (operands.up.0 < operands.weight.0).into(),
                x,
                x_stride,
                x_choice_stride,
                bias,
                up_bias,
                out,
                out_stride,
                out_choice_stride,
                weight: maps(&self.wgmma_map(operands)),
            };
            let is_it = |i: dense::experts_wgmma::Instance| Some(i.e()) == type_of(E::DTYPE);
            let instance = dense::experts_wgmma::Instance::find(is_it).expect("both types");
            return Ok(Some(args.launch(instance, geometry)));
        }
        let stages = packed::stages(x_rows);
        let [scales_at, scale_stride] = self.scales()?;
        let weight_type = self.weight_type::<E>()?;
        let Some(geometry) = geometry(stages)? else { return Ok(None) };
        let args = packed::experts_packed_wgmma::Args {
            top_k,
            chunks,
            order,
            columns,
            num_stages: stages.num,
            x_rows,
            n,
            k,
            gate,
            x,
            x_stride,
            x_choice_stride,
            weight: operands.weight,
            up: operands.up,
            scales_at,
            scale_stride,
            bias,
            up_bias,
            out,
            out_stride,
            out_choice_stride,
        };
        let is_it = |i: packed::experts_packed_wgmma::Instance| i.w() == weight_type;
        let instance = packed::experts_packed_wgmma::Instance::find(is_it).expect("all weights");
        Ok(Some(args.launch(instance, geometry)))
    }

    /// The map of the rows of all experts; with a gate those of gate and of up, 16 of each in turn.
    fn wgmma_map<E>(&self, operands: &ExpertOperands<E>) -> TensorMapSpec {
        let (weight, up) = (operands.weight.0, operands.up.0);
        let rows = self.num_experts.saturating_mul(self.n);
        let matrices = Rows::<f16>::new(DevicePtr::new(weight), self.k);
        let boxes = [BLOCK_COLUMNS, BLOCK_K].map(|size| size as usize);
        let map = tensor_map(&matrices, [rows, self.k], boxes);
        if self.gate.is_none() {
            return map;
        }
        let row_bytes = map.strides_bytes[0];
        let group = GATE_ROWS;
        TensorMapSpec {
            address: weight.min(up),
            dims: vec![map.dims[0], group.into(), 2, rows as u64 / u64::from(group)],
            strides_bytes: vec![row_bytes, weight.abs_diff(up), u64::from(group) * row_bytes],
            box_dims: vec![BLOCK_K, group, 2, BLOCK_COLUMNS / 2 / group],
            ..map
        }
    }
}
