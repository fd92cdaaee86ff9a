//! What of a model a rank computes.

use super::{Config, Decoder, DeltaNet, ModelError};
use crate::plan::{Dtype, FP8_BLOCK, Numerics, Rank, WeightSource};
use std::ops::Range;

/// What of a model a rank computes: the rest is another's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shares {
    pub rank: Rank,
    /// Query heads.
    pub heads: Range<usize>,
    /// Heads of values of layers of Gated DeltaNet, and the heads of keys that they read: several
    /// ranks can have the same of these.
    pub delta_heads: DeltaHeads,
    /// Columns of the gated rows of layers without experts that stay together.
    column_unit: usize,
    /// Columns of the gated rows of an expert.
    pub expert_columns: Range<usize>,
    /// Columns of the gated rows of the shared expert.
    pub shared_columns: Range<usize>,
    /// Tokens whose logits it has.
    pub tokens: Range<usize>,
}

/// What a rank has of layers of Gated DeltaNet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DeltaHeads {
    pub keys: Range<usize>,
    pub values: Range<usize>,
}

impl DeltaHeads {
    /// Neighbours among the heads of values, and their heads of keys; `None` where these are not
    /// all of some, or one of them.
    fn new(delta: &DeltaNet, rank: Rank) -> Option<Self> {
        let DeltaNet { num_k_heads, num_v_heads, is_tiled, .. } = *delta;
        if !num_v_heads.is_multiple_of(rank.world) {
            return None;
        }
        let values = rank.share(num_v_heads, 1);
        let (first, len, shared) = (values.start, values.len(), num_v_heads / num_k_heads);
        let keys = match is_tiled {
            true if len.is_multiple_of(num_k_heads) => 0..num_k_heads,
            true if num_k_heads.is_multiple_of(len) => {
                first % num_k_heads..first % num_k_heads + len
            }
            false if len.is_multiple_of(shared) => first / shared..values.end / shared,
            false if shared.is_multiple_of(len) => first / shared..first / shared + 1,
            _ => return None,
        };
        Some(DeltaHeads { keys, values })
    }
}

impl Shares {
    /// The KV heads that the query heads read in `layer`: where there are fewer than ranks, several
    /// have the same.
    pub fn kv_heads_of(&self, config: &Config, layer: usize) -> Range<usize> {
        let num_kv_heads = config.heads(layer).num_kv_heads;
        kv_heads(num_kv_heads, self.rank).unwrap_or(0..num_kv_heads)
    }

    /// Columns of the gated rows of `layer`, which has an MLP.
    pub fn columns_of(&self, config: &Config, layer: usize) -> Range<usize> {
        self.rank.share(config.intermediate_size_of(layer), self.column_unit)
    }

    /// The share of `rank`.
    ///
    /// # Errors
    /// [`ModelError::NotShared`] for what cannot be divided among so many.
    pub fn new(model: &Decoder, numerics: &Numerics, rank: Rank) -> Result<Self, ModelError> {
        let Config { num_heads, intermediate_size, vocab_size, experts, ref layers, .. } =
            model.config;
        let world = rank.world;
        if world > 1 && !model.config.is_causal {
            return Err(ModelError::EncoderShared { world });
        }
        let not_shared = |what, count, unit| ModelError::NotShared { what, count, unit, world };
        let each_has_one = |what, count: usize, unit| match count.div_ceil(unit) >= world {
            true => Ok(rank.share(count, unit)),
            false => Err(not_shared(what, count, unit)),
        };
        if !num_heads.is_multiple_of(world) {
            return Err(not_shared("query heads", num_heads, 1));
        }
        let heads = rank.share(num_heads, 1);
        let delta_heads = match &model.config.delta {
            Some(delta) => DeltaHeads::new(delta, rank)
                .ok_or_else(|| not_shared("heads of Gated DeltaNet", delta.num_v_heads, 1))?,
            None => DeltaHeads::default(),
        };
        for layer in 0..layers.len() {
            let num_kv_heads = model.config.heads(layer).num_kv_heads;
            if kv_heads(num_kv_heads, rank).is_none() {
                return Err(not_shared("KV heads", num_kv_heads, 1));
            }
        }
        let names = model.names;
        let stored_whole = |name: &str| {
            let of_layer = |layer| {
                let stored = model.checkpoint.stored(&names.in_layer(layer, name));
                unit(stored, numerics.matrix_storage(stored))
            };
            (0..model.config.num_layers()).map(of_layer).max().unwrap_or(1)
        };
        let stored = |stem: &str| stored_whole(&format!("{stem}.weight"));
        // Parts of rows have whole blocks, and parts of columns as well.
        let out_unit = stored(names.attention_out);
        for layer in 0..layers.len() {
            let head_dim = model.config.heads(layer).head_dim;
            if world > 1 && !(heads.len() * head_dim).is_multiple_of(out_unit) {
                return Err(not_shared("columns of attention", num_heads * head_dim, out_unit));
            }
        }
        if let Some(delta) = model.config.delta.filter(|_| world > 1) {
            let (unit, columns) = (stored(names.delta.out), delta.v_width());
            if !(columns / world).is_multiple_of(unit) {
                return Err(not_shared("columns of Gated DeltaNet", columns, unit));
            }
        }
        let columns = |what, size: Option<usize>, units: &mut dyn Iterator<Item = usize>| match size
        {
            Some(size) => each_has_one(what, size, units.max().unwrap_or(1)),
            None => Ok(0..0),
        };
        let of_mlp = names.gate_up.iter().chain([&names.down]).map(|stem| stored(stem));
        let column_unit = of_mlp.max().unwrap_or(1);
        if model.config.has_dense_layers() {
            let own = layers.iter().filter_map(|layer| layer.intermediate_size);
            for size in own.chain([intermediate_size]) {
                each_has_one("columns of the MLP", size, column_unit)?;
            }
        }
        let matrices = names.experts.matrices();
        let of_experts = &mut matrices.iter().map(|name| stored_whole(name));
        let of_expert = experts.map(|experts| experts.intermediate_size);
        let [gate, up] = names.experts.shared_gate_up;
        let of_shared = &mut [gate, up, names.experts.shared_down].into_iter().map(stored);
        let shared = experts.and_then(|experts| experts.shared_intermediate_size);
        Ok(Shares {
            rank,
            heads,
            delta_heads,
            column_unit,
            expert_columns: columns("columns of an expert", of_expert, of_experts)?,
            shared_columns: columns("columns of the shared expert", shared, of_shared)?,
            tokens: each_has_one("tokens of the vocabulary", vocab_size, TOKENS_UNIT)?,
        })
    }
}

