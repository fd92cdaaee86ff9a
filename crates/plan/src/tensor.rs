//! What operations read and write: activations, weights, constants.

use super::{Dtype, FP8_BLOCK};
use gpu_types::BlockFormat;

/// Scales of a weight in E4M3 start at a multiple of this many bytes.
const SCALES_ALIGN_BYTES: usize = 16;

/// Index of an activation in [`Plan::tensors`](super::Plan::tensors).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TensorId(pub usize);

/// Index of a weight in [`Plan::weights`](super::Plan::weights).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WeightId(pub usize);

/// Index of a constant in [`Plan::constants`](super::Plan::constants).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConstantId(pub usize);

/// Which count of the step inputs gives the rows of an activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rows {
    /// One row a token: `num_tokens`.
    Tokens,
    /// One row for each position whose logits are wanted: `num_logit_rows`.
    Logits,
}

/// An activation: `[rows, width]`, row-major.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// What it holds, for profiles and errors.
    pub name: String,
    /// The layer of the model that it is of; `None` for what all layers share.
    pub layer: Option<usize>,
    /// What counts its rows.
    pub rows: Rows,
    /// Elements of a row.
    pub width: usize,
    /// Element type.
    pub dtype: Dtype,
}

/// Columns `start .. start + width` of an activation; its row stride is the activation's width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct View {
    /// The activation.
    pub tensor: TensorId,
    /// First column.
    pub start: usize,
    /// Number of columns.
    pub width: usize,
}

impl View {
    /// Columns `start .. start + width` of this view.
    ///
    /// # Panics
    /// If they are not all inside the view: a plan is built by code, never from a file's numbers
    /// unchecked.
    pub fn columns(self, start: usize, width: usize) -> View {
        assert!(start + width <= self.width, "columns {start}+{width} of a view of {}", self.width);
        View { tensor: self.tensor, start: self.start + start, width }
    }

    /// Whether any column is in both.
    pub fn overlaps(self, other: View) -> bool {
        self.tensor == other.tensor
            && self.start < other.start + other.width
            && other.start < self.start + self.width
    }
}

/// A weight as operations read it: `[rows, cols]` row-major (`cols` alone for a vector:
/// `rows == 1`), packed from parts of the checkpoint stacked along the rows.
#[derive(Clone, Debug)]
pub struct Weight {
    /// Name in the plan, such as `layers.3.qkv`.
    pub name: String,
    /// Rows (outputs of a linear layer; vocabulary of an embedding; 1 for a vector).
    pub rows: usize,
    /// Columns (inputs of a linear layer; length of a vector).
    pub cols: usize,
    /// In which order the executor keeps its elements.
    pub layout: WeightLayout,
    /// The checkpoint's tensors that it is made of, from the first row on.
    pub parts: Vec<WeightPart>,
}

impl Weight {
    /// One tensor of the checkpoint as a whole, of the same name, kept as `storage`.
    pub fn whole(name: impl Into<String>, rows: usize, cols: usize, storage: Dtype) -> Self {
        let name = name.into();
        let part_rows = if rows == 1 { cols } else { rows };
        let parts = vec![WeightPart::new(name.clone(), part_rows, storage)];
        Weight { name, rows, cols, layout: WeightLayout::Rows, parts }
    }

    /// Bytes in the executor's memory: those of its parts, one after another, then the scales of
    /// E4M3.
    pub fn bytes(&self) -> usize {
        match self.num_scales() {
            0 => self.elem_bytes(),
            num_scales => self.scales_at() + num_scales * size_of::<f32>(),
        }
    }

    /// Bytes of its parts.
    fn elem_bytes(&self) -> usize {
        self.parts.iter().map(|part| self.part_bytes(part)).sum()
    }

    /// Scales beside the elements: see [`Dtype`].
    pub fn num_scales(&self) -> usize {
        self.storage().map_or(0, |storage| storage.num_scales(self.rows, self.cols))
    }

