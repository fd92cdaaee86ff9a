//! The main loop of a warp: weights from global memory to registers to the tensor cores.
//!
//! A lane loads 16 bytes, eight elements along k, of a row of the weight and of a row of x, at the
//! same k. Its four words are the operands of two `m16n8k16` as they are: where the fragment layout
//! has columns `2 * pair` and `2 * pair + 1`, then `2 * pair + 8` and `2 * pair + 9`, memory has
//! four neighbours. Both operands are permuted alike, so the sum over k is the same.
//!
//! A load of a weight in 8 bits has 16 elements, and goes with two loads of x; converted, it is the
//! operand of four MMAs. Lengths along k are in units of 16 bits of the weight, so that all
//! constants are the same.

use crate::gemm::operand::rows::Input;
use crate::tile::element::Operand16;
use crate::tile::weight::{MAX_VECS, Scales, WeightElement};
use cuda_std::mma::{Accumulator, FragmentA, FragmentB, m16n8k16};
use cuda_std::prelude::*;

/// Rows of x, or of the weight, in an MMA tile: one a group of four lanes.
pub const TILE_MN: u32 = 8;

/// Units along k of a lane's 16-byte load.
pub const K_PER_LOAD: u32 = 8;

/// 32-bit words of a 16-byte load.
pub const LOAD_WORDS: usize = 4;

/// Units of a k-step: the adjacent loads of a group's four lanes.
pub const STEP_K: u32 = 32;

/// Units of a k-tile: two k-steps, one 128-byte cache line of a row.
pub const TILE_K: u32 = 2 * STEP_K;

/// Loads of the weight that a lane has in flight: 32 KiB for eight warps. ptxas gives them one
/// scoreboard, so the first MMA waits for all, and a register ring of smaller stages would gain
/// nothing (`docs/measurements/gemm_small_m.md`).
const LOADS_IN_FLIGHT: usize = 8;

/// k-steps of a k-tile.
pub const STEPS: usize = (TILE_K / STEP_K) as usize;

/// Most k-tiles in flight.
const MAX_TILES_K: usize = LOADS_IN_FLIGHT / STEPS;

/// k-tiles in flight.
const fn tiles_k(tiles_n: usize) -> usize {
    LOADS_IN_FLIGHT / STEPS / tiles_n
}

/// k-steps whose x is loaded at once: as many as registers allow.
const fn x_steps(tiles_m: usize, tiles_n: usize, vecs: usize) -> usize {
    if tiles_m * vecs <= 4 && tiles_m * tiles_n <= 8 { STEPS } else { 1 }
}

/// Offset along k of a warp's `k_tile`-th k-tile from its first one: warps take k-tiles in turn.
const fn tile_offset(warps: usize, k_tile: usize) -> u32 {
    (k_tile * warps) as u32 * TILE_K
}

/// A 16-byte load: eight units of one row.
pub type Load = [u32; LOAD_WORDS];

/// A lane's loads of x that go with a load of a weight: one, or two if that is in 8 bits.
pub type XLoads<const TILES_M: usize> = [[Load; TILES_M]; MAX_VECS];

/// The rows of a weight that a lane loads, one a tile.
#[derive(Clone, Copy)]
pub struct WeightRows<W, const TILES_N: usize> {
    /// The weight.
    pub weight: Global<W>,
    /// The lane's rows.
    pub rows: [LaneRow; TILES_N],
    /// Scales of the weight, if it is scaled.
    pub scales: TileScales,
}

/// The scales of an output tile's parts of a weight: of one, or of gate and of up. A part is in one
/// row of blocks that share scales.
#[derive(Clone, Copy)]
pub struct TileScales {
    /// Scales of the whole weight.
    pub scales: Scales,
    /// The first row of each part.
    pub first_rows: [u32; 2],
    /// MMA tiles of a part.
    pub part_tiles: usize,
}

