//! A warp's ring of stages in shared memory, filled by TMA.
//!
//! A stage holds one k-tile of an output tile: rows of the weight, then rows of x, in TMA boxes of
//! 128-byte rows without gaps. TMA swizzles by address, so a row's swizzle follows from its number
//! in the stage. Each warp has its own ring: one lane issues the boxes of a stage, and reissues as
//! soon as all lanes have read it. There is no producer warp and no empty barrier; a warp waits
//! only for its own bytes. The lanes may copy the first weights themselves, see [`box_copy`].
//!
//! For a weight in 8 bits a k-tile has twice as many elements, and as many bytes of x as of 16 rows
//! of the weight: x stays in shared memory. Its boxes come with the stages of the block's first
//! output tile.

use crate::gemm::mainloop::stream::{
    LOAD_WORDS, Load, STEP_K, TILE_K, TILE_MN, TileOrder, lane_group, lane_pair,
};
use crate::tile::box_copy::{self, CopyThreads, Weight};
use crate::tile::smem::swizzle;
use cuda_std::bulk::{self, CacheHint};
use cuda_std::prelude::*;

/// Bytes of a row of a box.
const ROW_BYTES: u32 = TILE_K * size_of::<u16>() as u32;

/// The TMA boxes of a stage.
#[derive(Clone, Copy)]
pub struct Boxes {
    /// The weight, for copies by the lanes.
    pub weight: Weight,
    /// The weight, for TMA.
    pub weight_map: TensorMap,
    /// Rows of a weight box: columns of an output tile.
    pub tile_columns: u32,
    /// Weight boxes of a stage: one, or one of gate and one of up.
    pub num_parts: u32,
    /// Columns of the output; up starts at this row of the weight.
    pub n: u32,
    /// x, for TMA, if it has boxes.
    pub x: TensorMap,
    /// Rows of an x box; 0 if x has none.
    pub x_rows: u32,
    /// Where boxes of x are.
    pub x_place: XPlace,
}

/// Where boxes of x are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum XPlace {
    /// In the stages.
    Stages,
    /// After them, two boxes of `box_rows` rows a k-tile of a weight of `k` units.
    Resident { box_rows: u32, k: u32 },
}

/// Boxes of x of a k-tile where x is resident: the weight is in 8 bits.
const RESIDENT_BOXES: u32 = 2;

/// Elements of resident x, in boxes of `box_rows` rows, for a weight of `k` units.
pub const fn resident_elems(box_rows: u32, k: u32) -> u32 {
    k.div_ceil(TILE_K) * RESIDENT_BOXES * box_rows * TILE_K
}

impl Boxes {
    /// The first row of x in a stage.
    const fn first_x_row(&self) -> u32 {
        self.num_parts * self.tile_columns
    }

    /// Elements of a stage: a multiple of eight rows, so that all stages have the same swizzle.
    pub const fn stage_elems(&self) -> u32 {
        let x_rows = match self.x_place {
            XPlace::Stages => self.x_rows,
            XPlace::Resident { .. } => 0,
        };
        stage_rows(self.first_x_row() + x_rows) * TILE_K
    }

    /// Elements of x that is not in the stages.
    const fn resident_elems(&self) -> u32 {
        match self.x_place {
            XPlace::Stages => 0,
            XPlace::Resident { box_rows, k } => resident_elems(box_rows, k),
        }
    }

    /// Bytes of x that come with a k-tile of the output tile at `column`.
    #[inline(always)]
    fn x_bytes(&self, column: u32) -> u32 {
        match self.x_place {
            XPlace::Stages => self.x_rows * ROW_BYTES,
            XPlace::Resident { .. } if self.is_first(column) => {
                RESIDENT_BOXES * self.x_rows * ROW_BYTES
            }
            XPlace::Resident { .. } => 0,
        }
    }

    /// Whether the output tile at `column` is the block's first.
    #[inline(always)]
    fn is_first(&self, column: u32) -> bool {
        column == thread::block_idx_x() * self.tile_columns
    }
}

/// Rows of a stage with boxes of `rows` rows in all.
pub const fn stage_rows(rows: u32) -> u32 {
    rows.next_multiple_of(TILE_MN)
}

/// Whether this lane issues the boxes. `elect.sync` would save a loop over lanes that ptxas writes
/// around each box, and is no faster (`docs/measurements/gemm_small_m.md`).
#[inline(always)]
fn is_issuer() -> bool {
    warp::lane_id() == 0
}

/// A k-tile of an output tile.
#[derive(Clone, Copy)]
struct KTile {
    /// First column of the output tile; `n` or more past the warp's last k-tile.
    column: u32,
    /// First element along k.
    k: u32,
}

