//! Weights on their way to a warp by TMA: a ring of its own in shared memory.
//!
//! A stage holds a line of k, 64 columns, of a tile of columns: rows of the weight, and behind them
//! those of x, in boxes of 128-byte rows, one box right behind the other. TMA swizzles them by their
//! addresses, so that rows have their loads in other places by their number in the stage. One lane
//! asks for the boxes of a stage, and for the next ones as soon as all lanes have read them. So a
//! warp waits for nothing but its own bytes: there is no producer, and no barrier that tells it of
//! an empty stage. The first weights the lanes may copy themselves, see [`box_copy`].

use super::mainloop::{LINE_K, LOAD_K, Load, STEP_K, TILE, TileOrder};
use super::mainloop::{lane_group, lane_pair};
use crate::tile::box_copy::{self, Team, Weight};
use cuda_std::bulk::{self, CacheHint};
use cuda_std::prelude::*;

/// Bytes of a box's row.
const ROW_BYTES: u32 = LINE_K * size_of::<u16>() as u32;

/// What the stages of a launch hold.
#[derive(Clone, Copy)]
pub struct Boxes {
    /// The weight, as it is and as TMA takes it.
    pub weight: Weight,
    pub weight_map: TensorMap,
    /// Rows of it in a box: columns of a tile.
    pub tile_columns: u32,
    /// Boxes of it: one, or gate's and up's.
    pub num_parts: u32,
    /// Rows from a part to the next: columns of the output.
    pub n: u32,
    /// x, if its rows are in the stages.
    pub x: TensorMap,
    /// Rows of x in a box; 0 if they are elsewhere.
    pub x_rows: u32,
}

impl Boxes {
    /// The first row of x in a stage.
    const fn first_x_row(&self) -> u32 {
        self.num_parts * self.tile_columns
    }

    /// Elements of a stage: whole tiles, for the swizzle to be the same in all stages.
    pub const fn stage_elems(&self) -> u32 {
        stage_rows(self.first_x_row() + self.x_rows) * LINE_K
    }

    const fn stage_bytes(&self) -> u32 {
        (self.first_x_row() + self.x_rows) * ROW_BYTES
    }
}

/// Rows that a stage of `rows` rows takes.
pub const fn stage_rows(rows: u32) -> u32 {
    rows.next_multiple_of(TILE)
}

/// Whether the lane is the one that asks for boxes. ptxas does not know that it is one alone, and writes a
/// loop over lanes around each box and barrier; an elected lane (`elect.sync`) has none of these loops, and is
/// no faster: on an H200 8 rows of 1152 x 896 take 2.65 us so and 2.70, 32 rows of 9728 x 896 8.44 and 8.08. (In CUDA C
/// a warp's eight boxes and barriers are asked for in 800 cycles by lane 0, in 450 by an elected lane, as a loop, in 550
/// and 250 written out; 16 barriers are made in 1,400 and 490.)
#[inline(always)]
fn is_asker() -> bool {
    warp::lane_id() == 0
}

/// A line of a tile.
#[derive(Clone, Copy)]
struct Line {
    /// First column of the tile; no line of the warp's if it is `n` or more.
    column: u32,
    /// First element along k.
    k: u32,
}

impl Line {
    /// The warp's first one of `k` columns.
    #[inline(always)]
    fn first(boxes: &Boxes, k: u32) -> Self {
        let first_k = warp::warp_idx() * LINE_K;
        let column = if first_k < k { thread::block_idx_x() * boxes.tile_columns } else { boxes.n };
        Line { column, k: first_k }
    }
}

/// The ring of a warp, of `WARPS` that share k.
pub struct Ring<const WARPS: usize> {
    boxes: Boxes,
    k: u32,
    stages: Shared<u16>,
    /// Of the first stage.
    full_barrier: Mbarrier,
    num_stages: u32,
    /// The line that the next boxes are of.
    next: Line,
    /// The stage to be read, and the parity of its phase.
    stage_idx: u32,
    phase: u32,
}

impl<const WARPS: usize> Ring<WARPS> {
    /// Elements of the rings of all warps.
    pub const fn num_elems(boxes: &Boxes, num_stages: u32) -> u32 {
        WARPS as u32 * num_stages * boxes.stage_elems()
    }

    /// `u64`s of their barriers.
    pub const fn num_words(num_stages: u32) -> u32 {
        WARPS as u32 * num_stages
    }

    /// The warp's ring, for the tiles of the block.
    ///
    /// # Safety
    /// 1. `stages` and `barriers` are [`Ring::num_elems`] and [`Ring::num_words`] that belong to the
    ///    rings of the block alone, the stages aligned to 1024 bytes.
    #[inline(always)]
    pub unsafe fn new(
        boxes: Boxes,
        k: u32,
        stages: Shared<u16>,
        barriers: Shared<u64>,
        num_stages: u32,
    ) -> Self {
        let first_stage = warp::warp_idx() * num_stages;
        Ring {
            boxes,
            k,
            stages: stages.offset(first_stage * boxes.stage_elems()),
            // SAFETY: the caller's promise; `start` and `fill` make the barriers.
            full_barrier: unsafe { Mbarrier::new(barriers.offset(first_stage)) },
            num_stages,
            next: Line::first(&boxes, k),
            stage_idx: 0,
            phase: 0,
        }
    }

