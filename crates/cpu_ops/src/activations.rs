//! Activations of a step: one arena, and views of rows and columns in it.
//!
//! Operations see f32. 16-bit elements are converted to f32 when they are read, and rounded once when they are written.

use super::elements::{Elements, ElementsMut, POISON, words};
use plan::{ArenaLayout, Dtype, Plan, Rows as RowCount, StepInputs, View};
use rayon::prelude::*;
use std::borrow::Cow;
use std::ops::Range;

/// Least number of elements of an elementwise operation that runs in parallel.
const MIN_PARALLEL_ELEMS: usize = 1 << 14;

/// Words of the arena of `layout`.
pub fn arena_words(layout: &ArenaLayout) -> usize {
    layout.bytes() / Dtype::F32.block_bytes()
}

/// The arena's layout in one step: the plan's offsets, and the step's row counts.
#[derive(Clone, Copy)]
struct Shape<'a> {
    plan: &'a Plan,
    layout: &'a ArenaLayout,
    num_tokens: usize,
    num_logit_rows: usize,
}

impl Shape<'_> {
    fn stride(&self, view: View) -> usize {
        self.plan.tensor(view.tensor).width
    }

    fn num_rows(&self, view: View) -> usize {
        match self.plan.tensor(view.tensor).rows {
            RowCount::Tokens => self.num_tokens,
            RowCount::Logits => self.num_logit_rows,
        }
    }

    /// Elements of the whole activation.
    fn len(&self, view: View) -> usize {
        self.num_rows(view) * self.stride(view)
    }

    /// The words of the arena that hold the whole activation.
    fn words(&self, view: View) -> Range<usize> {
        let start = self.layout.offset(view.tensor) / Dtype::F32.block_bytes();
        start..start + words(self.plan.dtype(view), self.len(view))
    }

    /// The rows of `view`, in the words of its activation.
    fn rows<'a>(&self, words: &'a [f32], view: View) -> Rows<'a> {
        let View { start, width, .. } = view;
        let stride = self.stride(view);
        let stored = Elements::new(self.plan.dtype(view), words, self.len(view));
        if let Elements::F32(data) = stored {
            return Rows { data: Cow::Borrowed(data), stride, start, width };
        }
        let mut data = vec![0.0; self.num_rows(view) * width];
        for (row, out) in data.chunks_exact_mut(width).enumerate() {
            let first = row * stride + start;
            stored.slice(first..first + width).widen_to(out);
        }
        Rows { data: Cow::Owned(data), stride: width, start: 0, width }
    }
}

/// The arena as one step of one plan sees it.
pub struct Frame<'a> {
    shape: Shape<'a>,
    arena: &'a mut [f32],
}

impl<'a> Frame<'a> {
    /// Takes the arena for a step. Debug builds fill it with NaN, so that a read of an unwritten value shows.
    pub fn new(
        plan: &'a Plan,
        layout: &'a ArenaLayout,
        inputs: &StepInputs,
        arena: &'a mut [f32],
    ) -> Self {
        let arena = &mut arena[..arena_words(layout)];
        if cfg!(debug_assertions) {
            arena.fill(POISON);
        }
        let (num_tokens, num_logit_rows) = (inputs.num_tokens(), inputs.logit_rows.len());
        Frame { shape: Shape { plan, layout, num_tokens, num_logit_rows }, arena }
    }

    /// The type of the elements of `view`.
    pub fn dtype(&self, view: View) -> Dtype {
        self.shape.plan.dtype(view)
    }

    /// The rows of `view`.
    pub fn rows(&self, view: View) -> Rows<'_> {
        self.shape.rows(&self.arena[self.shape.words(view)], view)
    }

    /// Calls `compute` with the rows of `out` and the other activations. The rows are initialised with those of `from`,
    /// if it is given.
    pub fn write(&mut self, out: View, from: Option<View>, compute: impl FnOnce(RowsMut, &Others)) {
        let shape = self.shape;
        let dtype = shape.plan.dtype(out);
        if dtype != Dtype::F32 {
            let mut values = match from {
                Some(from) => self.rows(from).to_vec(),
                None => vec![POISON; shape.num_rows(out) * out.width],
            };
            let (stored, others) = self.split(out);
            compute(RowsMut::dense(&mut values, out.width), &others);
            let mut stored = ElementsMut::new(dtype, stored, shape.len(out));
            for (row, values) in values.chunks_exact(out.width).enumerate() {
                stored.narrow(row * shape.stride(out) + out.start, values);
            }
            return;
        }
        let (data, others) = self.split(out);
        let (stride, start, width) = (shape.stride(out), out.start, out.width);
        if let Some(from) = from.filter(|&from| from != out) {
            let from = others.rows(from);
            let rows = RowsMut { data: &mut *data, stride, start, width };
            rows.for_each(|t, row| row.copy_from_slice(from.row(t)));
        }
        compute(RowsMut { data, stride, start, width }, &others);
    }

    /// Splits the arena into the activation of `out` and the rest.
    fn split(&mut self, out: View) -> (&mut [f32], Others<'_>) {
        let range = self.shape.words(out);
        let (before, rest) = self.arena.split_at_mut(range.start);
        let (data, after) = rest.split_at_mut(range.len());
        (data, Others { shape: self.shape, before, after, after_start: range.end })
    }
}

