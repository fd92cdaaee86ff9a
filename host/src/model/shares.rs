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
    /// Columns of the gated rows of the MLP.
    pub columns: Range<usize>,
    /// Tokens whose logits it has.
    pub tokens: Range<usize>,
}

impl Shares {
    /// The share of `rank`.
    ///
    /// # Errors
    /// [`ModelError::NotShared`] for what cannot be divided among so many.
    pub fn new(model: &Decoder, numerics: &Numerics, rank: Rank) -> Result<Self, ModelError> {
        let Config { num_heads, num_kv_heads, head_dim, intermediate_size, vocab_size, .. } =
            model.config;
        let world = rank.world;
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
        let stored = |stem: &str| {
            let of_layer = |layer| {
                let name = format!("{}.weight", names.in_layer(layer, stem));
                let stored = model.checkpoint.stored(&name);
                unit(stored, numerics.matrix_storage(stored))
            };
            (0..model.config.num_layers()).map(of_layer).max().unwrap_or(1)
        };
        // Parts of rows have whole blocks, and parts of columns as well.
        let out_unit = stored(names.attention_out);
        if world > 1 && !(heads.len() * head_dim).is_multiple_of(out_unit) {
            return Err(not_shared("columns of attention", num_heads * head_dim, out_unit));
        }
        let stems: Vec<String> = match model.config.experts {
            None => {
                names.gate_up.iter().chain([&names.down]).map(|stem| stem.to_string()).collect()
            }
            Some(_) => {
                let [gate, up] = names.experts.gate_up;
                let of_first = |stem| names.experts.stems(stem, 1);
                [gate, up, names.experts.down].into_iter().flat_map(of_first).collect()
            }
        };
        let mlp_unit = stems.iter().map(|stem| stored(stem)).max().unwrap_or(1);
        Ok(Shares {
            rank,
            heads,
            kv_heads,
            columns: each_has_one("columns of the MLP", intermediate_size, mlp_unit)?,
            tokens: each_has_one("tokens of the vocabulary", vocab_size, TOKENS_UNIT)?,
        })
    }
}

/// The vocabulary is divided in whole tiles of rows.
const TOKENS_UNIT: usize = 16;

/// Rows or columns that stay together where a matrix is divided that is kept in `storage`.
fn unit(stored: Option<Dtype>, storage: Dtype) -> usize {
    // Blocks that become others are divided before.
    let expanded = stored.filter(|stored| stored.expanded() == Some(storage));
    match expanded.unwrap_or(storage) {
        Dtype::F8_E4M3_BLOCKS => FP8_BLOCK,
        // Quantised parts are kept in tiles of 16 rows.
        storage => storage.row_multiple().max(16),
    }
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
        ] {
            assert_eq!(unit(Some(stored), storage), wanted, "{stored}");
        }
    }
}