/// A lane's weights of a k-tile, and the scales of their blocks.
#[derive(Clone, Copy)]
struct KTileWeights<const TILES_N: usize> {
    loads: [[Load; TILES_N]; STEPS],
    scales: [f32; 2],
}

impl<const TILES_N: usize> KTileWeights<TILES_N> {
    const ZERO: Self =
        KTileWeights { loads: [[[0; LOAD_WORDS]; TILES_N]; STEPS], scales: [0.0; 2] };
}

/// A lane's weights in flight: [`tiles_k`] k-tiles.
pub struct Prefetch<const TILES_N: usize>([KTileWeights<TILES_N>; MAX_TILES_K]);

/// A lane's place along k.
#[derive(Clone, Copy)]
pub struct Cursor {
    /// First unit of the warp's next k-tile.
    warp_k: u32,
    /// Units of k.
    k: u32,
    /// The lane's load is inside its row while `warp_k` is below this.
    lane_end: u32,
}

impl Cursor {
    /// The warp's first k-tile of `k` units.
    #[inline(always)]
    pub fn new(k: u32) -> Self {
        let lane_end = k.saturating_sub(lane_pair() * K_PER_LOAD);
        Cursor { warp_k: warp::warp_idx() * TILE_K, k, lane_end }
    }

    /// Whether the warp's k-tile `offset` units ahead is inside k.
    #[inline(always)]
    pub fn is_inside(&self, offset: u32) -> bool {
        self.warp_k + offset < self.k
    }

    /// Moves ahead by `units`.
    #[inline(always)]
    pub fn advance(&mut self, units: u32) {
        self.warp_k += units;
    }

    /// Whether the lane's load `offset` units ahead is inside its row.
    #[inline(always)]
    pub fn has_load(&self, offset: u32) -> bool {
        self.warp_k + offset < self.lane_end
    }

    /// Units along k, `offset` units ahead.
    #[inline(always)]
    pub fn unit(&self, offset: u32) -> u32 {
        self.warp_k + offset
    }

    /// Where the lane's load `offset` units ahead is in `row` of `matrix`, of `vecs` loads a load
    /// of the weight. A constant `offset` becomes part of the load instruction.
    #[inline(always)]
    pub fn words<T>(
        &self,
        matrix: Global<T>,
        row: LaneRow,
        offset: u32,
        vecs: usize,
    ) -> Global<u32> {
        let load = (row.0 + self.warp_k / K_PER_LOAD * vecs as u32) as usize;
        let offset = offset as usize / 2 * vecs;
        matrix.cast().wrapping_add(load * LOAD_WORDS).wrapping_add(offset)
    }
}

/// Index of a lane's first load of a row, in loads from the start of the matrix: one register,
/// where an address takes two.
#[derive(Clone, Copy)]
pub struct LaneRow(u32);

impl LaneRow {
    /// The lane's first load of `row`, one of `vecs` that go with a load of the weight; rows are
    /// `stride` units of 16 bits apart.
    #[inline(always)]
    pub fn new(row: u32, stride: u32, vecs: usize) -> Self {
        LaneRow(row * (stride / K_PER_LOAD) + lane_pair() * vecs as u32)
    }

    /// The same `rows` rows below.
    #[inline(always)]
    pub fn down(self, rows: u32, stride: u32) -> Self {
        LaneRow(self.0 + rows * (stride / K_PER_LOAD))
    }
}

/// Which row of an MMA tile a group of four lanes takes.
#[derive(Clone, Copy)]
pub enum TileOrder {
    /// Group `i` takes row `i`.
    AsStored,
    /// Groups take rows 0, 4, 1, 5, 2, 6, 3, 7. A 16-byte load of a warp reads two groups at a
    /// time, and with the 128-byte swizzle rows four apart use different halves of the banks.
    Swizzled,
}

impl TileOrder {
    /// The row of group `group`.
    #[inline(always)]
    pub fn row_of(self, group: u32) -> u32 {
        match self {
            TileOrder::AsStored => group,
            TileOrder::Swizzled => group / 2 + group % 2 * 4,
        }
    }

