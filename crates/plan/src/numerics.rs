//! How a model computes: said once, when a plan is made.

use super::{Accumulate, Dtype, Fusion, KvStorage, PlanError, Precision, WeightLayout};

/// How a model computes. A plan is built for it and keeps it
/// ([`Plan::numerics`](super::Plan::numerics)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Numerics {
    /// Element types of weights and activations, and of the KV cache where `kv` leaves it open.
    pub precision: Precision,
    /// In what type matrices are kept: that of the operands, or the checkpoint's own.
    pub weights: WeightStorage,
    /// In what type linear layers with weights in E4M3 read their rows.
    pub activations: ActivationStorage,
    /// Type of the accumulators of matrix products on a GPU.
    pub accumulate: Accumulate,
    /// Whether a row of every activation has the same bits whatever other rows share the step, and
    /// whatever the plan's bounds: all decode plans agree, and so do all prompt plans.
    pub batch_invariant: bool,
    /// Which neighbouring operations an executor may fuse.
    pub fusion: Fusion,
    /// How attention is computed.
    pub attention: AttentionForm,
    /// How the KV cache is stored.
    pub kv: KvStorage,
}

impl Numerics {
    /// The type that the matrix of a linear layer is kept in which the checkpoint stores as
    /// `stored`, if that is known.
    pub fn matrix_storage(&self, stored: Option<Dtype>) -> Dtype {
        let operand = self.precision.operand();
        let is_smaller =
            |stored: &Dtype| stored.block_bytes() < operand.block_bytes() * stored.block_elems();
        let is_fp8 = |stored: &Dtype| stored.is_fp8();
        let has_kernel = |stored: &Dtype| {
            operand == Dtype::F16 && (stored.tile_format().is_some() || stored.is_fp8())
        };
        match self.weights {
            WeightStorage::Dense => operand,
            WeightStorage::AsStored => stored.filter(is_smaller).unwrap_or(operand),
            WeightStorage::Tiles => {
                let kept = stored.map(|stored| stored.expanded().unwrap_or(stored));
                kept.filter(has_kernel).unwrap_or(operand)
            }
            WeightStorage::Fp8 => stored.filter(is_fp8).unwrap_or(Dtype::F8_E4M3),
        }
    }

    /// The same of the embedding table, and of the output projection: never E4M3.
    pub fn table_storage(&self, stored: Option<Dtype>) -> Dtype {
        let storage = self.matrix_storage(stored);
        if storage.is_fp8() { self.precision.operand() } else { storage }
    }

    /// In which order the elements of a matrix are kept.
    pub fn matrix_layout(&self) -> WeightLayout {
        match self.weights {
            WeightStorage::Dense | WeightStorage::AsStored | WeightStorage::Fp8 => {
                WeightLayout::Rows
            }
            WeightStorage::Tiles => WeightLayout::Tiles,
        }
    }

    /// Whether its parts fit each other.
    ///
    /// # Errors
    /// [`PlanError::Accumulate`] for accumulators in f16 of other operands than f16.
    pub fn check(&self) -> Result<(), PlanError> {
        let operand = self.precision.operand();
        match self.accumulate {
            Accumulate::F16 if operand != Dtype::F16 => Err(PlanError::Accumulate { operand }),
            _ => Ok(()),
        }
    }
}

impl From<Precision> for Numerics {
    /// The default numerics in `precision`.
    fn from(precision: Precision) -> Self {
        Numerics { precision, ..Numerics::default() }
    }
}

/// In what type the matrices of linear layers and the embedding table are kept. What they are
/// computed in is [`Precision::operand`] in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WeightStorage {
    /// In the operand's type: converted when they are loaded.
    #[default]
    Dense,
    /// As the checkpoint stores them, where that takes less memory than the operand's type: blocks
    /// stay blocks, and are dequantised where an operation reads them.
    AsStored,
    /// For a GPU: with operands in f16, the formats of blocks that its kernels multiply stay blocks,
    /// in [tiles](WeightLayout::Tiles), others become [larger ones](Dtype::expanded), and E4M3
    /// stays as it is. All else is dense.
    Tiles,
    /// The matrices of linear layers in E4M3: quantised when they are loaded, with a scale a row,
    /// where the checkpoint does not have them so. Embedding and output projection are dense.
    Fp8,
}