    /// Offset of the scales in bytes.
    pub fn scales_at(&self) -> usize {
        self.elem_bytes().next_multiple_of(SCALES_ALIGN_BYTES)
    }

    /// Whether it can be in E4M3 as a whole: all parts are in the same form of it, rows are
    /// aligned, and the blocks of one part are no other's, nor another rank's.
    pub fn fits_fp8(&self) -> bool {
        let Some(storage) = self.storage().filter(|storage| storage.is_fp8()) else { return false };
        let but_last = &self.parts[..self.parts.len() - 1];
        let are_whole = |part: &WeightPart| part.rows.is_multiple_of(FP8_BLOCK);
        let begins_block = |part: &WeightPart| match part.slice {
            WeightSlice::Whole => true,
            WeightSlice::Rows { first, .. } | WeightSlice::Cols { first, .. } => {
                first.is_multiple_of(FP8_BLOCK)
            }
        };
        self.cols.is_multiple_of(storage.row_multiple())
            && (storage == Dtype::F8_E4M3
                || but_last.iter().all(are_whole) && self.parts.iter().all(begins_block))
    }

    /// Bytes of `part`, which is one of its parts.
    pub fn part_bytes(&self, part: &WeightPart) -> usize {
        let bytes = match self.tile_format(part) {
            Some(format) => format.packed_bytes(part.rows, self.cols),
            None => part.storage.bytes(part.rows * self.part_cols()),
        };
        bytes.expect("storage blocks divide a row: checked when the plan is made")
    }

    /// How the tiles of `part`, which is one of its parts, are packed; `None` where it is kept row
    /// by row.
    pub fn tile_format(&self, part: &WeightPart) -> Option<BlockFormat> {
        match self.layout {
            WeightLayout::Rows => None,
            WeightLayout::Tiles => part.storage.tile_format(),
        }
    }

    /// Whether a part is kept in tiles.
    pub fn has_tiles(&self) -> bool {
        self.parts.iter().any(|part| self.tile_format(part).is_some())
    }

    /// Elements of a row of its parts: 1 where it is a vector, whose parts are counted in elements.
    pub fn part_cols(&self) -> usize {
        if self.is_vector() { 1 } else { self.cols }
    }

    /// Whether it is a vector: the rows of its parts are then elements.
    pub fn is_vector(&self) -> bool {
        self.rows == 1 && self.parts.iter().map(|part| part.rows).sum::<usize>() == self.cols
    }

    /// The type that all of it is kept in; `None` where its parts differ.
    pub fn storage(&self) -> Option<Dtype> {
        let (first, rest) = self.parts.split_first()?;
        rest.iter().all(|part| part.storage == first.storage).then_some(first.storage)
    }
}

/// In which order an executor keeps the elements of a [`Weight`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WeightLayout {
    /// Row by row, without padding: of a quantised part the blocks as the file has them.
    #[default]
    Rows,
    /// Quantised parts in tiles of 16 rows, in the order in which GPU kernels multiply them
    /// (`kernels::gemm::quantised::pack`); others row by row.
    Tiles,
}

/// One tensor of the checkpoint inside a [`Weight`].
#[derive(Clone, Debug)]
pub struct WeightPart {
    /// The checkpoint's name, such as `model.layers.3.self_attn.q_proj.weight` or
    /// `blk.3.attn_q.weight`.
    pub source: String,
    /// Rows that it contributes; for a vector, elements.
    pub rows: usize,
    /// What has to be done to its rows.
    pub transform: PartTransform,
    /// In what type the executor keeps it.
    pub storage: Dtype,
    /// What it takes of the tensor.
    pub slice: WeightSlice,
    /// How many matrices, or vectors, the tensor holds: they are its outermost dimension, and read
    /// as one on the other.
    pub stack: Option<usize>,
}

impl WeightPart {
    /// All of a tensor, `rows` rows in the same order, kept as `storage`.
    pub fn new(source: impl Into<String>, rows: usize, storage: Dtype) -> Self {
        let (transform, slice, stack) = (PartTransform::None, WeightSlice::Whole, None);
        WeightPart { source: source.into(), rows, transform, storage, slice, stack }
    }
}