impl KTile {
    /// The warp's first k-tile.
    #[inline(always)]
    fn first(boxes: &Boxes, k: u32) -> Self {
        let first_k = warp::warp_idx() * TILE_K;
        let column = if first_k < k { thread::block_idx_x() * boxes.tile_columns } else { boxes.n };
        KTile { column, k: first_k }
    }
}

/// The ring of one of the `WARPS` warps that split k.
pub struct Ring<const WARPS: usize> {
    boxes: Boxes,
    k: u32,
    stages: Shared<u16>,
    /// x, if it is resident.
    x: Shared<u16>,
    /// Full barrier of stage 0; those of the other stages follow.
    full_barrier: Mbarrier,
    num_stages: u32,
    /// The k-tile to issue next.
    next: KTile,
    /// The stage to read next, and its phase parity.
    stage_idx: u32,
    phase: u32,
}

impl<const WARPS: usize> Ring<WARPS> {
    /// Elements of the rings of all warps.
    const fn num_stage_elems(boxes: &Boxes, num_stages: u32) -> u32 {
        WARPS as u32 * num_stages * boxes.stage_elems()
    }

    /// Elements of the rings of all warps, and of x that is resident.
    pub const fn num_elems(boxes: &Boxes, num_stages: u32) -> u32 {
        Self::num_stage_elems(boxes, num_stages) + boxes.resident_elems()
    }

    /// Barriers of the rings of all warps, in `u64`s.
    pub const fn num_words(num_stages: u32) -> u32 {
        WARPS as u32 * num_stages
    }

