//! Where the blocks and threads of a launch are: grid, clusters, blocks.

use crate::kernel::Kernel;
use gpu_types::Geometry;

/// Largest block in x, y, z, and threads of a block in all.
const MAX_BLOCK: [usize; 3] = [1024, 1024, 64];
const MAX_THREADS: usize = 1024;

/// Most blocks of a cluster that every device with clusters can run.
const MAX_CLUSTER: u32 = 8;

/// Most shared memory of a block: an H200's.
pub(crate) const MAX_SHARED_BYTES: u32 = 227 * 1024;

/// A launch's geometry, divided into the kernel's clusters.
#[derive(Clone, Copy)]
pub(crate) struct Layout {
    pub geometry: Geometry,
    pub cluster: [u32; 3],
    /// The number of its first block, and of its first cluster, among all launches that run together.
    pub first_block: u64,
}

impl Layout {
    /// The layout of a launch whose blocks are numbered from `first_block` on, or why a device would
    /// refuse it.
    pub fn new(kernel: &Kernel, geometry: Geometry, first_block: u64) -> Result<Self, String> {
        let Geometry { grid, block, shared_bytes } = geometry;
        let &Kernel { cluster, max_threads, symbol } = kernel;
        let layout = Layout { geometry, cluster, first_block };
        for (what, shape, limits) in
            [("grid", grid, Geometry::MAX_GRID), ("block", block, MAX_BLOCK)]
        {
            let is_over = |(&size, &limit): (&u32, &usize)| size as usize > limit;
            if shape.contains(&0) || shape.iter().zip(&limits).any(is_over) {
                return Err(format!("a {what} of {shape:?}: from 1 to {limits:?} are possible"));
            }
        }
        let threads = layout.threads_per_block();
        if threads > MAX_THREADS {
            return Err(format!(
                "a block of {block:?} threads: at most {MAX_THREADS} are possible"
            ));
        }
        if threads > max_threads as usize {
            return Err(format!(
                "a block of {block:?} threads, {threads} in all: `{symbol}` is compiled for at \
                 most {max_threads}, launch smaller blocks or raise its launch_bounds"
            ));
        }
        let blocks = cluster.iter().try_fold(1_u32, |blocks, &size| blocks.checked_mul(size));
        if !blocks.is_some_and(|blocks| (1..=MAX_CLUSTER).contains(&blocks)) {
            return Err(format!(
                "a cluster of {cluster:?} blocks: 1 to {MAX_CLUSTER} are possible"
            ));
        }
        if grid.iter().zip(&cluster).any(|(grid, &cluster)| !grid.is_multiple_of(cluster)) {
            return Err(format!(
                "a grid of {grid:?} blocks is no multiple of the kernel's clusters of {cluster:?}"
            ));
        }
        if shared_bytes > MAX_SHARED_BYTES {
            return Err(format!(
                "{shared_bytes} bytes of shared memory: a block has at most {MAX_SHARED_BYTES}"
            ));
        }
        Ok(layout)
    }

    /// Threads of a block.
    pub fn threads_per_block(&self) -> usize {
        self.geometry.block.iter().map(|&size| size as usize).product()
    }

    /// Blocks of the grid.
    pub fn num_blocks(&self) -> u64 {
        self.geometry.grid.iter().map(|&size| u64::from(size)).product()
    }

    /// Blocks of a cluster.
    pub fn blocks_per_cluster(&self) -> usize {
        self.cluster.iter().map(|&size| size as usize).product()
    }

    /// Clusters of the grid.
    pub fn num_clusters(&self) -> u64 {
        self.num_blocks() / self.blocks_per_cluster() as u64
    }

    /// Number of the block of rank `rank` in cluster `cluster`.
    pub fn block_of_cluster(&self, cluster: u64, rank: usize) -> u64 {
        let clusters = [0, 1, 2].map(|axis| self.geometry.grid[axis] / self.cluster[axis]);
        let cluster = unravel(cluster - self.first_block, clusters);
        let rank = unravel(rank as u64, self.cluster);
        let [x, y, z] =
            [0, 1, 2].map(|axis| u64::from(cluster[axis] * self.cluster[axis] + rank[axis]));
        let [grid_x, grid_y, _] = self.geometry.grid.map(u64::from);
        self.first_block + x + grid_x * (y + grid_y * z)
    }

    /// Index in its cluster of the block of number `block`.
    pub fn cluster_block_idx(&self, block: u64) -> [u32; 3] {
        let index = self.block_idx(block);
        [0, 1, 2].map(|axis| index[axis] % self.cluster[axis])
    }

    /// Number of the cluster of the block of number `block`.
    pub fn cluster_of(&self, block: u64) -> u64 {
        let index = self.block_idx(block);
        let [x, y, z] = [0, 1, 2].map(|axis| u64::from(index[axis] / self.cluster[axis]));
        let [clusters_x, clusters_y, _] =
            [0, 1, 2].map(|axis| u64::from(self.geometry.grid[axis] / self.cluster[axis]));
        self.first_block + x + clusters_x * (y + clusters_y * z)
    }

    /// Rank in its cluster of the block of number `block`.
    pub fn cluster_rank(&self, block: u64) -> u32 {
        let [x, y, z] = self.cluster_block_idx(block);
        x + self.cluster[0] * (y + self.cluster[1] * z)
    }

    /// Index in the grid of the block of number `block`.
    pub fn block_idx(&self, block: u64) -> [u32; 3] {
        unravel(block - self.first_block, self.geometry.grid)
    }

    /// Index in its block of the thread with linear index `thread`.
    pub fn thread_idx(&self, thread: usize) -> [u32; 3] {
        unravel(thread as u64, self.geometry.block)
    }
}

/// The coordinates of linear index `index`; x varies fastest.
fn unravel(index: u64, [x, y, _]: [u32; 3]) -> [u32; 3] {
    let (x, y) = (u64::from(x), u64::from(y));
    [(index % x) as u32, (index / x % y) as u32, (index / x / y) as u32]
}
