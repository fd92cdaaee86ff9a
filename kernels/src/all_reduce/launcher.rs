//! Launches from shapes, workspaces and tensors.

use crate::all_reduce::MAX_WORLD;
use crate::all_reduce::one_shot::{self, all_reduce_one_shot};
use crate::all_reduce::rank_barrier::MAX_BLOCKS;
use crate::all_reduce::two_shot::{self, all_reduce_two_shot};
use crate::all_reduce::workspace::{MAX_ELEMS, Workspace};
use crate::element::{Half, VEC_ELEMS};
use crate::operand::is_aligned;
use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError};
use std::any::TypeId;

/// Largest tensor, in bytes, that one shot is taken for between `world` ranks: beyond it two shots are faster on H200, as every
/// rank sends the tensor to all others (docs/scaling.md).
pub const fn one_shot_max_bytes(world: usize) -> usize {
    if world <= 4 { 256 << 10 } else { 64 << 10 }
}

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

pub(super) fn shape<T>(
    what: &'static str,
    value: usize,
    expected: &'static str,
) -> Result<T, LaunchError> {
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

    pub(super) fn workspace(&self) -> &Workspace {
        &self.workspace
    }

    pub(super) fn rank(&self) -> usize {
        self.rank
    }

    /// The flags by which blocks meet, of all ranks.
    pub(super) fn flags(&self) -> [DevicePtr<u32>; MAX_WORLD] {
        self.rank_ptrs(self.workspace.parts().two_shot_flags)
    }

    /// The epochs of blocks that meet.
    pub(super) fn block_epochs(&self) -> DevicePtr<u32> {
        self.own(self.workspace.parts().two_shot_epochs)
    }

    /// The part of the own workspace that starts at this byte.
    pub(super) fn own<T>(&self, at: usize) -> DevicePtr<T> {
        self.rank_ptrs(at)[self.rank]
    }

    /// That part of each workspace; null past the last rank.
    pub(super) fn rank_ptrs<T>(&self, at: usize) -> [DevicePtr<T>; MAX_WORLD] {
        padded(&self.addresses).map(|address: DevicePtr<u8>| {
            DevicePtr::new(if address.0 == 0 { 0 } else { address.0 + at as u64 })
        })
    }
}

/// All of `ranks`, and null pointers.
pub(super) fn padded<T>(ranks: &[DevicePtr<T>]) -> [DevicePtr<T>; MAX_WORLD] {
    std::array::from_fn(|p| ranks.get(p).copied().unwrap_or(DevicePtr::null()))
}

pub(super) fn check_aligned<T>(
    what: &'static str,
    address: DevicePtr<T>,
) -> Result<(), LaunchError> {
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
        use all_reduce_one_shot::{Args, Instance};
        let is_right = |i: Instance| i.world() == ranks.world() && i.e() == TypeId::of::<E>();
        let instance = Instance::find(is_right).expect("every world has instances");
        Ok(geometry.map(|geometry| {
            Args {
                rank: ranks.rank as u32,
                num_rows,
                width: self.width as u32,
                x,
                out,
                epochs: ranks.own(parts.one_shot_epochs),
                lines: ranks.rank_ptrs(parts.one_shot_lines),
            }
            .launch(instance, geometry)
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
        self.two_shot_in(MAX_BLOCKS as usize, ranks, num_rows, x)
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
        if !(1..=MAX_BLOCKS as usize).contains(&max_blocks) {
            return shape("blocks", max_blocks, "1 to 128");
        }
        let elems = self.elems()?;
        check_tensors(ranks, x)?;
        let part = elems.div_ceil(VEC_ELEMS as usize).div_ceil(ranks.world());
        let blocks = part.div_ceil(two_shot::NUM_THREADS as usize);
        let blocks = blocks.min(max_blocks);
        let geometry = Geometry::new([blocks, 1, 1], two_shot::NUM_THREADS as usize, 0)?;
        let parts = ranks.workspace.parts();
        use all_reduce_two_shot::{Args, Instance};
        let is_right = |i: Instance| i.world() == ranks.world() && i.e() == TypeId::of::<E>();
        let instance = Instance::find(is_right).expect("every world has instances");
        Ok(geometry.map(|geometry| {
            Args {
                rank: ranks.rank as u32,
                num_rows,
                width: self.width as u32,
                epochs: ranks.own(parts.two_shot_epochs),
                x: padded(x),
                flags: ranks.rank_ptrs(parts.two_shot_flags),
            }
            .launch(instance, geometry)
        }))
    }
}

/// A tensor for each rank, aligned.
pub(super) fn check_tensors<E>(ranks: &Ranks, x: &[DevicePtr<E>]) -> Result<(), LaunchError> {
    if x.len() != ranks.world() {
        return shape("tensors", x.len(), "one for each rank");
    }
    x.iter().try_for_each(|&x| check_aligned("address of a tensor", x))
}
