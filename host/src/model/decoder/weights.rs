//! What the weights of a plan are made of.

use super::Planner;
use crate::plan::{Dtype, PartTransform, Weight, WeightId, WeightLayout, WeightPart, WeightSlice};
use std::ops::Range;

/// Rows of a tensor that are stacked on others.
#[derive(Clone)]
pub(super) struct Stacked {
    pub rows: Range<usize>,
    /// Rows of the tensor.
    pub of: usize,
    pub transform: PartTransform,
}

impl Planner<'_> {
    /// `parts`, called `names`; or, where that is one name, slices of that tensor, and all of it as
    /// one part.
    pub(super) fn stacked(
        &self,
        layer: usize,
        names: &[&str],
        parts: &[Stacked],
    ) -> Vec<WeightPart> {
        let in_layer = |name: &str| self.names.in_layer(layer, name);
        if let [fused] = names {
            let of = parts.iter().map(|part| part.of).sum();
            if self.shares.rank.is_alone() {
                return vec![part(in_layer(fused), of)];
            }
            let mut before = 0;
            let slice = |stacked: &Stacked| {
                let first = before + stacked.rows.start;
                before += stacked.of;
                let slice = WeightSlice::Rows { first, of };
                WeightPart { slice, ..part(in_layer(fused), stacked.rows.len()) }
            };
            return parts.iter().map(slice).collect();
        }
        let named = names.iter().zip(parts);
        named
            .map(|(name, stacked)| WeightPart {
                transform: stacked.transform,
                ..rows_of(part(in_layer(name), stacked.of), &stacked.rows)
            })
            .collect()
    }

    /// The weight of a norm.
    pub(super) fn norm_part(&self, name: &str, width: usize) -> WeightPart {
        let whole = part(name, width);
        match self.names.norm_offset {
            0.0 => whole,
            offset => WeightPart { transform: PartTransform::Add(offset), ..whole },
        }
    }

    /// The matrix of a linear layer; each part is kept as the numerics say.
    pub(super) fn matrix(&mut self, label: &str, parts: &[WeightPart], cols: usize) -> WeightId {
        let numerics = self.numerics;
        let mut weight = self.stored(label, parts, cols, |stored| numerics.matrix_storage(stored));
        if weight.parts.iter().any(|part| part.storage.is_fp8()) && !weight.fits_fp8() {
            weight.parts.iter_mut().for_each(|part| part.storage = self.precision.operand());
        }
        self.builder.weight(weight)
    }

    /// The embedding table, or the output projection.
    pub(super) fn table(&mut self, label: &str, part: WeightPart, cols: usize) -> WeightId {
        let numerics = self.numerics;
        let weight = self.stored(label, &[part], cols, |stored| numerics.table_storage(stored));
        self.builder.weight(weight)
    }

    /// Each part is kept as `storage` says of how the checkpoint has it.
    pub(super) fn stored(
        &self,
        label: &str,
        parts: &[WeightPart],
        cols: usize,
        storage: impl Fn(Option<Dtype>) -> Dtype,
    ) -> Weight {
        self.stored_whole(label, with_suffix(parts, "weight"), cols, storage)
    }

    /// The same of parts with whole names.
    pub(super) fn stored_whole(
        &self,
        label: &str,
        mut parts: Vec<WeightPart>,
        cols: usize,
        storage: impl Fn(Option<Dtype>) -> Dtype,
    ) -> Weight {
        let name = label.into();
        for part in &mut parts {
            part.storage = storage(self.checkpoint.stored(&part.source));
        }
        let (rows, layout) = (num_rows(&parts), self.numerics.matrix_layout());
        Weight { name, rows, cols, layout, parts }
    }

    /// A norm's weight or a bias: a thousandth of a model, and kept in f32.
    pub(super) fn vector(&mut self, label: &str, parts: &[WeightPart], suffix: &str) -> WeightId {
        self.whole_vector(label, &with_suffix(parts, suffix))
    }

    /// The same of parts with whole names.
    pub(super) fn whole_vector(&mut self, label: &str, parts: &[WeightPart]) -> WeightId {
        let (name, parts) = (label.into(), parts.to_vec());
        let (cols, layout) = (num_rows(&parts), WeightLayout::Rows);
        self.builder.weight(Weight { name, rows: 1, cols, layout, parts })
    }
}

/// The whole of one tensor, `name` less its suffix, in f32.
pub(super) fn part(name: impl Into<String>, rows: usize) -> WeightPart {
    WeightPart::new(name, rows, Dtype::F32)
}

/// `whole`, divided by `divisor`.
pub(super) fn scaled(whole: WeightPart, divisor: f64) -> WeightPart {
    match divisor {
        1.0 => whole,
        _ => WeightPart { transform: PartTransform::Scale((1.0 / divisor) as f32), ..whole },
    }
}

/// These rows of `whole`.
pub(super) fn rows_of(whole: WeightPart, rows: &Range<usize>) -> WeightPart {
    let of = whole.rows;
    if *rows == (0..of) {
        return whole;
    }
    WeightPart { rows: rows.len(), slice: WeightSlice::Rows { first: rows.start, of }, ..whole }
}

/// `width` columns of `whole`, from column `first` on, of `of`.
pub(super) fn cols_of(whole: WeightPart, (first, of): (usize, usize), width: usize) -> WeightPart {
    if width == of {
        return whole;
    }
    WeightPart { slice: WeightSlice::Cols { first, of }, ..whole }
}

/// Parts whose names end in `.suffix`.
pub(super) fn with_suffix(parts: &[WeightPart], suffix: &str) -> Vec<WeightPart> {
    let named =
        |part: &WeightPart| WeightPart { source: format!("{}.{suffix}", part.source), ..*part };
    parts.iter().map(named).collect()
}

pub(super) fn num_rows(parts: &[WeightPart]) -> usize {
    parts.iter().map(|part| part.rows).sum()
}