    /// The group of row `row`.
    #[inline(always)]
    pub fn group_of(self, row: u32) -> u32 {
        match self {
            TileOrder::AsStored => row,
            TileOrder::Swizzled => row % 4 * 2 + row / 4,
        }
    }
}

/// The lane's group of four: `groupID` of the fragment layouts of `mma`.
#[inline(always)]
pub fn lane_group() -> u32 {
    warp::lane_id() / 4
}

/// The lane's place in its group: `threadID_in_group` of the fragment layouts of `mma`.
#[inline(always)]
pub fn lane_pair() -> u32 {
    warp::lane_id() % 4
}

/// Issues the loads of the first [`tiles_k`] k-tiles at the cursor; zeros past the rows' ends.
///
/// # Safety
/// 1. `weights` are a matrix and rows of it, each of `k` units and 16-byte aligned.
#[inline(always)]
pub unsafe fn prefetch<
    E: Operand16,
    W: WeightElement<E>,
    const TILES_N: usize,
    const WARPS: usize,
>(
    weights: &WeightRows<W, TILES_N>,
    cursor: Cursor,
) -> Prefetch<TILES_N> {
    let mut prefetched = Prefetch([KTileWeights::ZERO; MAX_TILES_K]);
    unroll!(k_tile in 0..tiles_k(TILES_N), {
        let offset = tile_offset(WARPS, k_tile);
        // SAFETY: the caller's promise.
        prefetched.0[k_tile] = unsafe { load_k_tile(weights, cursor, offset) };
    });
    prefetched
}

/// Issues the loads of the k-tile `offset` units ahead.
///
/// # Safety
/// As [`prefetch`].
#[inline(always)]
unsafe fn load_k_tile<E: Operand16, W: WeightElement<E>, const TILES_N: usize>(
    weights: &WeightRows<W, TILES_N>,
    cursor: Cursor,
    offset: u32,
) -> KTileWeights<TILES_N> {
    let mut k_tile = KTileWeights::ZERO;
    unroll!(step in 0..2, {
        // SAFETY: the caller's promise.
        k_tile.loads[step] =
            unsafe { load_step(weights, cursor, offset + step as u32 * STEP_K) };
    });
    // SAFETY: the caller's promise.
    k_tile.scales = unsafe { weights.scales.load::<E, W, TILES_N>(cursor, offset) };
    k_tile
}

/// Issues the loads of the k-step `offset` units ahead.
///
/// # Safety
/// As [`prefetch`].
#[inline(always)]
unsafe fn load_step<W, const TILES_N: usize>(
    weights: &WeightRows<W, TILES_N>,
    cursor: Cursor,
    offset: u32,
) -> [Load; TILES_N] {
    let mut loads = [[0; LOAD_WORDS]; TILES_N];
    unroll!(tile in 0..TILES_N, {
        let words = cursor.words(weights.weight, weights.rows[tile], offset, 1);
        // SAFETY: inside the row, by the condition.
        loads[tile] = unsafe { words.stream_vec_if(0, cursor.has_load(offset)) };
    });
    loads
}

impl TileScales {
    /// Issues the loads of the scales of the blocks in the k-tile `offset` units ahead.
    ///
    /// # Safety
    /// 1. The scales are those of a weight with these rows and of `k` units, if it is scaled.
    #[inline(always)]
    pub unsafe fn load<E: Operand16, W: WeightElement<E>, const TILES_N: usize>(
        &self,
        cursor: Cursor,
        offset: u32,
    ) -> [f32; 2] {
        let mut scales = [1.0; 2];
        if W::IS_SCALED {
            let (k, is_inside) = (W::VECS as u32 * cursor.unit(offset), cursor.is_inside(offset));
            unroll!(part in 0..2, {
                if part * self.part_tiles < TILES_N {
                    let row = self.first_rows[part];
                    // SAFETY: inside the weight, by the condition.
                    scales[part] = unsafe { self.scales.block_scale(row, k, is_inside) };
                }
            });
        }
        scales
    }
}

