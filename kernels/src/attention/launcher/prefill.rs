//! The launch of prefill.

use super::super::prefill::{self, attention_prefill};
use super::super::prefill_cluster;
use super::super::sm90::{self, TileConfig};
use super::super::tile::{AttentionElement, NUM_THREADS};
use super::super::work_list::{KeySplitting, most_slots};
use super::{Attention, AttentionOperands, AttentionWorkspace, SeqInputs};
use crate::element::{Dtype, type_of};
use crate::gemm::{Gpu, Target};
use crate::operand::untyped;
use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError};
use cuda_std::tensor_map::{EncodedTensorMap, TensorMapSpec};
use half::{bf16, f16};

impl Attention {
    /// Queries of an item of prefill, at most.
    pub fn block_m(&self, gpu: Gpu, dtype: Dtype) -> usize {
        if self.splits_prefill(gpu, dtype) {
            return prefill_cluster::BLOCK_M as usize;
        }
        if let Some(tile) = self.sm90_tile(gpu, dtype) {
            return tile.block_m;
        }
        let instance = self.prefill_instance(dtype);
        let (rows, panels) =
            instance.map_or((1, 1), |instance| (instance.rows(), instance.panels()));
        let block_m = match dtype {
            Dtype::F16 => prefill::block_m::<f16>(rows, panels),
            Dtype::BF16 => prefill::block_m::<bf16>(rows, panels),
            _ => prefill::block_m::<f32>(rows, panels),
        };
        block_m as usize
    }