    /// Asks for the weights of the first `num_ahead` stages, if there are as many lines: nothing that a
    /// launch before this one writes. The lanes copy those of the first `num_copied`, at most as many, TMA
    /// the others. [`Ring::fill`] goes on.
    ///
    /// # Safety
    /// 1. `boxes.weight_map` and `boxes.x` are maps of boxes as they say, and `boxes.weight` is the weight.
    #[inline(always)]
    pub unsafe fn start(&mut self, num_copied: u32, num_ahead: u32) {
        for stage_idx in 0..num_copied {
            if self.next.column < self.boxes.n {
                // SAFETY: the caller's promise; nobody has used the stage.
                unsafe { self.copy_weights(stage_idx, self.next) };
                if is_asker() {
                    self.open(stage_idx).arrive_expect_tx(self.boxes.x_rows * ROW_BYTES);
                }
                self.next = self.behind(self.next);
            }
        }
        box_copy::end_copies();
        for stage_idx in num_copied..num_ahead {
            if self.next.column < self.boxes.n {
                if is_asker() {
                    // SAFETY: the caller's promise; nobody has used the stage.
                    unsafe { self.load_weights(self.open(stage_idx), stage_idx, self.next) };
                }
                self.next = self.behind(self.next);
            }
        }
        if self.boxes.x_rows > 0 && is_asker() {
            // Its boxes are asked for when others are waited for no longer. (Before those of the weights, which
            // then wait for it: on an H200 32 rows of 1152 x 896 3.20 us for 3.11.)
            self.boxes.x.prefetch();
        }
    }

    /// Waits for the lanes' copies, which the first stages hold.
    #[inline(always)]
    pub fn wait_for_copies(&self) {
        box_copy::wait_for_copies();
        warp::sync_warp();
    }

    /// Asks for all else of the ring: stage by stage, x of the first `num_ahead`, and both of the
    /// others. Gives the number of stages that are under way.
    ///
    /// # Safety
    /// As [`Ring::start`], once behind it with its `num_ahead`; what wrote x has ended.
    #[inline(always)]
    pub unsafe fn fill(&mut self, num_ahead: u32) -> u32 {
        let mut line = Line::first(&self.boxes, self.k);
        let mut stage_idx = 0;
        while stage_idx < self.num_stages && line.column < self.boxes.n {
            if is_asker() {
                // SAFETY: the caller's promise.
                unsafe {
                    if stage_idx >= num_ahead {
                        self.load_weights(self.open(stage_idx), stage_idx, line);
                    }
                    self.load_x(stage_idx, line);
                }
            }
            line = self.behind(line);
            stage_idx += 1;
        }
        self.next = line;
        // The other lanes wait at the barriers.
        warp::sync_warp();
        stage_idx
    }

    /// Makes the barrier of a stage, with the first weights that come into it: a loop over the barriers
    /// alone ptxas writes out 32 times, more instructions than all else of the kernel. One lane calls this.
    #[inline(always)]
    fn open(&self, stage_idx: u32) -> Mbarrier {
        let full_barrier = self.full_barrier.offset(stage_idx);
        full_barrier.init(1);
        fence::mbarrier_init();
        full_barrier
    }

    /// Waits for the first `num_stages`, which are under way, where nobody reads them: a block must
    /// not end before.
    #[inline(always)]
    pub fn drain(&self, num_stages: u32) {
        self.wait_for_copies();
        for stage_idx in 0..num_stages {
            self.full_barrier.offset(stage_idx).wait(0);
        }
    }

    /// The warp's line behind `line`.
    #[inline(always)]
    fn behind(&self, line: Line) -> Line {
        let k = line.k + WARPS as u32 * LINE_K;
        if k < self.k {
            return Line { k, ..line };
        }
        let column = line.column + thread::grid_dim_x() * self.boxes.tile_columns;
        Line { column, k: warp::warp_idx() * LINE_K }
    }

    #[inline(always)]
    fn stage(&self, stage_idx: u32) -> Shared<u16> {
        self.stages.offset(stage_idx * self.boxes.stage_elems())
    }

    /// Starts the lane's copies of the weights of `line`.
    ///
    /// # Safety
    /// 1. The stage is empty, and all lanes call this.
    #[inline(always)]
    unsafe fn copy_weights(&self, stage_idx: u32, Line { column, k }: Line) {
        let Boxes { weight, tile_columns, num_parts, n, .. } = self.boxes;
        let team = Team { num_threads: warp::WARP_SIZE, thread: warp::lane_id() };
        for part in 0..num_parts {
            let origin = [k, column + part * n];
            let (stage, to) = (self.stage(stage_idx), part * tile_columns);
            // SAFETY: the caller's promise.
            unsafe { weight.copy_box(team, origin, tile_columns, stage, to) };
        }
    }

