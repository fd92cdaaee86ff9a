//! Launches from shapes, workspaces and tensors.

use crate::all_reduce::MAX_WORLD;
use crate::all_reduce::norm::{self, all_reduce_norm};
use crate::all_reduce::one_shot::{self, all_reduce_one_shot};
use crate::all_reduce::two_shot::{self, all_reduce_two_shot};
use crate::all_reduce::workspace::{MAX_ELEMS, Workspace, check_hidden_size};
use crate::element::{Half, VEC_ELEMS};
use crate::operand::is_aligned;
use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError};
use std::any::TypeId;

/// Largest tensor, in bytes, that one shot is taken for between `world` ranks: beyond it two shots are faster on H200, as every
/// rank sends the tensor to all others (docs/scaling.md).
pub const fn one_shot_max_bytes(world: usize) -> usize {
    if world <= 4 { 256 << 10 } else { 64 << 10 }
}

/// Threads of a block with a norm are a multiple of this: four segments of a row.
const NORM_THREADS: usize = 128;

/// How an all-reduce is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// Each rank sends its tensor to all: least latency.
    OneShot,
    /// Each rank adds a part: fewest bytes.
    TwoShot,
}

/// A rank among those that reduce together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranks {
    rank: usize,
    workspace: Workspace,
    addresses: Vec<DevicePtr<u8>>,
}

fn shape<T>(what: &'static str, value: usize, expected: &'static str) -> Result<T, LaunchError> {
    Err(LaunchError::Shape { what, value, expected })
}

impl Ranks {
    /// Rank `rank`, whose device accesses the ranks' workspaces at these addresses.
    ///
    /// # Errors
    /// [`LaunchError::Shape`] for another number of addresses than ranks, for a rank that is none,
    /// and for misaligned addresses.
    pub fn new(
        rank: usize,
        workspace: Workspace,
        addresses: Vec<DevicePtr<u8>>,
    ) -> Result<Self, LaunchError> {
        if addresses.len() != workspace.world() {
            return shape("workspaces", addresses.len(), "one for each rank");
        }
        if rank >= workspace.world() {
            return shape("rank", rank, "a number under the world size");
        }
        addresses
            .iter()
            .try_for_each(|&address| check_aligned("address of a workspace", address))?;
        Ok(Ranks { rank, workspace, addresses })
    }

    pub(super) fn world(&self) -> usize {
        self.workspace.world()
    }

    pub(super) fn rank(&self) -> usize {
        self.rank
    }

    /// The flags by which blocks meet, of all ranks.
    pub(super) fn flags(&self) -> [DevicePtr<u32>; MAX_WORLD] {
        self.of_all(self.workspace.parts().two_shot_flags)
    }

    /// The epochs of blocks that meet.
    pub(super) fn block_epochs(&self) -> DevicePtr<u32> {
        self.own(self.workspace.parts().two_shot_epochs)
    }

    /// All of `ranks`, and null pointers.
    pub(super) fn padded<T>(ranks: &[DevicePtr<T>]) -> [DevicePtr<T>; MAX_WORLD] {
        padded(ranks)
    }

    /// The part of the own workspace that starts at this byte.
    fn own<T>(&self, at: usize) -> DevicePtr<T> {
        self.of_all(at)[self.rank]
    }

    /// That part of each workspace; null past the last rank.
    fn of_all<T>(&self, at: usize) -> [DevicePtr<T>; MAX_WORLD] {
        padded(&self.addresses).map(|address: DevicePtr<u8>| {
            DevicePtr::new(if address.0 == 0 { 0 } else { address.0 + at as u64 })
        })
    }
}

/// All of `ranks`, and null pointers.
fn padded<T>(ranks: &[DevicePtr<T>]) -> [DevicePtr<T>; MAX_WORLD] {
    std::array::from_fn(|p| ranks.get(p).copied().unwrap_or(DevicePtr::null()))
}

fn check_aligned<T>(what: &'static str, address: DevicePtr<T>) -> Result<(), LaunchError> {
    if is_aligned(address) {
        return Ok(());
    }
    shape(what, address.0 as usize, "a multiple of 16")
}

/// The sum of the ranks' tensors `[num_rows, width]` of 16 bits, contiguous.
#[derive(Clone, Copy, Debug)]
pub struct AllReduce {
    /// Upper bound of the rows.
    pub max_rows: usize,
    /// Columns.
    pub width: usize,
}

impl AllReduce {
    fn elems(&self) -> Result<usize, LaunchError> {
        let elems = self.max_rows.saturating_mul(self.width);
        if elems > MAX_ELEMS {
            return shape("elements", elems, "at most 2147483648");
        }
        Ok(elems)
    }

