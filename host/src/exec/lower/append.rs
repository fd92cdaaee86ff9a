//! What goes to the KV cache.

use cuda_std::launch::DevicePtr;
use kernels::attention::Append;
use kernels::element::NarrowedFrom;
use kernels::kv_cache::KvAppend;
use kernels::kv_cache::append_quantised::{KvAppendQuantised, Rotated};
use kernels::qk_norm::QkNorm;
use kernels::rope_append::{RopeAppend, RopeAppendOperands};

use super::element::{DeviceElement, Launched};
use super::{Lowering, check_dtype};
use crate::exec::ExecError;
use crate::plan::{self, Dtype, KvHeads, Plan, View};

/// The launcher of `op` over a cache of dense pools.
fn launcher(plan: &Plan, op: &plan::RopeAppend) -> RopeAppend {
    let &plan::RopeAppend { q, k, table, head_dim, .. } = op;
    RopeAppend {
        max_tokens: plan.bounds.max_rows(plan.tensor(q.tensor).rows),
        num_heads: q.width / head_dim,
        num_kv_heads: k.width / head_dim,
        head_dim,
        rotary_dim: plan.constant(table).cols,
    }
}

/// Whether `op` is one launch, with its norm.
pub(super) fn fuses(plan: &Plan, op: &plan::RopeAppend) -> bool {
    op.norm.is_none() || !plan.kv.is_plain() || launcher(plan, op).normalises()
}

impl Lowering<'_> {
    /// [`Op::KvAppend`](plan::Op::KvAppend) to a cache of `C`.
    pub(super) fn kv_append<C: DeviceElement>(
        &self,
        layer: usize,
        k: View,
        v: View,
    ) -> Result<Launched, ExecError> {
        if !self.plan.kv.is_plain() {
            return match self.plan.dtype(k) {
                Dtype::F32 => self.append_quantised::<f32>(layer, k, v, None),
                _ => self.append_quantised::<C>(layer, k, v, None),
            };
        }
        let [k_pool, v_pool] = self.pools::<C>(layer)?;
        let KvHeads { num_kv_heads, head_dim } = self.plan.kv.layers[layer];
        let append = KvAppend { max_tokens: self.max_rows(k), num_kv_heads, head_dim };
        let (num_tokens, slots) = (self.num_rows(k), self.slots(layer));
        Ok(if self.plan.dtype(k) == Dtype::F32 {
            let (k, v) = (self.view(k)?, self.view(v)?);
            append.launch_from_f32(num_tokens, slots, k, v, k_pool, v_pool)
        } else {
            let (k, v) = (self.view(k)?, self.view(v)?);
            append.launch(num_tokens, slots, k, v, k_pool, v_pool)
        })
    }

    /// [`Op::RopeAppend`](plan::Op::RopeAppend) of elements `T` to a cache of `C`.
    pub(super) fn rope_append<T: DeviceElement, C: DeviceElement + NarrowedFrom<T>>(
        &self,
        op: &plan::RopeAppend,
    ) -> Result<Launched, ExecError> {
        let &plan::RopeAppend { layer, q, k, v, table, head_dim, .. } = op;
        if !self.plan.kv.is_plain() {
            let rotated = Rotated {
                positions: self.input(self.step.positions),
                table: DevicePtr::new(self.addresses.constants[table.0]),
                rotary_dim: self.plan.constant(table).cols,
                norm: self.qk_norm(op)?,
                num_heads: q.width / head_dim,
                q: self.view::<T>(q)?,
            };
            return self.append_quantised(layer, k, v, Some(&rotated));
        }
        let [k_pool, v_pool] = self.pools::<C>(layer)?;
        let operands = RopeAppendOperands::<T, C> {
            positions: self.input(self.step.positions),
            slot_mapping: self.slots(layer),
            table: DevicePtr::new(self.addresses.constants[table.0]),
            norm: self.qk_norm(op)?,
            q: self.view(q)?,
            k: self.view(k)?,
            v: self.view(v)?,
            k_pool,
            v_pool,
        };
        Ok(launcher(self.plan, op).launch(self.num_rows(q), &operands))
    }

    /// The norm of Q and K before the rotation.
    fn qk_norm(&self, op: &plan::RopeAppend) -> Result<QkNorm, ExecError> {
        op.norm.map_or(Ok(QkNorm::NONE), |plan::QkNorm { q, k, eps }| {
            Ok(QkNorm { q: self.weight(q)?, k: self.weight(k)?, eps })
        })
    }

    /// The append of K and V of `T` to pools that are not operands of attention as they are.
    fn append_quantised<T: DeviceElement>(
        &self,
        layer: usize,
        k: View,
        v: View,
        rotated: Option<&Rotated<T>>,
    ) -> Result<Launched, ExecError> {
        let KvHeads { num_kv_heads, head_dim } = self.plan.kv.layers[layer];
        let append = KvAppendQuantised {
            max_tokens: self.max_rows(k),
            num_kv_heads,
            head_dim,
            formats: self.plan.kv.types(),
        };
        let pools = self.untyped_pools(layer);
        let slots = self.slots(layer);
        let rows = [self.view(k)?, self.view(v)?];
        Ok(append.launch(self.num_rows(k), slots, rotated, rows, pools))
    }

    /// The part of [`Op::AppendAttention`](plan::Op::AppendAttention) that goes to a cache of `C`.
    pub(super) fn append<C: DeviceElement>(
        &self,
        op: &plan::RopeAppend,
    ) -> Result<Append<C>, ExecError> {
        Ok(Append {
            positions: self.input(self.step.positions),
            slot_mapping: self.slots(op.layer),
            table: DevicePtr::new(self.addresses.constants[op.table.0]),
            rotary_dim: self.plan.constant(op.table).cols,
            norm: self.qk_norm(op)?,
            k: self.view(op.k)?,
            v: self.view(op.v)?,
        })
    }

    /// The slots of the cache that `layer` appends to.
    fn slots(&self, layer: usize) -> DevicePtr<u32> {
        self.input(match self.plan.kv.has_window(layer) {
            true => self.step.window_slot_mapping,
            false => self.step.slot_mapping,
        })
    }

    /// The K and the V pool of a layer, of elements `C`.
    pub(super) fn pools<C: DeviceElement>(
        &self,
        layer: usize,
    ) -> Result<[DevicePtr<C>; 2], ExecError> {
        check_dtype::<C>("the KV cache", self.plan.kv.dtype)?;
        Ok(self.untyped_pools(layer).map(|pool| DevicePtr::new(pool.0)))
    }

    /// The K and the V pool of a layer.
    pub(super) fn untyped_pools(&self, layer: usize) -> [DevicePtr<()>; 2] {
        let pool = self.addresses.kv_pools[layer];
        [pool.k, pool.v].map(DevicePtr::new)
    }
}
