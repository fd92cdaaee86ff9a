//! Activations of a step: one arena, and views of rows and columns in it.

use crate::plan::{ArenaLayout, Dtype, Plan, Rows as RowCount, StepInputs, View};
use rayon::prelude::*;
use std::ops::Range;

/// Elements of an elementwise operation from which on it pays to fork.
const MIN_PARALLEL_ELEMS: usize = 1 << 14;

const ELEM_BYTES: usize = Dtype::F32.block_bytes();

/// Elements of the arena of `layout`.
pub fn arena_elems(layout: &ArenaLayout) -> usize {
    layout.bytes() / ELEM_BYTES
}

/// Where the activations of one step stand: a plan's arena, and the step's numbers of rows.
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

    fn range(&self, view: View) -> Range<usize> {
        let rows = match self.plan.tensor(view.tensor).rows {
            RowCount::Tokens => self.num_tokens,
            RowCount::Logits => self.num_logit_rows,
        };
        let start = self.layout.offset(view.tensor) / ELEM_BYTES;
        start..start + rows * self.stride(view)
    }
}

/// The arena as one step of one plan sees it.
pub struct Frame<'a> {
    shape: Shape<'a>,
    arena: &'a mut [f32],
}

impl<'a> Frame<'a> {
    /// Takes the arena for a step. In debug builds it is filled with NaN, so that a value that no operation wrote
    /// shows.
    pub fn new(
        plan: &'a Plan,
        layout: &'a ArenaLayout,
        inputs: &StepInputs,
        arena: &'a mut [f32],
    ) -> Self {
        let arena = &mut arena[..arena_elems(layout)];
        if cfg!(debug_assertions) {
            arena.fill(f32::NAN);
        }
        let (num_tokens, num_logit_rows) = (inputs.num_tokens(), inputs.logit_rows.len());
        Frame { shape: Shape { plan, layout, num_tokens, num_logit_rows }, arena }
    }

    /// The rows of `view`.
    pub fn rows(&self, view: View) -> Rows<'_> {
        Rows::new(&self.arena[self.shape.range(view)], self.shape.stride(view), view)
    }

    /// The rows of `view` to write to, and the other activations to read from.
    pub fn write(&mut self, view: View) -> (RowsMut<'_>, Others<'_>) {
        let range = self.shape.range(view);
        let (before, rest) = self.arena.split_at_mut(range.start);
        let (data, after) = rest.split_at_mut(range.len());
        let rows =
            RowsMut { data, stride: self.shape.stride(view), start: view.start, width: view.width };
        (rows, Others { shape: self.shape, before, after, after_start: range.end })
    }

    /// Copies `x` to `out`; nothing where they are the same view.
    pub fn copy(&mut self, x: View, out: View) {
        if x != out {
            let (out, others) = self.write(out);
            let x = others.rows(x);
            out.for_each(|t, row| row.copy_from_slice(x.row(t)));
        }
    }
}

/// The activations beside the one that is being written.
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
    /// If it lies in the activation that is being written: no operation allows that.
    pub fn rows(&self, view: View) -> Rows<'a> {
        let range = self.shape.range(view);
        let data = match range.start.checked_sub(self.after_start) {
            Some(start) => &self.after[start..start + range.len()],
            None => &self.before[range],
        };
        Rows::new(data, self.shape.stride(view), view)
    }
}

/// Rows of columns `start .. start + width`, `stride` elements apart.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    data: &'a [f32],
    stride: usize,
    start: usize,
    width: usize,
}

impl<'a> Rows<'a> {
    fn new(data: &'a [f32], stride: usize, view: View) -> Self {
        Rows { data, stride, start: view.start, width: view.width }
    }

    /// Rows that are whole: `width` elements, one after the other.
    #[cfg(test)]
    pub fn dense(data: &'a [f32], width: usize) -> Self {
        Rows { data, stride: width, start: 0, width }
    }

    pub fn len(&self) -> usize {
        self.data.len() / self.stride
    }

    pub fn row(&self, index: usize) -> &'a [f32] {
        &self.data[index * self.stride + self.start..][..self.width]
    }

    pub fn width(&self) -> usize {
        self.width
    }

    pub fn iter(&self) -> impl Iterator<Item = &'a [f32]> {
        (0..self.len()).map(|index| self.row(index))
    }

    /// From the first element of the first row to the last of the last row, and the distance of two rows.
    pub fn strided(&self) -> (&'a [f32], usize) {
        (&self.data[self.start..], self.stride)
    }

    pub fn to_vec(self) -> Vec<f32> {
        self.iter().flatten().copied().collect()
    }
}

/// As [`Rows`], to write to.
pub struct RowsMut<'a> {
    data: &'a mut [f32],
    stride: usize,
    start: usize,
    width: usize,
}

impl<'a> RowsMut<'a> {
    #[cfg(test)]
    pub fn dense(data: &'a mut [f32], width: usize) -> Self {
        RowsMut { data, stride: width, start: 0, width }
    }

    pub fn len(&self) -> usize {
        self.data.len() / self.stride
    }

    pub fn width(&self) -> usize {
        self.width
    }

    /// As [`Rows::strided`].
    pub fn strided(&mut self) -> (&mut [f32], usize) {
        (&mut self.data[self.start..], self.stride)
    }

    /// Calls `f` with the index and the columns of each row, in parallel where that pays.
    pub fn for_each(self, f: impl Fn(usize, &mut [f32]) + Sync) {
        let columns = self.start..self.start + self.width;
        let f = |(index, row): (usize, &mut [f32])| f(index, &mut row[columns.clone()]);
        if self.len() * self.width < MIN_PARALLEL_ELEMS {
            self.data.chunks_exact_mut(self.stride).enumerate().for_each(f);
        } else {
            self.data.par_chunks_exact_mut(self.stride).enumerate().for_each(f);
        }
    }
}