/// The MMAs of the k-tile `offset` units ahead.
#[inline(always)]
fn multiply_k_tile<
    E: Operand16,
    W: WeightElement<E>,
    X: Input<TILES_M>,
    const TILES_M: usize,
    const TILES_N: usize,
>(
    x: &X,
    cursor: Cursor,
    offset: u32,
    k_tile: &KTileWeights<TILES_N>,
    part_tiles: usize,
    acc: &mut [[Accumulator; TILES_N]; TILES_M],
) {
    let mut k_tile_acc = KTileAcc::<TILES_M, TILES_N>::new::<E, W>(acc);
    let num_loaded = const { x_steps(TILES_M, TILES_N, W::VECS) };
    unroll!(step in 0..2, {
        if step.is_multiple_of(num_loaded) && cursor.is_inside(offset + step as u32 * STEP_K) {
            // SAFETY: the first of these k-steps is inside k, so the k-tile is.
            unsafe {
                multiply_steps::<E, W, X, _, _>(x, cursor, offset, k_tile, step, &mut k_tile_acc);
            };
        }
    });
    k_tile_acc.add_to::<E, W>(k_tile.scales, part_tiles, acc);
}

/// The MMAs of the k-steps of a k-tile from `first` on whose x is loaded at once.
///
/// # Safety
/// 1. The k-tile, `offset` units ahead, is inside k.
#[inline(always)]
unsafe fn multiply_steps<
    E: Operand16,
    W: WeightElement<E>,
    X: Input<TILES_M>,
    const TILES_M: usize,
    const TILES_N: usize,
>(
    x: &X,
    cursor: Cursor,
    offset: u32,
    k_tile: &KTileWeights<TILES_N>,
    first: usize,
    k_tile_acc: &mut KTileAcc<TILES_M, TILES_N>,
) {
    let num_loaded = const { x_steps(TILES_M, TILES_N, W::VECS) };
    let mut loads = [[[[0; LOAD_WORDS]; TILES_M]; MAX_VECS]; STEPS];
    for step in 0..num_loaded {
        let offset = offset + (first + step) as u32 * STEP_K;
        for vec in 0..W::VECS {
            // SAFETY: the caller's promise.
            loads[step][vec] = unsafe { x.load(cursor, offset, [vec, W::VECS]) };
        }
    }
    unroll!(step in 0..2, {
        if step < num_loaded {
            let weights = &k_tile.loads[first + step];
            multiply_step::<E, W, TILES_M, TILES_N>(&loads[step], weights, k_tile_acc);
        }
    });
}

/// The accumulators of a k-tile: those of the output tile, or its own if the weight is scaled.
pub struct KTileAcc<const TILES_M: usize, const TILES_N: usize>([[Accumulator; TILES_N]; TILES_M]);

impl<const TILES_M: usize, const TILES_N: usize> KTileAcc<TILES_M, TILES_N> {
    /// Accumulators before the first k-step.
    #[inline(always)]
    pub fn new<E: Operand16, W: WeightElement<E>>(acc: &[[Accumulator; TILES_N]; TILES_M]) -> Self {
        KTileAcc(if W::IS_SCALED { [[[0.0; 4]; TILES_N]; TILES_M] } else { *acc })
    }

    /// Adds them, times the scales of the parts, of `part_tiles` tiles each.
    #[inline(always)]
    pub fn add_to<E: Operand16, W: WeightElement<E>>(
        &self,
        scales: [f32; 2],
        part_tiles: usize,
        acc: &mut [[Accumulator; TILES_N]; TILES_M],
    ) {
        if !W::IS_SCALED {
            *acc = self.0;
            return;
        }
        for pair in 0..TILES_M.div_ceil(2) {
            unroll!(tile in 0..TILES_N, {
                let scale = if tile < part_tiles { scales[0] } else { scales[1] };
                for i in 0..4 {
                    let acc = &mut acc[pair][tile][i];
                    *acc = math::fma(self.0[pair][tile][i], scale, *acc);
                }
            });
        }
    }
}