/// All activations but the one that is being written.
pub struct Others<'a> {
    shape: Shape<'a>,
    before: &'a [f32],
    after: &'a [f32],
    after_start: usize,
}

impl<'a> Others<'a> {
    /// The rows of `view`.
    ///
    /// # Panics
    /// If `view` is of the activation that is being written: no operation allows that.
    pub fn rows(&self, view: View) -> Rows<'a> {
        let range = self.shape.words(view);
        let words = match range.start.checked_sub(self.after_start) {
            Some(start) => &self.after[start..start + range.len()],
            None => &self.before[range],
        };
        self.shape.rows(words, view)
    }
}

/// Rows of columns `start .. start + width`, `stride` elements apart.
pub struct Rows<'a> {
    data: Cow<'a, [f32]>,
    stride: usize,
    start: usize,
    width: usize,
}

impl<'a> Rows<'a> {
    /// Contiguous rows of `width` elements.
    pub fn dense(data: &'a [f32], width: usize) -> Self {
        Rows { data: Cow::Borrowed(data), stride: width, start: 0, width }
    }

    /// Columns `start .. start + width` of these rows.
    pub fn columns(&self, start: usize, width: usize) -> Rows<'_> {
        let (data, start) = (Cow::Borrowed(&*self.data), self.start + start);
        Rows { data, stride: self.stride, start, width }
    }

    /// Number of rows.
    pub fn num_rows(&self) -> usize {
        self.data.len() / self.stride
    }

    /// Row `index`.
    pub fn row(&self, index: usize) -> &[f32] {
        &self.data[index * self.stride + self.start..][..self.width]
    }

    /// Columns of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The rows, one after the other.
    pub fn iter(&self) -> impl Iterator<Item = &[f32]> {
        (0..self.num_rows()).map(|index| self.row(index))
    }

    /// The elements from the first row on, and the row stride.
    pub fn strided(&self) -> (&[f32], usize) {
        (&self.data[self.start..], self.stride)
    }

    /// A copy without gaps between the rows.
    pub fn to_vec(&self) -> Vec<f32> {
        self.iter().flatten().copied().collect()
    }
}

/// As [`Rows`], mutable.
pub struct RowsMut<'a> {
    data: &'a mut [f32],
    stride: usize,
    start: usize,
    width: usize,
}

impl<'a> RowsMut<'a> {
    /// Contiguous rows of `width` elements.
    pub fn dense(data: &'a mut [f32], width: usize) -> Self {
        RowsMut { data, stride: width, start: 0, width }
    }

    /// Number of rows.
    pub fn num_rows(&self) -> usize {
        self.data.len() / self.stride
    }

    /// Columns of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// As [`Rows::strided`].
    pub fn strided(&mut self) -> (&mut [f32], usize) {
        (&mut self.data[self.start..], self.stride)
    }

    /// The rows, one after the other.
    pub fn rows(&mut self) -> impl Iterator<Item = &mut [f32]> {
        let columns = self.start..self.start + self.width;
        self.data.chunks_exact_mut(self.stride).map(move |row| &mut row[columns.clone()])
    }

    /// Calls `f` with the index and the columns of each row, in parallel if the rows are large enough.
    pub fn for_each(self, f: impl Fn(usize, &mut [f32]) + Sync) {
        let columns = self.start..self.start + self.width;
        let f = |(index, row): (usize, &mut [f32])| f(index, &mut row[columns.clone()]);
        if self.num_rows() * self.width < MIN_PARALLEL_ELEMS {
            self.data.chunks_exact_mut(self.stride).enumerate().for_each(f);
        } else {
            self.data.par_chunks_exact_mut(self.stride).enumerate().for_each(f);
        }
    }
}