    /// What [`AllReduce::launch`] takes: one shot for tensors of up to [`one_shot_max_bytes`] that
    /// the workspace has room for.
    pub fn algorithm(&self, workspace: &Workspace) -> Algorithm {
        let elems = self.max_rows.saturating_mul(self.width);
        if elems <= workspace.max_elems().min(one_shot_max_bytes(workspace.world()) / 2) {
            Algorithm::OneShot
        } else {
            Algorithm::TwoShot
        }
    }

    /// The launch of this rank, in place; `None` for empty tensors. `x` are the tensors of all
    /// ranks, where this rank's device accesses them; `num_rows` points to the row count on the
    /// device.
    ///
    /// # Errors
    /// [`LaunchError`] for sizes beyond a `u32`, another number of tensors than ranks, and
    /// misaligned ones.
    pub fn launch<E: Half>(
        &self,
        ranks: &Ranks,
        num_rows: DevicePtr<u32>,
        x: &[DevicePtr<E>],
    ) -> Result<Option<Launch>, LaunchError> {
        check_tensors(ranks, x)?;
        match self.algorithm(&ranks.workspace) {
            Algorithm::OneShot => self.one_shot(ranks, num_rows, x[ranks.rank], x[ranks.rank]),
            Algorithm::TwoShot => self.two_shot(ranks, num_rows, x),
        }
    }

    /// As [`AllReduce::launch`], by one shot, from `x` to `out`, which may be `x`; peers do not
    /// access them.
    ///
    /// # Errors
    /// [`LaunchError`] for more elements than the workspace has room for, and misaligned tensors.
    pub fn one_shot<E: Half>(
        &self,
        ranks: &Ranks,
        num_rows: DevicePtr<u32>,
        x: DevicePtr<E>,
        out: DevicePtr<E>,
    ) -> Result<Option<Launch>, LaunchError> {
        let elems = self.elems()?;
        if elems > ranks.workspace.max_elems() {
            return shape("elements of one shot", elems, "as many as the workspace has room for");
        }
        check_aligned("address of x", x)?;
        check_aligned("address of out", out)?;
        let blocks = elems.div_ceil(one_shot::BLOCK_ELEMS as usize);
        let geometry = Geometry::new([blocks, 1, 1], one_shot::NUM_THREADS as usize, 0)?;
        let parts = ranks.workspace.parts();
        let [lines_0, lines_1, lines_2, lines_3, lines_4, lines_5, lines_6, lines_7] =
            ranks.of_all(parts.one_shot_lines);
        use all_reduce_one_shot::{Args, Instance};
        let is_right = |i: &&Instance| i.world() == ranks.world() && i.e() == TypeId::of::<E>();
        let instance = Instance::ALL.iter().find(is_right).expect("every world has instances");
        Ok(geometry.map(|geometry| {
            Args {
                rank: ranks.rank as u32,
                num_rows,
                width: self.width as u32,
                x,
                out,
                epochs: ranks.own(parts.one_shot_epochs),
                lines_0,
                lines_1,
                lines_2,
                lines_3,
                lines_4,
                lines_5,
                lines_6,
                lines_7,
            }
            .launch(*instance, geometry)
        }))
    }

    /// As [`AllReduce::launch`], by two shots.
    ///
    /// # Errors
    /// As [`AllReduce::launch`].
    pub fn two_shot<E: Half>(
        &self,
        ranks: &Ranks,
        num_rows: DevicePtr<u32>,
        x: &[DevicePtr<E>],
    ) -> Result<Option<Launch>, LaunchError> {
        self.two_shot_in(two_shot::MAX_BLOCKS as usize, ranks, num_rows, x)
    }

    /// As [`AllReduce::two_shot`], in at most `max_blocks` blocks, the same on all ranks.
    ///
    /// # Errors
    /// As [`AllReduce::launch`], and for more than 128 blocks, or none.
    pub fn two_shot_in<E: Half>(
        &self,
        max_blocks: usize,
        ranks: &Ranks,
        num_rows: DevicePtr<u32>,
        x: &[DevicePtr<E>],
    ) -> Result<Option<Launch>, LaunchError> {
        if !(1..=two_shot::MAX_BLOCKS as usize).contains(&max_blocks) {
            return shape("blocks", max_blocks, "1 to 128");
        }
        let elems = self.elems()?;
        check_tensors(ranks, x)?;
        let part = elems.div_ceil(VEC_ELEMS as usize).div_ceil(ranks.world());
        let blocks = part.div_ceil(two_shot::NUM_THREADS as usize);
        let blocks = blocks.min(max_blocks);
        let geometry = Geometry::new([blocks, 1, 1], two_shot::NUM_THREADS as usize, 0)?;
        let parts = ranks.workspace.parts();
        let [x_0, x_1, x_2, x_3, x_4, x_5, x_6, x_7] = padded(x);
        let [flags_0, flags_1, flags_2, flags_3, flags_4, flags_5, flags_6, flags_7] =
            ranks.of_all(parts.two_shot_flags);
        use all_reduce_two_shot::{Args, Instance};
        let is_right = |i: &&Instance| i.world() == ranks.world() && i.e() == TypeId::of::<E>();
        let instance = Instance::ALL.iter().find(is_right).expect("every world has instances");
        Ok(geometry.map(|geometry| {
            Args {
                rank: ranks.rank as u32,
                num_rows,
                width: self.width as u32,
                epochs: ranks.own(parts.two_shot_epochs),
                x_0,
                x_1,
                x_2,
                x_3,
                x_4,
                x_5,
                x_6,
                x_7,
                flags_0,
                flags_1,
                flags_2,
                flags_3,
                flags_4,
                flags_5,
                flags_6,
                flags_7,
            }
            .launch(*instance, geometry)
        }))
    }
}