/// The share of `rank` in the KV heads of a layer; `None` if they cannot be shared.
fn kv_heads(num_kv_heads: usize, Rank { index, world }: Rank) -> Option<Range<usize>> {
    if num_kv_heads.is_multiple_of(world) {
        Some(Rank { index, world }.share(num_kv_heads, 1))
    } else if world.is_multiple_of(num_kv_heads) {
        let head = index * num_kv_heads / world;
        Some(head..head + 1)
    } else {
        None
    }
}

/// The vocabulary is divided in whole tiles of rows.
const TOKENS_UNIT: usize = 16;

/// Rows or columns that stay together where a matrix is divided that is kept in `storage`.
fn unit(stored: Option<Dtype>, storage: Dtype) -> usize {
    // Blocks that become others, or single numbers, are divided before.
    let of = |dtype: Dtype| match dtype {
        Dtype::F8_E4M3_BLOCKS => FP8_BLOCK,
        // Quantised parts are kept in tiles of 16 rows.
        dtype => dtype.row_multiple().max(16),
    };
    let is_expanded = stored.is_some_and(|stored| stored.expanded() == Some(storage));
    let blocks = stored.filter(|stored| is_expanded || stored.block_elems() > 1);
    blocks.map_or(1, of).max(if is_expanded { 1 } else { of(storage) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each head of values finds its head of keys at its place among those of the rank.
    #[test]
    fn heads_of_values_come_with_their_heads_of_keys() {
        let mut num_shared = 0;
        for (num_k_heads, num_v_heads) in [(2, 4), (4, 12), (16, 32), (16, 48), (8, 8), (1, 8)] {
            for (world, is_tiled) in [1, 2, 4, 8].into_iter().flat_map(|w| [(w, false), (w, true)])
            {
                let (k_head_dim, v_head_dim, conv_kernel) = (128, 128, 4);
                let whole = DeltaNet {
                    num_k_heads,
                    num_v_heads,
                    k_head_dim,
                    v_head_dim,
                    conv_kernel,
                    is_tiled,
                };
                let key = |values: usize, keys: usize, head: usize| match is_tiled {
                    true => head % keys,
                    false => head * keys / values,
                };
                let mut next = 0;
                for rank in Rank::all(world) {
                    let Some(DeltaHeads { keys, values }) = DeltaHeads::new(&whole, rank) else {
                        continue;
                    };
                    assert_eq!(values.start, next);
                    for (own, head) in values.clone().enumerate() {
                        let own = key(values.len(), keys.len(), own);
                        let wanted = key(num_v_heads, num_k_heads, head);
                        assert_eq!(keys.start + own, wanted, "{whole:?}, {rank:?}");
                    }
                    next = values.end;
                    num_shared += usize::from(rank.index == 0);
                }
                assert!(next == 0 || next == num_v_heads);
            }
        }
        assert_eq!(num_shared, 39);
    }

    #[test]
    fn whole_blocks_are_divided() {
        for (stored, storage, wanted) in [
            (Dtype::Q8_0, Dtype::Q8_0, 32),
            (Dtype::IQ4_NL, Dtype::Q8_0, 32),
            (Dtype::IQ2_S, Dtype::Q8_0, 256),
            (Dtype::F16, Dtype::F16, 16),
            (Dtype::MXFP4, Dtype::F16, 32),
            (Dtype::Q4_K, Dtype::F32, 256),
        ] {
            assert_eq!(unit(Some(stored), storage), wanted, "{stored}");
        }
    }
}