    /// The warp's ring, at the first k-tile of the block's output tiles.
    ///
    /// # Safety
    /// 1. `stages` and `barriers` hold [`Ring::num_elems`] and [`Ring::num_words`], and only the
    ///    rings of the block use them; `stages` is aligned to 1024 bytes.
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
            x: stages.offset(Self::num_stage_elems(&boxes, num_stages)),
            // SAFETY: the caller's promise; `prefetch_weights` and `fill` initialise the barriers.
            full_barrier: unsafe { Mbarrier::new(barriers.offset(first_stage)) },
            num_stages,
            next: KTile::first(&boxes, k),
            stage_idx: 0,
            phase: 0,
        }
    }

    /// Issues the weights of the first `num_ahead` stages, as far as there are k-tiles; the
    /// previous launch may still run. The lanes copy the first `num_copied` stages (at most
    /// `num_ahead`), TMA loads the others. Call [`Ring::fill`] next.
    ///
    /// # Safety
    /// 1. `boxes.weight_map` and `boxes.x` are maps with the boxes that `boxes` describes;
    ///    `boxes.weight` is the weight.
    #[inline(always)]
    pub unsafe fn prefetch_weights(&mut self, num_copied: u32, num_ahead: u32) {
        for stage_idx in 0..num_copied {
            if self.next.column < self.boxes.n {
                // SAFETY: the caller's promise; the stage is unused.
                unsafe { self.copy_weights(stage_idx, self.next) };
                if is_issuer() {
                    let x_bytes = self.boxes.x_bytes(self.next.column);
                    self.init_barrier(stage_idx).arrive_expect_tx(x_bytes);
                }
                self.next = self.next_k_tile(self.next);
            }
        }
        box_copy::end_copies();
        for stage_idx in num_copied..num_ahead {
            if self.next.column < self.boxes.n {
                if is_issuer() {
                    let full_barrier = self.init_barrier(stage_idx);
                    // SAFETY: the caller's promise; the stage is unused.
                    unsafe { self.load_weights(full_barrier, stage_idx, self.next) };
                }
                self.next = self.next_k_tile(self.next);
            }
        }
        if self.boxes.x_rows > 0 && is_issuer() {
            // Not earlier: the weights' boxes would wait for this map.
            self.boxes.x.prefetch();
        }
    }

    /// Waits for the lanes' copies of the first stages.
    #[inline(always)]
    pub fn wait_for_copies(&self) {
        box_copy::wait_for_copies();
        warp::sync_warp();
    }

    /// Issues the rest of the ring, stage by stage: x of the first `num_ahead`, x and the weights
    /// of the others. Returns how many stages are in flight.
    ///
    /// # Safety
    /// As [`Ring::prefetch_weights`], which was called once with the same `num_ahead`; the launch
    /// that writes x has ended.
    #[inline(always)]
    pub unsafe fn fill(&mut self, num_ahead: u32) -> u32 {
        let mut k_tile = KTile::first(&self.boxes, self.k);
        let mut stage_idx = 0;
        while stage_idx < self.num_stages && k_tile.column < self.boxes.n {
            if is_issuer() {
                // SAFETY: the caller's promise.
                unsafe {
                    if stage_idx >= num_ahead {
                        self.load_weights(self.init_barrier(stage_idx), stage_idx, k_tile);
                    }
                    self.load_x(stage_idx, k_tile);
                }
            }
            k_tile = self.next_k_tile(k_tile);
            stage_idx += 1;
        }
        self.next = k_tile;
        // Other lanes may wait on the barriers only once they are initialised.
        warp::sync_warp();
        stage_idx
    }

    /// Initialises the barrier of a stage, right before its first loads: a loop over the barriers
    /// alone is unrolled by ptxas 32 times, more instructions than the rest of the kernel. One lane
    /// calls this.
    #[inline(always)]
    fn init_barrier(&self, stage_idx: u32) -> Mbarrier {
        let full_barrier = self.full_barrier.offset(stage_idx);
        full_barrier.init(1);
        fence::mbarrier_init();
        full_barrier
    }

    /// Waits for the first `num_stages`, which are in flight, without reading them: a block must
    /// not exit before they have arrived.
    #[inline(always)]
    pub fn drain(&self, num_stages: u32) {
        self.wait_for_copies();
        for stage_idx in 0..num_stages {
            self.full_barrier.offset(stage_idx).wait(0);
        }
    }

    /// The warp's k-tile after `k_tile`.
    #[inline(always)]
    fn next_k_tile(&self, k_tile: KTile) -> KTile {
        let k = k_tile.k + WARPS as u32 * TILE_K;
        if k < self.k {
            return KTile { k, ..k_tile };
        }
        let column = k_tile.column + thread::grid_dim_x() * self.boxes.tile_columns;
        KTile { column, k: warp::warp_idx() * TILE_K }
    }

    #[inline(always)]
    fn stage(&self, stage_idx: u32) -> Shared<u16> {
        self.stages.offset(stage_idx * self.boxes.stage_elems())
    }

    /// Issues the lane's copies of the weights of a k-tile.
    ///
    /// # Safety
    /// 1. The stage is empty, and all lanes call this.
    #[inline(always)]
    unsafe fn copy_weights(&self, stage_idx: u32, KTile { column, k }: KTile) {
        let Boxes { weight, tile_columns, num_parts, n, .. } = self.boxes;
        let threads = CopyThreads { num_threads: warp::WARP_SIZE, thread: warp::lane_id() };
        for part in 0..num_parts {
            let origin = [k, column + part * n];
            let (stage, to) = (self.stage(stage_idx), part * tile_columns);
            // SAFETY: the caller's promise.
            unsafe { weight.copy_box(threads, origin, tile_columns, stage, to) };
        }
    }

    /// Issues the weight boxes of a k-tile, on `full_barrier`.
    ///
    /// # Safety
    /// 1. The stage is empty, and one lane calls this.
    #[inline(always)]
    unsafe fn load_weights(
        &self,
        full_barrier: Mbarrier,
        stage_idx: u32,
        KTile { column, k }: KTile,
    ) {
        let Boxes { weight_map, tile_columns, num_parts, n, .. } = self.boxes;
        let weight_bytes = self.boxes.first_x_row() * ROW_BYTES;
        full_barrier.arrive_expect_tx(weight_bytes + self.boxes.x_bytes(column));
        for part in 0..num_parts {
            let rows = self.stage(stage_idx).offset(part * tile_columns * TILE_K);
            let origin = [k as i32, (column + part * n) as i32];
            // SAFETY: the caller's promise. The weight is read once.
            unsafe {
                bulk::tensor_load(rows, weight_map, origin, full_barrier, CacheHint::EvictFirst)
            };
        }
    }

    /// Issues the x boxes of a k-tile, if there are.
    ///
    /// # Safety
    /// 1. As [`Ring::load_weights`], and x is written.
    #[inline(always)]
    unsafe fn load_x(&self, stage_idx: u32, KTile { column, k }: KTile) {
        let (x, full_barrier) = (self.boxes.x, self.full_barrier.offset(stage_idx));
        if self.boxes.x_bytes(column) == 0 {
            return;
        }
        match self.boxes.x_place {
            XPlace::Stages => {
                let rows = self.stage(stage_idx).offset(self.boxes.first_x_row() * TILE_K);
                // SAFETY: the caller's promise. Every block reads x.
                unsafe {
                    bulk::tensor_load(rows, x, [k as i32, 0], full_barrier, CacheHint::EvictLast);
                }
            }
            XPlace::Resident { box_rows, .. } => {
                for box_idx in 0..RESIDENT_BOXES {
                    // A unit of the weight is two elements.
                    let (k, at) = (2 * k + box_idx * TILE_K, 2 * k / TILE_K + box_idx);
                    let (rows, origin) = (self.x.offset(at * box_rows * TILE_K), [k as i32, 0]);
                    // SAFETY: as above; no box is loaded twice.
                    unsafe {
                        bulk::tensor_load(rows, x, origin, full_barrier, CacheHint::EvictLast);
                    }
                }
            }
        }
    }

    /// Waits until the next stage is full.
    #[inline(always)]
    pub fn wait(&self) {
        self.full_barrier.offset(self.stage_idx).wait(self.phase);
    }

    /// Issues the next k-tile into the stage that the warp has read, and moves to the next stage.
    ///
    /// # Safety
    /// 1. As [`Ring::prefetch_weights`]; all lanes call this, and none reads the stage afterwards.
    #[inline(always)]
    pub unsafe fn release(&mut self) {
        warp::sync_warp();
        if self.next.column < self.boxes.n {
            if is_issuer() {
                // SAFETY: all lanes have passed `sync_warp`: the stage is empty.
                unsafe {
                    let full_barrier = self.full_barrier.offset(self.stage_idx);
                    self.load_weights(full_barrier, self.stage_idx, self.next);
                    self.load_x(self.stage_idx, self.next);
                }
            }
            self.next = self.next_k_tile(self.next);
        }
        self.stage_idx += 1;
        if self.stage_idx == self.num_stages {
            (self.stage_idx, self.phase) = (0, self.phase ^ 1);
        }
    }

    /// The lane's load `load` of the current stage, in k-step `step`, 0 or 1.
    ///
    /// # Safety
    /// 1. The stage is full, and `load` is inside it.
    #[inline(always)]
    pub unsafe fn load(&self, load: LaneLoad, step: u32) -> Load {
        let words = self.stage(self.stage_idx).offset(load.0).xor(step * STEP_K).cast::<u32>();
        // SAFETY: the caller's promise.
        unsafe { words.get_vec(0) }
    }
}

