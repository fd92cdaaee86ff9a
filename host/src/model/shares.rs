//! What of a model a rank computes.

use super::{Config, Decoder, ModelError};
use crate::plan::{Dtype, FP8_BLOCK, Numerics, Rank, WeightSource};
use std::ops::Range;

/// What of a model a rank computes: the rest is another's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shares {
    pub rank: Rank,
    /// Query heads.
    pub heads: Range<usize>,
    /// The KV heads that they read: where there are fewer than ranks, several have the same.
    pub kv_heads: Range<usize>,
    /// Columns of the gated rows of layers without experts.
    pub columns: Range<usize>,
    /// Columns of the gated rows of an expert.
    pub expert_columns: Range<usize>,
    /// Columns of the gated rows of the shared expert.
    pub shared_columns: Range<usize>,
    /// Tokens whose logits it has.
    pub tokens: Range<usize>,
}

impl Shares {
    /// [`Shares::kv_heads`] of `layer`; all of one that has its own number of them.
    pub fn kv_heads_of(&self, config: &Config, layer: usize) -> Range<usize> {
        match config.layers[layer].heads {
            Some(heads) => 0..heads.num_kv_heads,
            None => self.kv_heads.clone(),
        }
    }

    /// The share of `rank`.
    ///
    /// # Errors
    /// [`ModelError::NotShared`] for what cannot be divided among so many.
    pub fn new(model: &Decoder, numerics: &Numerics, rank: Rank) -> Result<Self, ModelError> {
        let Config {
            num_heads,
            num_kv_heads,
            head_dim,
            intermediate_size,
            vocab_size,
            experts,
            ..
        } = model.config;
        let world = rank.world;
        if world > 1 && model.config.delta.is_some() {
            return Err(ModelError::RecurrentShared { world });
        }
        if world > 1 && !model.config.is_causal {
            return Err(ModelError::EncoderShared { world });
        }
        if world > 1 && model.config.has_kinds_of_layers() {
            return Err(ModelError::KindsShared { world });
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
        let kv_heads = if num_kv_heads.is_multiple_of(world) {
            rank.share(num_kv_heads, 1)
        } else if world.is_multiple_of(num_kv_heads) {
            let head = rank.index * num_kv_heads / world;
            head..head + 1
        } else {
            return Err(not_shared("KV heads", num_kv_heads, 1));
        };
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
        if world > 1 && !(heads.len() * head_dim).is_multiple_of(out_unit) {
            return Err(not_shared("columns of attention", num_heads * head_dim, out_unit));
        }
        let columns = |what, size: Option<usize>, units: &mut dyn Iterator<Item = usize>| match size
        {
            Some(size) => each_has_one(what, size, units.max().unwrap_or(1)),
            None => Ok(0..0),
        };
        let of_mlp = &mut names.gate_up.iter().chain([&names.down]).map(|stem| stored(stem));
        let dense = Some(intermediate_size).filter(|_| model.config.has_dense_layers());
        let matrices = names.experts.matrices();
        let of_experts = &mut matrices.iter().map(|name| stored_whole(name));
        let of_expert = experts.map(|experts| experts.intermediate_size);
        let [gate, up] = names.experts.shared_gate_up;
        let of_shared = &mut [gate, up, names.experts.shared_down].into_iter().map(stored);
        let shared = experts.and_then(|experts| experts.shared_intermediate_size);
        Ok(Shares {
            rank,
            heads,
            kv_heads,
            columns: columns("columns of the MLP", dense, of_mlp)?,
            expert_columns: columns("columns of an expert", of_expert, of_experts)?,
            shared_columns: columns("columns of the shared expert", shared, of_shared)?,
            tokens: each_has_one("tokens of the vocabulary", vocab_size, TOKENS_UNIT)?,
        })
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