/// The MMAs of a k-step.
#[inline(always)]
pub fn multiply_step<
    E: Operand16,
    W: WeightElement<E>,
    const TILES_M: usize,
    const TILES_N: usize,
>(
    x: &XLoads<TILES_M>,
    weights: &[Load; TILES_N],
    k_tile_acc: &mut KTileAcc<TILES_M, TILES_N>,
) {
    unroll!(quad in 0..4, {
        if quad < 2 * W::VECS {
            multiply_quad::<E, W, TILES_M, TILES_N>(&x[quad / 2], weights, quad, k_tile_acc);
        }
    });
}

/// The MMAs of four elements of each lane; `quad` is a constant once everything is inlined.
#[inline(always)]
fn multiply_quad<E: Operand16, W: WeightElement<E>, const TILES_M: usize, const TILES_N: usize>(
    x: &[Load; TILES_M],
    weights: &[Load; TILES_N],
    quad: usize,
    k_tile_acc: &mut KTileAcc<TILES_M, TILES_N>,
) {
    let half = quad % 2;
    unroll!(pair in 0..TILES_M.div_ceil(2), {
        let lower = x[2 * pair];
        let upper = if 2 * pair + 1 < TILES_M {
            x[2 * pair + 1]
        } else {
            // Rows 8 .. 16 of A are not stored: any registers do.
            [lower[1], lower[3], lower[1], lower[3]]
        };
        let a = [lower[2 * half], upper[2 * half], lower[2 * half + 1], upper[2 * half + 1]];
        multiply_pair::<E, W, TILES_N>(a, weights, quad, &mut k_tile_acc.0[pair]);
    });
}

/// The MMAs of one fragment of x with the operands `quad` of all tiles.
#[inline(always)]
fn multiply_pair<E: Operand16, W: WeightElement<E>, const TILES_N: usize>(
    a: [u32; 4],
    weights: &[Load; TILES_N],
    quad: usize,
    acc: &mut [Accumulator; TILES_N],
) {
    unroll!(tile in 0..TILES_N, {
        let b = FragmentB::from_words(W::operands(&weights[tile], quad));
        acc[tile] = m16n8k16(FragmentA::<E>::from_words(a), b, acc[tile]);
    });
}

/// The main loop: accumulates the warp's k-tiles. `acc[i]` holds rows `16 * i` to `16 * i + 15`;
/// elements beyond the rows of x are left alone.
///
/// # Safety
/// As [`prefetch`].
#[inline(always)]
pub unsafe fn multiply<
    E: Operand16,
    W: WeightElement<E>,
    X: Input<TILES_M>,
    const TILES_M: usize,
    const TILES_N: usize,
    const WARPS: usize,
>(
    x: &X,
    weights: &WeightRows<W, TILES_N>,
    mut cursor: Cursor,
    mut prefetched: Prefetch<TILES_N>,
    acc: &mut [[Accumulator; TILES_N]; TILES_M],
) {
    while cursor.is_inside(0) {
        let here = cursor;
        cursor.advance(tile_offset(WARPS, tiles_k(TILES_N)));
        unroll!(k_tile in 0..4, {
            let offset = tile_offset(WARPS, k_tile);
            if k_tile < tiles_k(TILES_N) {
                let (loaded, part_tiles) = (&prefetched.0[k_tile], weights.scales.part_tiles);
                multiply_k_tile::<E, W, X, TILES_M, TILES_N>(
                    x, here, offset, loaded, part_tiles, acc,
                );
                // SAFETY: the caller's promise.
                prefetched.0[k_tile] = unsafe { load_k_tile(weights, cursor, offset) };
            }
        });
    }
}