    /// Asks for the weights of `line`, whose barrier is `full_barrier`.
    ///
    /// # Safety
    /// 1. The stage is empty, and one lane calls this.
    #[inline(always)]
    unsafe fn load_weights(
        &self,
        full_barrier: Mbarrier,
        stage_idx: u32,
        Line { column, k }: Line,
    ) {
        let Boxes { weight_map, tile_columns, num_parts, n, .. } = self.boxes;
        full_barrier.arrive_expect_tx(self.boxes.stage_bytes());
        for part in 0..num_parts {
            let rows = self.stage(stage_idx).offset(part * tile_columns * LINE_K);
            let origin = [k as i32, (column + part * n) as i32];
            // SAFETY: the caller's promise. Weights are read once.
            unsafe {
                bulk::tensor_load(rows, weight_map, origin, full_barrier, CacheHint::EvictFirst)
            };
        }
    }

    /// Asks for the columns of x that belong to `line`, if they come into the stages.
    ///
    /// # Safety
    /// 1. As [`Ring::load_weights`], and x is there.
    #[inline(always)]
    unsafe fn load_x(&self, stage_idx: u32, Line { k, .. }: Line) {
        if self.boxes.x_rows > 0 {
            let rows = self.stage(stage_idx).offset(self.boxes.first_x_row() * LINE_K);
            let (x, full_barrier) = (self.boxes.x, self.full_barrier.offset(stage_idx));
            // SAFETY: the caller's promise. All blocks read x.
            unsafe {
                bulk::tensor_load(rows, x, [k as i32, 0], full_barrier, CacheHint::EvictLast);
            }
        }
    }

    /// Waits until the boxes of the next line have come.
    #[inline(always)]
    pub fn wait(&self) {
        self.full_barrier.offset(self.stage_idx).wait(self.phase);
    }

    /// Fills the stage that the warp has read, and goes on to the next one.
    ///
    /// # Safety
    /// 1. As [`Ring::start`]; all lanes call this, and read the stage no more.
    #[inline(always)]
    pub unsafe fn release(&mut self) {
        warp::sync_warp();
        if self.next.column < self.boxes.n {
            if is_asker() {
                // SAFETY: all lanes are here: the stage is empty.
                unsafe {
                    let full_barrier = self.full_barrier.offset(self.stage_idx);
                    self.load_weights(full_barrier, self.stage_idx, self.next);
                    self.load_x(self.stage_idx, self.next);
                }
            }
            self.next = self.behind(self.next);
        }
        self.stage_idx += 1;
        if self.stage_idx == self.num_stages {
            (self.stage_idx, self.phase) = (0, self.phase ^ 1);
        }
    }

    /// The lane's words of a load of the stage, in step `step`, 0 or 1.
    ///
    /// # Safety
    /// 1. The stage is full, and has the load.
    #[inline(always)]
    pub unsafe fn load(&self, load: LaneLoad, step: u32) -> Load {
        let words = self.stage(self.stage_idx).offset(load.0).xor(step * STEP_K).cast::<u32>();
        // SAFETY: the caller's promise.
        unsafe { words.get_vec(0) }
    }
}

/// Where a lane's load of a box is in a stage, in elements.
#[derive(Clone, Copy)]
pub struct LaneLoad(u32);

impl LaneLoad {
    /// That of tile `tile` of a box of `rows` rows, the first of which is row `first_row` of the
    /// stage. In place of a row that there is none of, a lane takes one that is in the same banks, or
    /// the one of its neighbours: nobody stores its sums.
    #[inline(always)]
    fn new(first_row: u32, rows: u32, tile: u32) -> Self {
        let in_tile = TileOrder::Swizzled.row_of(lane_group());
        let or = |row: u32, other: u32| if row < rows { row } else { other };
        let row = or(tile * TILE + in_tile, or(in_tile, or(in_tile % 4, 0)));
        let row = first_row + row;
        LaneLoad(row * LINE_K + (lane_pair() ^ (row % TILE)) * LOAD_K)
    }
}

/// A lane's loads of a stage.
pub struct LaneLoads<const TILES_M: usize, const TILES_N: usize> {
    /// Of x.
    pub x: [LaneLoad; TILES_M],
    /// Of the weights: gate's tiles come first.
    pub weights: [LaneLoad; TILES_N],
}

impl<const TILES_M: usize, const TILES_N: usize> LaneLoads<TILES_M, TILES_N> {
    /// The loads where `num_rows` rows of x are written.
    #[inline(always)]
    pub fn new(boxes: &Boxes, num_rows: u32) -> Self {
        let &Boxes { tile_columns, num_parts, .. } = boxes;
        let part_tiles = TILES_N as u32 / num_parts;
        let (mut x, mut weights) = ([LaneLoad(0); TILES_M], [LaneLoad(0); TILES_N]);
        for tile in 0..TILES_M {
            x[tile] = LaneLoad::new(boxes.first_x_row(), num_rows, tile as u32);
        }
        for tile in 0..TILES_N as u32 {
            let (part, in_part) = (tile / part_tiles, tile % part_tiles);
            weights[tile as usize] = LaneLoad::new(part * tile_columns, tile_columns, in_part);
        }
        LaneLoads { x, weights }
    }
}