/// A lane's loads of resident x.
#[derive(Clone, Copy)]
pub struct ResidentLoads<const TILES_M: usize>([LaneLoad; TILES_M]);

impl<const TILES_M: usize> ResidentLoads<TILES_M> {
    /// Rows of a box.
    pub const BOX_ROWS: u32 = TILES_M as u32 * TILE_MN;

    /// The loads with `num_rows` rows of x.
    #[inline(always)]
    pub fn new(num_rows: u32) -> Self {
        let mut loads = [LaneLoad(0); TILES_M];
        for tile in 0..TILES_M {
            let group = lane_group();
            let or = |row: u32, other: u32| if row < num_rows { row } else { other };
            // A lane without a row of its own loads one in other banks than its neighbour's.
            let row = or(tile as u32 * TILE_MN + group, or(group, or(group % 2, 0)));
            loads[tile] = LaneLoad(swizzle::<u16, TILE_K>(row, 2 * lane_pair()));
        }
        ResidentLoads(loads)
    }
}

impl<const WARPS: usize> Ring<WARPS> {
    /// The lane's loads of resident x in k-step `step` of the k-tile at `k`, the first or the
    /// second one of each row.
    ///
    /// # Safety
    /// 1. The stage of that k-tile in the block's first output tile has been full.
    #[inline(always)]
    pub unsafe fn load_resident<const TILES_M: usize>(
        &self,
        loads: &ResidentLoads<TILES_M>,
        k: u32,
        step: u32,
        vec: usize,
    ) -> [Load; TILES_M] {
        let box_rows = const { ResidentLoads::<TILES_M>::BOX_ROWS };
        let rows = self.x.offset((2 * k + step * TILE_K) * box_rows);
        let vec_elems = (LOAD_WORDS * 2 * vec) as u32;
        // SAFETY: the caller's promise.
        loads.0.map(|load| unsafe { rows.offset(load.0).xor(vec_elems).cast().get_vec(0) })
    }
}

/// Offset in a stage, in elements, of a lane's load.
#[derive(Clone, Copy)]
pub struct LaneLoad(u32);

impl LaneLoad {
    /// The lane's load of MMA tile `tile` of a box of `rows` rows that starts at row `first_row` of
    /// the stage. A lane whose row is past the box loads one in the same banks, or its neighbour's;
    /// its results are not stored.
    #[inline(always)]
    fn new(first_row: u32, rows: u32, tile: u32) -> Self {
        let in_tile = TileOrder::Swizzled.row_of(lane_group());
        let or = |row: u32, other: u32| if row < rows { row } else { other };
        let row = or(tile * TILE_MN + in_tile, or(in_tile, or(in_tile % 4, 0)));
        let row = first_row + row;
        LaneLoad(swizzle::<u16, TILE_K>(row, lane_pair()))
    }
}

/// A lane's loads of a stage, one an MMA tile.
pub struct LaneLoads<const TILES_M: usize, const TILES_N: usize> {
    /// Loads of x.
    pub x: [LaneLoad; TILES_M],
    /// Loads of the weight: gate's tiles, then up's.
    pub weights: [LaneLoad; TILES_N],
}

impl<const TILES_M: usize, const TILES_N: usize> LaneLoads<TILES_M, TILES_N> {
    /// The loads with `num_rows` rows of x.
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
