//! Launches of sums that are added to a residual.

use crate::all_reduce::launcher::{Algorithm, Ranks, check_aligned, check_tensors, padded, shape};
use crate::all_reduce::norm::{self, all_reduce_norm};
use crate::all_reduce::rank_barrier::MAX_BLOCKS;
use crate::all_reduce::two_shot::NUM_THREADS;
use crate::all_reduce::two_shot_add::all_reduce_two_shot_add;
use crate::all_reduce::two_shot_norm::{self, all_reduce_two_shot_norm};
use crate::all_reduce::workspace::{MAX_ELEMS, Workspace, check_hidden_size};
use crate::element::{Half, VEC_ELEMS};
use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError};
use std::any::TypeId;

/// Segments whose sums of squares are added together: threads of a block have a multiple of them.
const SEGMENTS: usize = 4;

/// Threads of a segment.
const WARP_SIZE: usize = 32;

/// An all-reduce with the residual addition and the RMSNorm after it.
///
/// By two shots a rank adds to its own rows of the residual alone, an equal part of all, one rank's
/// after the other's: the rows of the others are stale until an [`AllReduceAdd`].
#[derive(Clone, Copy, Debug)]
pub struct AllReduceNorm {
    /// Upper bound of the rows.
    pub max_rows: usize,
    /// Columns, a multiple of 8.
    pub hidden_size: usize,
    /// Added to the mean of squares.
    pub eps: f32,
}

/// The tensors of [`AllReduceNorm`], contiguous. Those of all ranks are where this rank's device
/// accesses them.
#[derive(Clone, Copy, Debug)]
pub struct NormOperands<'a, E> {
    /// The summands of all ranks, `[num_rows, hidden_size]`.
    pub x: &'a [DevicePtr<E>],
    /// To which the sum is added, likewise.
    pub residual: DevicePtr<f32>,
    /// Weight of the norm, `[hidden_size]`.
    pub weight: DevicePtr<f32>,
    /// The normed residual of all ranks; may be `x`.
    pub out: &'a [DevicePtr<E>],
}

impl AllReduceNorm {
    /// Whether the kernels take rows of `hidden_size`.
    pub fn takes(hidden_size: usize) -> bool {
        check_hidden_size(hidden_size).is_ok()
    }

    /// What [`AllReduceNorm::launch`] takes: one shot for as many rows as the workspace has room for.
    pub fn algorithm(&self, workspace: &Workspace) -> Algorithm {
        let (max_rows, _) = workspace.max_norm_shape();
        if self.max_rows <= max_rows { Algorithm::OneShot } else { Algorithm::TwoShot }
    }

    /// The launch of this rank; `None` without rows or columns. `num_rows` points to the row count
    /// on the device.
    ///
    /// # Errors
    /// [`LaunchError`] for rows that the kernels do not take, another number of tensors than ranks,
    /// and misaligned ones.
    pub fn launch<E: Half>(
        &self,
        ranks: &Ranks,
        num_rows: DevicePtr<u32>,
        operands: &NormOperands<'_, E>,
    ) -> Result<Option<Launch>, LaunchError> {
        match self.algorithm(ranks.workspace()) {
            Algorithm::OneShot => self.one_shot(ranks, num_rows, operands),
            Algorithm::TwoShot => self.two_shot_in(MAX_BLOCKS as usize, ranks, num_rows, operands),
        }
    }

    /// As [`AllReduceNorm::launch`], by one shot: peers access no tensor, and the residual is whole.
    ///
    /// # Errors
    /// As [`AllReduceNorm::launch`], and for rows that the workspace has no room for.
    pub fn one_shot<E: Half>(
        &self,
        ranks: &Ranks,
        num_rows: DevicePtr<u32>,
        operands: &NormOperands<'_, E>,
    ) -> Result<Option<Launch>, LaunchError> {
        let &AllReduceNorm { max_rows, hidden_size, eps } = self;
        operands.check(ranks, hidden_size)?;
        let (most_rows, largest_row) = ranks.workspace().max_norm_shape();
        if max_rows > most_rows {
            return shape("rows", max_rows, "as many as the workspace has room for");
        }
        if hidden_size != largest_row {
            return shape("hidden_size", hidden_size, "that of the workspace");
        }
        let num_vectors = hidden_size / VEC_ELEMS as usize;
        let vectors = num_vectors.div_ceil(norm::MAX_THREADS as usize).next_power_of_two();
        let threads = num_vectors.div_ceil(vectors).max(1).next_multiple_of(SEGMENTS * WARP_SIZE);
        let geometry = Geometry::new([max_rows, 1, 1], threads, 0)?;
        let parts = ranks.workspace().parts();
        use all_reduce_norm::{Args, Instance};
        let is_right = |i: Instance| {
            (i.world(), i.vectors()) == (ranks.world(), vectors) && i.e() == TypeId::of::<E>()
        };
        let instance = Instance::find(is_right).expect("every world has instances");
        Ok(geometry.filter(|_| hidden_size > 0).map(|geometry| {
            Args {
                rank: ranks.rank() as u32,
                num_rows,
                hidden_size: hidden_size as u32,
                eps,
                x: operands.x[ranks.rank()],
                residual: operands.residual,
                weight: operands.weight,
                out: operands.out[ranks.rank()],
                epochs: ranks.own(parts.norm_epochs),
                lines: ranks.rank_ptrs(parts.norm_lines),
            }
            .launch(instance, geometry)
        }))
    }