fn check_tensors<E>(ranks: &Ranks, x: &[DevicePtr<E>]) -> Result<(), LaunchError> {
    if x.len() != ranks.world() {
        return shape("tensors", x.len(), "one for each rank");
    }
    x.iter().try_for_each(|&x| check_aligned("address of x", x))
}

/// An all-reduce by one shot, with the residual addition and the RMSNorm after it.
#[derive(Clone, Copy, Debug)]
pub struct AllReduceNorm {
    /// Upper bound of the rows.
    pub max_rows: usize,
    /// Columns, a multiple of 8.
    pub hidden_size: usize,
    /// Added to the mean of squares.
    pub eps: f32,
}

/// The tensors of [`AllReduceNorm`], contiguous; peers do not access them.
#[derive(Clone, Copy, Debug)]
pub struct NormOperands<E> {
    /// The rank's summand, `[num_rows, hidden_size]`.
    pub x: DevicePtr<E>,
    /// To which the sum is added, likewise.
    pub residual: DevicePtr<f32>,
    /// Of the norm, `[hidden_size]`.
    pub weight: DevicePtr<f32>,
    /// The normed residual; may be `x`.
    pub out: DevicePtr<E>,
}

impl AllReduceNorm {
    /// Whether the kernel takes rows of `hidden_size`.
    pub fn takes(hidden_size: usize) -> bool {
        check_hidden_size(hidden_size).is_ok()
    }

    /// The launch of this rank; `None` without rows or columns. `num_rows` points to the row count
    /// on the device.
    ///
    /// # Errors
    /// [`LaunchError`] for rows that the kernel does not take, or the workspace has no room for, and
    /// misaligned tensors.
    pub fn launch<E: Half>(
        &self,
        ranks: &Ranks,
        num_rows: DevicePtr<u32>,
        operands: &NormOperands<E>,
    ) -> Result<Option<Launch>, LaunchError> {
        let &NormOperands { x, residual, weight, out } = operands;
        let &AllReduceNorm { max_rows, hidden_size, eps } = self;
        check_hidden_size(hidden_size)?;
        let (most_rows, largest_row) = ranks.workspace.max_norm_shape();
        if max_rows > most_rows {
            return shape("rows", max_rows, "as many as the workspace has room for");
        }
        if hidden_size != largest_row {
            return shape("hidden_size", hidden_size, "that of the workspace");
        }
        check_aligned("address of x", x)?;
        check_aligned("address of the residual", residual)?;
        check_aligned("address of the weight", weight)?;
        check_aligned("address of out", out)?;
        let num_vectors = hidden_size / VEC_ELEMS as usize;
        let vectors = num_vectors.div_ceil(norm::MAX_THREADS as usize).next_power_of_two();
        let threads = num_vectors.div_ceil(vectors).next_multiple_of(NORM_THREADS);
        let geometry = Geometry::new([max_rows, 1, 1], threads.max(NORM_THREADS), 0)?;
        let parts = ranks.workspace.parts();
        let [lines_0, lines_1, lines_2, lines_3, lines_4, lines_5, lines_6, lines_7] =
            ranks.of_all(parts.norm_lines);
        use all_reduce_norm::{Args, Instance};
        let is_right = |i: &&Instance| {
            (i.world(), i.vectors()) == (ranks.world(), vectors) && i.e() == TypeId::of::<E>()
        };
        let instance = Instance::ALL.iter().find(is_right).expect("every world has instances");
        Ok(geometry.filter(|_| hidden_size > 0).map(|geometry| {
            Args {
                rank: ranks.rank as u32,
                num_rows,
                hidden_size: hidden_size as u32,
                eps,
                x,
                residual,
                weight,
                out,
                epochs: ranks.own(parts.norm_epochs),
                lines_0,
                lines_1,
                lines_2,
                lines_3,
                lines_4,
                lines_5,
                lines_6,
                lines_7,
            }
            .launch(*instance, geometry)
        }))
    }
}