/// What a [`WeightPart`] takes of a tensor of the checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightSlice {
    /// All of it.
    Whole,
    /// The part's rows, from row `first` on, of `of`; of a vector so many elements.
    Rows {
        /// First row.
        first: usize,
        /// Rows of the tensor.
        of: usize,
    },
    /// The weight's columns, from column `first` on, of `of`.
    Cols {
        /// First column.
        first: usize,
        /// Columns of the tensor.
        of: usize,
    },
}

/// How rows of a checkpoint's tensor become rows of a packed weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PartTransform {
    /// In the same order.
    None,
    /// GGUF of the `llama` architecture stores the rows of Q and K for interleaved RoPE (pairs
    /// `2i, 2i + 1`); they go back to halves (`i, i + head_dim / 2`), head by head.
    UnpermuteRope {
        /// Heads of this tensor.
        num_heads: usize,
    },
    /// In the same order, every element multiplied: of vectors, which are kept in f32.
    Scale(f32),
    /// In the same order, something added to every element: of vectors, which are kept in f32.
    Add(f32),
    /// In the same order, `-e^x` of every element `x`: of vectors, which are kept in f32.
    NegExp,
    /// This number in the place of every element: of vectors, which are kept in f32.
    Constant(f32),
    /// Every second row of the tensor, from the first one of the slice on: the rows of two matrices
    /// take turns.
    EverySecond,
    /// Row `r` is the tensor's column `first[1] + step * r`, from row `first[0]` on.
    Columns {
        /// Row and column of the first element.
        first: [usize; 2],
        /// From a column to the next.
        step: usize,
        /// Rows and columns of the tensor.
        of: [usize; 2],
    },
}

/// A table computed on the host when the model is opened, `[rows, cols]` f32.
#[derive(Clone, Debug)]
pub struct Constant {
    /// Name, such as `rope`.
    pub name: String,
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// Row-major data; shared between the plans of one model. Empty in a plan that was made for its
    /// sizes alone.
    pub data: std::sync::Arc<[f32]>,
}

impl Constant {
    /// Bytes of the whole table.
    pub fn bytes(&self) -> usize {
        self.rows * self.cols * size_of::<f32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e4m3_is_stacked_where_its_scales_fit() {
        let weight = |cols: usize, parts: &[(usize, Dtype)]| {
            let part = |&(rows, storage): &(usize, Dtype)| WeightPart::new("part", rows, storage);
            let parts: Vec<WeightPart> = parts.iter().map(part).collect();
            let rows = parts.iter().map(|part| part.rows).sum();
            Weight { name: "w".into(), rows, cols, layout: WeightLayout::Rows, parts }
        };
        let (rows, blocks) = (Dtype::F8_E4M3, Dtype::F8_E4M3_BLOCKS);
        let of_rows = weight(48, &[(5, rows), (3, rows)]);
        assert!(of_rows.fits_fp8());
        assert_eq!((of_rows.scales_at(), of_rows.bytes()), (8 * 48, 8 * 48 + 8 * 4));
        let of_blocks = weight(144, &[(256, blocks), (3, blocks)]);
        assert!(of_blocks.fits_fp8());
        assert_eq!(of_blocks.bytes(), 259 * 144 + 3 * 2 * 4);
        assert!(!weight(128, &[(64, blocks), (128, blocks)]).fits_fp8(), "a block has two scales");
        assert!(!weight(128, &[(128, blocks), (64, rows)]).fits_fp8());
        assert!(!weight(128, &[(128, Dtype::F16), (64, rows)]).fits_fp8());
        assert!(!weight(40, &[(128, rows)]).fits_fp8(), "rows are not aligned");
        let dense = weight(5, &[(3, Dtype::F32)]);
        assert_eq!((dense.fits_fp8(), dense.bytes()), (false, 60));
    }
}
