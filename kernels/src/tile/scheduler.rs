//! The tile scheduler of persistent kernels: which output tiles a block computes, in which order.

/// Iterates over the tiles of one worker, a block or a cluster, of the grid.
///
/// Tiles are numbered in groups of `group_m` tile rows, column by column within a group, so that
/// the tiles in flight form nearly a square and their operands stay in L2.
#[derive(Clone, Copy)]
pub struct TileScheduler {
    tiles_m: u32,
    tiles_n: u32,
    group_m: u32,
    next: u32,
    num_workers: u32,
}

impl TileScheduler {
    /// Tiles `worker`, `worker + num_workers`, ... of `tiles_m * tiles_n`, which is below 2^31.
    #[inline(always)]
    pub fn new([tiles_m, tiles_n]: [u32; 2], group_m: u32, worker: u32, num_workers: u32) -> Self {
        TileScheduler { tiles_m, tiles_n, group_m, next: worker, num_workers }
    }

    /// Row and column of tile `tile_idx`.
    #[inline(always)]
    fn place(&self, tile_idx: u32) -> [u32; 2] {
        let group_tiles = self.group_m * self.tiles_n;
        // Never 0 where there is a tile; `max` tells the compiler.
        let group_idx = tile_idx / group_tiles.max(1);
        let first_m = group_idx * self.group_m;
        let rows = (self.tiles_m - first_m).min(self.group_m);
        let tile_in_group = tile_idx - group_idx * group_tiles;
        let tile_n = tile_in_group / rows.max(1);
        [first_m + tile_in_group - tile_n * rows, tile_n]
    }
}

impl Iterator for TileScheduler {
    type Item = [u32; 2];

    /// Row and column of the next tile.
    #[inline(always)]
    fn next(&mut self) -> Option<[u32; 2]> {
        if self.next >= self.tiles_m * self.tiles_n {
            return None;
        }
        let place = self.place(self.next);
        self.next += self.num_workers;
        Some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::TileScheduler;

    /// The tiles of all workers, round by round.
    fn order(tiles: [u32; 2], group_m: u32, num_workers: u32) -> Vec<[u32; 2]> {
        let mut workers: Vec<_> = (0..num_workers)
            .map(|worker| TileScheduler::new(tiles, group_m, worker, num_workers))
            .collect();
        let mut order = Vec::new();
        loop {
            let round: Vec<_> = workers.iter_mut().filter_map(Iterator::next).collect();
            if round.is_empty() {
                return order;
            }
            order.extend(round);
        }
    }

    #[test]
    fn every_tile_is_computed_once() {
        for (tiles, group_m, num_workers) in
            [([5, 7], 2, 3), ([1, 9], 4, 20), ([8, 1], 8, 1), ([3, 3], 1, 2), ([0, 4], 2, 2)]
        {
            let mut got = order(tiles, group_m, num_workers);
            got.sort_unstable();
            let [tiles_m, tiles_n] = tiles;
            let all: Vec<_> =
                (0..tiles_m).flat_map(|m| (0..tiles_n).map(move |n| [m, n])).collect();
            assert_eq!(got, all);
        }
    }

    #[test]
    fn groups_of_rows_go_by_columns() {
        let want =
            [[0, 0], [1, 0], [0, 1], [1, 1], [0, 2], [1, 2], [2, 0], [2, 1], [2, 2]].to_vec();
        assert_eq!(order([3, 3], 2, 4), want);
    }
}
