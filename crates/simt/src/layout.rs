//! The shape of a launch, and where its threads stand in it.

use crate::fault::Party;
use std::panic::Location;

/// Grid, block and dynamic shared memory of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z.
    pub block: [u32; 3],
    /// Blocks of a cluster in x, y, z; `[1, 1, 1]` for none.
    pub cluster: [u32; 3],
    /// Dynamic shared memory of a block.
    pub shared_bytes: u32,
}

/// Largest grid in x, y, z; every CUDA device has these limits.
const MAX_GRID: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];

/// Largest block in x, y, z, and in all.
const MAX_BLOCK: [u32; 3] = [1024, 1024, 64];
const MAX_THREADS: u64 = 1024;

/// Most blocks of a cluster that every device with clusters can run.
const MAX_CLUSTER: u32 = 8;

/// Most shared memory of a block: an H200's.
pub(crate) const MAX_SHARED_BYTES: u32 = 227 * 1024;

impl Geometry {
    /// Why a device would refuse the launch.
    pub(crate) fn check(&self) -> Result<(), String> {
        let Geometry { grid, block, cluster, shared_bytes } = *self;
        for (what, shape, limits) in [("grid", grid, MAX_GRID), ("block", block, MAX_BLOCK)] {
            if shape.contains(&0) || shape.iter().zip(&limits).any(|(size, limit)| size > limit) {
                return Err(format!("a {what} of {shape:?}: from 1 to {limits:?} are possible"));
            }
        }
        if self.threads_per_block() as u64 > MAX_THREADS {
            return Err(format!(
                "a block of {block:?} threads: at most {MAX_THREADS} are possible"
            ));
        }
        let blocks = cluster.iter().try_fold(1_u32, |blocks, &size| blocks.checked_mul(size));
        if !blocks.is_some_and(|blocks| (1..=MAX_CLUSTER).contains(&blocks)) {
            return Err(format!(
                "a cluster of {cluster:?} blocks: 1 to {MAX_CLUSTER} are possible"
            ));
        }
        if grid.iter().zip(&cluster).any(|(grid, &cluster)| !grid.is_multiple_of(cluster)) {
            return Err(format!("a grid of {grid:?} is not made of clusters of {cluster:?}"));
        }
        if shared_bytes > MAX_SHARED_BYTES {
            return Err(format!(
                "{shared_bytes} bytes of shared memory: a block has at most {MAX_SHARED_BYTES}"
            ));
        }
        Ok(())
    }

    /// Threads of a block.
    pub(crate) fn threads_per_block(&self) -> usize {
        self.block.iter().map(|&size| size as usize).product()
    }

    /// Blocks of the grid.
    pub(crate) fn num_blocks(&self) -> u64 {
        self.grid.iter().map(|&size| u64::from(size)).product()
    }

    /// Blocks of a cluster.
    pub(crate) fn blocks_per_cluster(&self) -> usize {
        self.cluster.iter().map(|&size| size as usize).product()
    }

    /// Clusters of the grid.
    pub(crate) fn num_clusters(&self) -> u64 {
        self.num_blocks() / self.blocks_per_cluster() as u64
    }

    /// The block, counted through the grid, of number `rank` in the cluster that is counted
    /// `cluster`th.
    pub(crate) fn block_of_cluster(&self, cluster: u64, rank: usize) -> u64 {
        let clusters = [0, 1, 2].map(|axis| self.grid[axis] / self.cluster[axis]);
        let (cluster, rank) = (unravel(cluster, clusters), unravel(rank as u64, self.cluster));
        let [x, y, z] =
            [0, 1, 2].map(|axis| u64::from(cluster[axis] * self.cluster[axis] + rank[axis]));
        let [grid_x, grid_y, _] = self.grid.map(u64::from);
        x + grid_x * (y + grid_y * z)
    }

    /// Index in its cluster of the block that is counted `block`th.
    pub(crate) fn cluster_block_idx(&self, block: u64) -> [u32; 3] {
        let index = self.block_idx(block);
        [0, 1, 2].map(|axis| index[axis] % self.cluster[axis])
    }

    /// The cluster, counted through the grid, of the block that is counted `block`th.
    pub(crate) fn cluster_of(&self, block: u64) -> u64 {
        let index = self.block_idx(block);
        let [x, y, z] = [0, 1, 2].map(|axis| u64::from(index[axis] / self.cluster[axis]));
        let [clusters_x, clusters_y, _] =
            [0, 1, 2].map(|axis| u64::from(self.grid[axis] / self.cluster[axis]));
        x + clusters_x * (y + clusters_y * z)
    }

    /// The number in its cluster of the block that is counted `block`th.
    pub(crate) fn cluster_rank(&self, block: u64) -> u32 {
        let [x, y, z] = self.cluster_block_idx(block);
        x + self.cluster[0] * (y + self.cluster[1] * z)
    }

    /// Index in the grid of the block that is counted `block`th.
    pub(crate) fn block_idx(&self, block: u64) -> [u32; 3] {
        unravel(block, self.grid)
    }

    /// Index in its block of the thread that is counted `thread`th there.
    pub(crate) fn thread_idx(&self, thread: usize) -> [u32; 3] {
        unravel(thread as u64, self.block)
    }

    /// The thread that is counted `thread`th in the block that is counted `block`th.
    pub(crate) fn party(&self, (block, thread): (u64, usize), location: &Location<'_>) -> Party {
        Party {
            block: self.block_idx(block),
            thread: self.thread_idx(thread),
            location: location.to_string(),
        }
    }
}

/// The coordinates of the element counted `index`th, x first.
fn unravel(index: u64, [x, y, _]: [u32; 3]) -> [u32; 3] {
    let (x, y) = (u64::from(x), u64::from(y));
    [(index % x) as u32, (index / x % y) as u32, (index / x / y) as u32]
}