    /// As [`AllReduceNorm::launch`], by two shots, in at most `max_blocks` blocks, the same on all
    /// ranks.
    ///
    /// # Errors
    /// As [`AllReduceNorm::launch`], and for more than 128 blocks, or none.
    pub fn two_shot_in<E: Half>(
        &self,
        max_blocks: usize,
        ranks: &Ranks,
        num_rows: DevicePtr<u32>,
        operands: &NormOperands<'_, E>,
    ) -> Result<Option<Launch>, LaunchError> {
        let &AllReduceNorm { max_rows, hidden_size, eps } = self;
        operands.check(ranks, hidden_size)?;
        check_elems(max_rows, hidden_size)?;
        if !(1..=MAX_BLOCKS as usize).contains(&max_blocks) {
            return shape("blocks", max_blocks, "1 to 128");
        }
        let vectors = (hidden_size / VEC_ELEMS as usize).div_ceil(two_shot_norm::VECTORS);
        let step = SEGMENTS * WARP_SIZE / two_shot_norm::VECTORS;
        let threads = vectors.max(1).next_multiple_of(step);
        let blocks = max_rows.div_ceil(ranks.world()).min(max_blocks);
        let geometry = Geometry::new([blocks, 1, 1], threads, 0)?;
        let parts = ranks.workspace().parts();
        use all_reduce_two_shot_norm::{Args, Instance};
        let is_right = |i: Instance| i.world() == ranks.world() && i.e() == TypeId::of::<E>();
        let instance = Instance::find(is_right).expect("every world has instances");
        Ok(geometry.filter(|_| hidden_size > 0).map(|geometry| {
            Args {
                rank: ranks.rank() as u32,
                num_rows,
                hidden_size: hidden_size as u32,
                eps,
                x: padded(operands.x),
                residual: operands.residual,
                weight: operands.weight,
                out: padded(operands.out),
                epochs: ranks.own(parts.two_shot_epochs),
                flags: ranks.rank_ptrs(parts.two_shot_flags),
            }
            .launch(instance, geometry)
        }))
    }
}

fn check_elems(max_rows: usize, width: usize) -> Result<(), LaunchError> {
    let elems = max_rows.saturating_mul(width);
    if elems > MAX_ELEMS {
        return shape("elements", elems, "at most 2147483648");
    }
    Ok(())
}

impl<E> NormOperands<'_, E> {
    fn check(&self, ranks: &Ranks, hidden_size: usize) -> Result<(), LaunchError> {
        check_hidden_size(hidden_size)?;
        check_tensors(ranks, self.x)?;
        check_tensors(ranks, self.out)?;
        check_aligned("address of the residual", self.residual)?;
        check_aligned("address of the weight", self.weight)
    }
}

/// An all-reduce by two shots with the residual addition after it, which gives all ranks the whole
/// residual: also where each had its own rows of it alone.
#[derive(Clone, Copy, Debug)]
pub struct AllReduceAdd {
    /// Upper bound of the rows.
    pub max_rows: usize,
    /// Columns, a multiple of 8.
    pub hidden_size: usize,
}

impl AllReduceAdd {
    /// The launch of this rank; `None` without rows or columns. `x` are the summands of all ranks,
    /// `residual` what each adds the sum to; `num_rows` points to the row count on the device.
    ///
    /// # Errors
    /// As [`AllReduceNorm::launch`].
    pub fn launch<E: Half>(
        &self,
        ranks: &Ranks,
        num_rows: DevicePtr<u32>,
        x: &[DevicePtr<E>],
        residual: &[DevicePtr<f32>],
    ) -> Result<Option<Launch>, LaunchError> {
        let &AllReduceAdd { max_rows, hidden_size } = self;
        check_hidden_size(hidden_size)?;
        check_elems(max_rows, hidden_size)?;
        check_tensors(ranks, x)?;
        check_tensors(ranks, residual)?;
        let vectors = max_rows.div_ceil(ranks.world()) * (hidden_size / VEC_ELEMS as usize);
        let blocks = vectors.div_ceil(NUM_THREADS as usize).min(MAX_BLOCKS as usize);
        let geometry = Geometry::new([blocks, 1, 1], NUM_THREADS as usize, 0)?;
        let parts = ranks.workspace().parts();
        use all_reduce_two_shot_add::{Args, Instance};
        let is_right = |i: Instance| i.world() == ranks.world() && i.e() == TypeId::of::<E>();
        let instance = Instance::find(is_right).expect("every world has instances");
        Ok(geometry.map(|geometry| {
            Args {
                rank: ranks.rank() as u32,
                num_rows,
                width: hidden_size as u32,
                x: padded(x),
                residual: padded(residual),
                epochs: ranks.own(parts.two_shot_epochs),
                flags: ranks.rank_ptrs(parts.two_shot_flags),
            }
            .launch(instance, geometry)
        }))
    }
}