/// In what type linear layers with weights in E4M3 read their rows: see
/// [`Plan::rounds_rows`](super::Plan::rounds_rows).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ActivationStorage {
    /// In the operand's type: weights are converted to it.
    #[default]
    Operand,
    /// In E4M3 with a scale a row, `max|x| / 448`, for GPUs whose tensor cores multiply E4M3.
    Fp8,
}

/// How attention is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AttentionForm {
    /// In one operation that stores no score: an online softmax over tiles of keys
    /// (arXiv:2205.14135).
    #[default]
    Flash,
    /// In three operations, which store the scores, then their softmax, as activations: for each
    /// token and head so many as the context has positions.
    Materialized,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stored_smaller_is_kept() {
        use Dtype::{BF16, F16, F32};
        const Q8_0: Dtype = Dtype::Q8_0;
        const Q4_1: Dtype = Dtype::Q4_1;
        const Q2_K: Dtype = Dtype::Q2_K;
        let kept = |weights, precision| {
            let numerics = Numerics { weights, ..Numerics::from(precision) };
            [F32, F16, BF16, Q8_0, Q4_1, Q2_K].map(|stored| numerics.matrix_storage(Some(stored)))
        };
        let as_stored = |precision| kept(WeightStorage::AsStored, precision);
        assert_eq!(as_stored(Precision::F32), [F32, F16, BF16, Q8_0, Q4_1, Q2_K]);
        assert_eq!(as_stored(Precision::F16), [F16, F16, F16, Q8_0, Q4_1, Q2_K]);
        assert_eq!(kept(WeightStorage::Dense, Precision::BF16), [BF16; 6]);
        let tiles = |precision| kept(WeightStorage::Tiles, precision);
        assert_eq!(tiles(Precision::F16), [F16, F16, F16, Q8_0, Q4_1, Q2_K]);
        assert_eq!(tiles(Precision::BF16), [BF16; 6], "kernels multiply tiles with f16");
        for (stored, on_a_gpu) in [
            (Dtype::IQ4_NL, Q8_0),
            (Dtype::IQ2_S, Q8_0),
            (Dtype::IQ3_S, Dtype::Q6_K),
            (Dtype::IQ4_XS, Dtype::IQ4_XS),
        ] {
            for (weights, kept) in
                [(WeightStorage::AsStored, stored), (WeightStorage::Tiles, on_a_gpu)]
            {
                let numerics = Numerics { weights, ..Numerics::from(Precision::F16) };
                assert_eq!(numerics.matrix_storage(Some(stored)), kept);
            }
        }
        let numerics = Numerics { weights: WeightStorage::AsStored, ..Numerics::default() };
        assert_eq!(numerics.matrix_storage(None), F32, "nothing is known");
    }

    #[test]
    fn e4m3_is_kept_and_made_for_linear_layers_alone() {
        use Dtype::{BF16, F8_E4M3, F8_E4M3_BLOCKS, F16, F32};
        const Q4_K: Dtype = Dtype::Q4_K;
        let stored = [F8_E4M3, F8_E4M3_BLOCKS, F16, Q4_K];
        let kept = |weights, precision| {
            let numerics = Numerics { weights, ..Numerics::from(precision) };
            let matrices = stored.map(|stored| numerics.matrix_storage(Some(stored)));
            (matrices, stored.map(|stored| numerics.table_storage(Some(stored))))
        };
        let blocks = F8_E4M3_BLOCKS;
        let as_stored = ([F8_E4M3, blocks, F16, Q4_K], [F16, F16, F16, Q4_K]);
        assert_eq!(kept(WeightStorage::AsStored, Precision::F16), as_stored);
        assert_eq!(kept(WeightStorage::Tiles, Precision::F16), as_stored);
        assert_eq!(kept(WeightStorage::Tiles, Precision::BF16), ([BF16; 4], [BF16; 4]));
        let fp8 = [F8_E4M3, blocks, F8_E4M3, F8_E4M3];
        assert_eq!(kept(WeightStorage::Fp8, Precision::F16), (fp8, [F16; 4]));
        assert_eq!(kept(WeightStorage::Fp8, Precision::F32), (fp8, [F32; 4]));
    }
}