    /// The tile of the kernel for `sm_90a`, if that computes prefill.
    fn sm90_tile(&self, gpu: Gpu, dtype: Dtype) -> Option<&'static TileConfig> {
        let tile = || TileConfig::fastest(self.head_dim, self.max_tokens, self.num_heads, gpu);
        if gpu.target == Target::Sm90a && dtype.is_half() { tile() } else { None }
    }

    /// How the keys of tiles are split on `gpu`; `None` if they are not.
    pub(in super::super) fn key_splitting(&self, gpu: Gpu, dtype: Dtype) -> Option<KeySplitting> {
        let tile = self.sm90_tile(gpu, dtype).filter(|_| !self.splits_prefill(gpu, dtype))?;
        let is_split = tile.splits_keys && self.num_slots() > 0;
        is_split.then_some(KeySplitting { block_n: tile.block_n, num_sms: gpu.num_sms })
    }

    /// Most partial results of prefill; none in a batch-invariant plan.
    pub(in super::super) fn num_slots(&self) -> usize {
        let has_prompts = self.max_q_len.min(self.max_tokens) > self.max_decode_q_len;
        if has_prompts && !self.batch_invariant { most_slots(self.max_kv_len) } else { 0 }
    }

    /// f32 elements that [`Attention::prefill`] needs for partial results, on any GPU.
    pub fn num_prefill_partials(&self, dtype: Dtype) -> usize {
        self.num_slots() * self.split_tile_size(dtype, TileConfig::partials_per_slot)
    }

    /// Counters that [`Attention::prefill`] needs, on any GPU.
    pub fn num_prefill_counters(&self, dtype: Dtype) -> usize {
        let slot_counters =
            self.num_slots() * self.split_tile_size(dtype, TileConfig::counters_per_slot);
        sm90::NUM_COUNTERS + slot_counters
    }

    /// A `size` of the tile of the kernel for `sm_90a` that splits keys; 0 without one.
    fn split_tile_size(&self, dtype: Dtype, size: fn(&TileConfig) -> usize) -> usize {
        let mut tiles = TileConfig::for_head_dim(self.head_dim).filter(|tile| tile.splits_keys);
        tiles.next().filter(|_| dtype.is_half()).map_or(0, size)
    }

    /// The narrowest instance that takes the heads.
    fn prefill_instance(&self, dtype: Dtype) -> Option<attention_prefill::Instance> {
        instances(dtype).find(|instance| self.fits(instance.panels()))
    }

    /// The launch of prefill, for the prompts of a step, or `None` if no step has one; `maps`
    /// encodes tensor maps.
    ///
    /// # Errors
    /// [`LaunchError`] for head counts, a `head_dim` or a window that the kernels do not take, a
    /// block table that is too narrow, and for sizes beyond a grid or a `u32`.
    pub fn prefill<E: AttentionElement>(
        &self,
        gpu: Gpu,
        seqs: &SeqInputs,
        operands: &AttentionOperands<E>,
        workspace: &AttentionWorkspace,
        maps: &mut dyn FnMut(&TensorMapSpec) -> EncodedTensorMap,
    ) -> Result<Option<Launch>, LaunchError> {
        if self.splits_prefill(gpu, E::DTYPE) {
            return self.prefill_cluster(gpu, seqs, operands);
        }
        let params = self.params(operands)?;
        let max_items = self.max_prefill_items(gpu, E::DTYPE);
        if let Some(tile) = self.sm90_tile(gpu, E::DTYPE) {
            let launch_params = sm90::Params {
                dtype: E::DTYPE,
                num_items: seqs.num_prefill_items,
                items: seqs.prefill_items,
                max_items,
                counters: workspace.counters,
                block_table: seqs.block_table,
                max_pages_per_seq: params.max_pages_per_seq,
                max_tokens: self.max_tokens,
                num_pages: self.num_pages,
                num_heads: params.num_heads,
                num_kv_heads: params.num_kv_heads,
                head_dim: params.head_dim,
                softmax_scale: params.softmax_scale,
                window: params.window,
                q: operands.q.untyped(),
                pools: [operands.k_pool, operands.v_pool].map(untyped),
                out: operands.out.untyped(),
                sinks: operands.sinks,
                softcap: params.softcap,
                lse: DevicePtr::null(),
                partials: workspace.partials,
            };
            return tile.launch(gpu.num_sms, &launch_params, maps);
        }
        // Compiled for Hopper, these have no cap in 16 bits: all such heads are its own kernel's.
        if gpu.target == Target::Sm90a && E::DTYPE.is_half() && self.softcap.is_some() {
            return Err(self.head_dim_error());
        }
        let instance = self.prefill_instance(E::DTYPE).ok_or_else(|| self.head_dim_error())?;
        let shared_bytes = prefill::shared_bytes::<E>(instance.rows(), instance.panels());
        let geometry = Geometry::new([max_items, 1, 1], NUM_THREADS as usize, shared_bytes)?;
        Ok(geometry.map(|geometry| {
            attention_prefill::Args {
                num_items: seqs.num_prefill_items,
                items: seqs.prefill_items,
                block_table: seqs.block_table,
                max_pages_per_seq: params.max_pages_per_seq,
                q: operands.q.untyped_ptr(),
                q_stride: params.q_stride,
                k_pool: untyped(operands.k_pool),
                v_pool: untyped(operands.v_pool),
                num_heads: params.num_heads,
                num_kv_heads: params.num_kv_heads,
                head_dim: params.head_dim,
                aligned: params.aligned,
                softmax_scale: params.softmax_scale,
                window: params.window,
                out: operands.out.untyped_ptr(),
                out_stride: params.out_stride,
                sinks: operands.sinks,
                softcap: params.softcap,
            }
            .launch(instance, geometry)
        }))
    }
}

/// Instances for `dtype`, the narrowest heads first.
fn instances(dtype: Dtype) -> impl Iterator<Item = attention_prefill::Instance> {
    let all = attention_prefill::Instance::ALL.iter().copied();
    all.filter(move |instance| Some(instance.e()) == type_of(dtype))
}

/// As [`dynamic_shared_bytes`](crate::dynamic_shared_bytes), of prefill.
pub(super) fn dynamic_shared_bytes(symbol: &str) -> Option<usize> {
    for (dtype, shared_bytes) in [
        (Dtype::F32, prefill::shared_bytes::<f32> as fn(usize, usize) -> usize),
        (Dtype::F16, prefill::shared_bytes::<f16>),
        (Dtype::BF16, prefill::shared_bytes::<bf16>),
    ] {
        let mut instances = instances(dtype);
        if let Some(instance) = instances.find(|instance| instance.symbol() == symbol) {
            return Some(shared_bytes(instance.rows(), instance.panels()));
        }
    }
    sm90::dynamic_shared_bytes(symbol)
        .or_else(|| sm90::fp8::dynamic_shared_bytes(symbol))
        .or_else(|| prefill_cluster::dynamic_shared_bytes(symbol))
}
