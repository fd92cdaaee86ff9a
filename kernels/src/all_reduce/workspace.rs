//! What a rank's workspace holds, and where.

use crate::all_reduce::MAX_WORLD;
use crate::all_reduce::channel::channel_lines;
use crate::all_reduce::{norm, one_shot, rank_barrier};
use crate::element::VEC_ELEMS;
use cuda_std::launch::LaunchError;
use cuda_std::peer::LINE_BYTES;
use gpu_types::ALIGN_BYTES;

/// The workspace of a rank: one buffer in the memory of its device, of [`Workspace::bytes`], which
/// all peers can access. All ranks' workspaces are alike. It is zeroed before the first launch, and
/// again, on all ranks, only after all launches of all of them have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workspace {
    world: usize,
    /// Channels of the one-shot kernel.
    channels: usize,
    /// Channels of the kernel with the norm, a row each, and the vectors of a row.
    norm_rows: usize,
    norm_vectors: usize,
}

/// The first byte of each part.
pub(super) struct Parts {
    pub one_shot_epochs: usize,
    pub two_shot_epochs: usize,
    pub norm_epochs: usize,
    pub two_shot_flags: usize,
    pub one_shot_lines: usize,
    pub norm_lines: usize,
    end: usize,
}

impl Workspace {
    /// The workspace of one of `world` ranks, for one-shot all-reduces of up to `max_elems` elements,
    /// those with a norm of up to `max_norm_rows` rows of `hidden_size`, and two-shot ones of any
    /// size.
    ///
    /// # Errors
    /// [`LaunchError::Shape`] for a `world` that is not 2, 4 or 8, and sizes that kernels do not take.
    pub fn new(
        world: usize,
        max_elems: usize,
        (max_norm_rows, hidden_size): (usize, usize),
    ) -> Result<Self, LaunchError> {
        let shape = |what, value, expected| Err(LaunchError::Shape { what, value, expected });
        if ![2, 4, MAX_WORLD].contains(&world) {
            return shape("world size", world, "2, 4 or 8");
        }
        if max_elems > MAX_ELEMS {
            return shape("elements", max_elems, "at most 2147483648");
        }
        check_hidden_size(hidden_size)?;
        Ok(Workspace {
            world,
            channels: max_elems.div_ceil(one_shot::BLOCK_ELEMS as usize),
            norm_rows: max_norm_rows,
            norm_vectors: hidden_size / VEC_ELEMS as usize,
        })
    }

    /// Ranks.
    pub const fn world(&self) -> usize {
        self.world
    }

    /// Bytes of the buffer.
    pub fn bytes(&self) -> usize {
        self.parts().end
    }

    /// Most elements of a one-shot all-reduce.
    pub const fn max_elems(&self) -> usize {
        self.channels * one_shot::BLOCK_ELEMS as usize
    }

    /// Most rows of one with a norm, and the largest row.
    pub const fn max_norm_shape(&self) -> (usize, usize) {
        (self.norm_rows, self.norm_vectors * VEC_ELEMS as usize)
    }

    pub(super) fn parts(&self) -> Parts {
        let mut end = 0;
        let mut part = |bytes: usize| {
            let start = end;
            end = (start + bytes).next_multiple_of(ALIGN_BYTES);
            start
        };
        let words = |count: usize| count * size_of::<u32>();
        let lines = |channels, vectors| channels * channel_lines(self.world, vectors) * LINE_BYTES;
        Parts {
            one_shot_epochs: part(words(self.channels)),
            two_shot_epochs: part(words(rank_barrier::MAX_BLOCKS as usize)),
            norm_epochs: part(words(self.norm_rows)),
            two_shot_flags: part(words(rank_barrier::num_flags(self.world))),
            one_shot_lines: part(lines(self.channels, one_shot::NUM_THREADS as usize)),
            norm_lines: part(lines(self.norm_rows, self.norm_vectors)),
            end,
        }
    }
}

/// Most elements of a tensor, so that their indices, and those a bit past the end, are `u32`.
pub(super) const MAX_ELEMS: usize = 1 << 31;

/// A row that the kernel with the norm takes.
pub(super) fn check_hidden_size(hidden_size: usize) -> Result<(), LaunchError> {
    let fits =
        hidden_size.is_multiple_of(VEC_ELEMS as usize) && hidden_size <= norm::MAX_HIDDEN_SIZE;
    if fits {
        return Ok(());
    }
    let expected = "a multiple of 8, at most 16384";
    Err(LaunchError::Shape { what: "hidden_size", value: hidden_size, expected })
}
