//! A warp's tile by FMAs in f32. A lane holds rows `lane.m + LANES_M * i`, keys `lane.n + LANES_N *
//! j` and output columns `PANEL_COLUMNS * c + VEC_ELEMS * lane.n ..`; probabilities are exchanged
//! through the warp's scratch space in shared memory.

use super::tile::{PANEL_COLUMNS, ROW_UNIT, WarpTile, WithSink, vec_elems};
use crate::kv_cache::PAGE_SIZE;
use crate::softcap::tanh;
use cuda_std::prelude::*;

/// Keys in a tile of K or V.
const BLOCK_N: u32 = 32;
const _: () = assert!(PAGE_SIZE.is_multiple_of(BLOCK_N));

/// Elements of a 16-byte vector.
const VEC_ELEMS: u32 = vec_elems::<f32>();
const VECS_PER_PANEL_ROW: u32 = PANEL_COLUMNS / VEC_ELEMS;

/// Lanes of a warp along the query rows, and along the keys or output columns.
const LANES_M: u32 = ROW_UNIT;
const LANES_N: u32 = 8;

/// Most query rows of a warp.
const MAX_WARP_ROWS: u32 = 16;

/// Row stride of the probabilities: eight keys of each of four rows fill the 32 banks once.
const P_STRIDE: u32 = BLOCK_N + 8;

/// Elements of a warp's probabilities in shared memory.
const P_ELEMS: u32 = MAX_WARP_ROWS * P_STRIDE;

/// The lane's row, and its key or output column, in the warp's tile. Pairs of lanes share a key,
/// lanes two apart a row, so that a 16-byte load of a half-warp is one pass over the banks.
#[derive(Clone, Copy)]
struct Lane {
    m: u32,
    n: u32,
}

impl Lane {
    #[inline(always)]
    fn from_thread_idx() -> Self {
        let lane_id = warp::lane_id();
        Lane { m: (lane_id & 1) | (lane_id >> 4) << 1, n: (lane_id >> 1) % LANES_N }
    }
}

/// A lane's scores: rows `lane.m + LANES_M * i`, keys `lane.n + LANES_N * j`.
type Scores<const ROWS: usize, const KEYS: usize> = [[f32; KEYS]; ROWS];

/// Accumulates four columns of `Q K^T` in `scores`.
///
/// # Safety
/// As [`WarpTile::scores`], which calls it with the lane's first row and key.
#[inline(always)]
unsafe fn add_vec<const ROWS: usize, const KEYS: usize>(
    smem_q: Shared<f32>,
    smem_k: Shared<f32>,
    vec_idx: u32,
    scores: &mut Scores<ROWS, KEYS>,
) {
    // Rows four apart differ in the upper bit of their swizzle.
    let smem_q = [smem_q.xor(vec_idx * VEC_ELEMS), smem_q.xor((vec_idx ^ 4) * VEC_ELEMS)];
    let smem_k = smem_k.xor(vec_idx * VEC_ELEMS);
    let mut k = [[0.0; VEC_ELEMS as usize]; KEYS];
    // SAFETY: the rows are inside the tiles.
    unsafe {
        unroll!(j in 0..KEYS, {
            k[j] = smem_k.get_vec_at::<{ LANES_N * PANEL_COLUMNS * j as u32 }, 4>();
        });
        unroll!(i in 0..ROWS, {
            let q = smem_q[i % 2].get_vec_at::<{ LANES_M * PANEL_COLUMNS * i as u32 }, 4>();
            for d in 0..VEC_ELEMS as usize {
                for j in 0..KEYS {
                    scores[i][j] = math::fma(q[d], k[j][d], scores[i][j]);
                }
            }
        });
    }
}

/// The largest `value` of the lanes that share a row.
#[inline(always)]
fn row_max(mut value: f32) -> f32 {
    for bit in 1..4 {
        value = math::max(value, warp::shuffle_xor(value, 1 << bit));
    }
    value
}

/// The sum of `value` over the lanes that share a row.
#[inline(always)]
fn row_sum(mut value: f32) -> f32 {
    for bit in 1..4 {
        value += warp::shuffle_xor(value, 1 << bit);
    }
    value
}

/// `LANES_M * ROWS` rows of queries, `LANES_N * KEYS` keys at once, heads of up to `32 * PANELS`
/// columns.
pub struct FmaTile<const ROWS: usize, const KEYS: usize, const PANELS: usize> {
    lane: Lane,
    /// Multiplies the scores: `softmax_scale * log2(e)`.
    scale: f32,
    /// Largest score so far, not scaled.
    max: [f32; ROWS],
    /// Sum of `exp2(scale * (score - max))` over this lane's keys so far.
    sum: [f32; ROWS],
    out: [[[f32; VEC_ELEMS as usize]; PANELS]; ROWS],
}

impl<const ROWS: usize, const KEYS: usize, const PANELS: usize> FmaTile<ROWS, KEYS, PANELS> {
    /// Online softmax of row `i`: rescales its state to the new maximum; returns
    /// `exp2(scale * (score - max))`.
    #[inline(always)]
    fn update_row(&mut self, i: usize, scores: &[f32; KEYS]) -> [f32; KEYS] {
        let mut max = scores[0];
        for score in &scores[1..] {
            max = math::max(max, *score);
        }
        let max = math::max(self.max[i], row_max(max));
        // The maximum of a row with masked keys alone is minus infinity; any finite one gives
        // probabilities of 0.
        let finite_max = if max == f32::NEG_INFINITY { 0.0 } else { max };
        let scaled_max = finite_max * self.scale;
        let scale = self.scale;
        let probability = |score: f32| math::exp2_approx(math::fma(score, scale, -scaled_max));
        // Exactly 1 if the maximum stays: keys that are all masked change no bit.
        let correction = math::exp2_approx((self.max[i] - finite_max) * scale);
        self.max[i] = max;
        self.sum[i] *= correction;
        let mut probabilities = [0.0; KEYS];
        for j in 0..KEYS {
            probabilities[j] = probability(scores[j]);
            self.sum[i] += probabilities[j];
        }
        self.scale_row(i, correction);
        probabilities
    }

    #[inline(always)]
    fn scale_row(&mut self, i: usize, factor: f32) {
        unroll!(panel in 0..PANELS, {
            for value in &mut self.out[i][panel] {
                *value *= factor;
            }
        });
    }

    /// Adds `P V` for four keys, `FIRST` (0 or 4) and the next.
    ///
    /// # Safety
    /// As [`WarpTile::accumulate`], which calls it with the lane's first row and column.
    #[inline(always)]
    unsafe fn accumulate_keys<const FIRST: u32>(
        &mut self,
        smem_p: Shared<f32>,
        smem_v: Shared<f32>,
    ) {
        let smem_p = smem_p.offset(FIRST);
        let mut p = [[0.0; VEC_ELEMS as usize]; ROWS];
        // SAFETY: rows and keys are inside the tiles.
        unsafe {
            unroll!(i in 0..ROWS, {
                p[i] = smem_p.get_vec_at::<{ LANES_M * P_STRIDE * i as u32 }, 4>();
            });
            unroll!(k in 0..4, {
                let key = FIRST + k as u32;
                let smem_v = smem_v.xor(key * VEC_ELEMS).offset(key * PANEL_COLUMNS);
                self.accumulate_key(smem_v, core::array::from_fn(|i| p[i][k]));
            });
        }
    }

    /// Adds `P V` for the key at `smem_v`, with a probability a row.
    ///
    /// # Safety
    /// As [`WarpTile::accumulate`].
    #[inline(always)]
    unsafe fn accumulate_key(&mut self, smem_v: Shared<f32>, p: [f32; ROWS]) {
        unroll!(panel in 0..PANELS, {
            // SAFETY: the panel is inside the tile.
            let v = unsafe { smem_v.get_vec_at::<{ BLOCK_N * PANEL_COLUMNS * panel as u32 }, 4>() };
            for i in 0..ROWS {
                for d in 0..VEC_ELEMS as usize {
                    self.out[i][panel][d] = math::fma(p[i], v[d], self.out[i][panel][d]);
                }
            }
        });
    }
}

impl<const ROWS: usize, const KEYS: usize, const PANELS: usize> WithSink
    for FmaTile<ROWS, KEYS, PANELS>
{
    #[inline(always)]
    fn add_sink(&mut self, sink: f32) {
        // One lane of a row has its weight.
        let has_weight = self.lane.n == 0 && sink > f32::NEG_INFINITY;
        self.max = [sink; ROWS];
        self.sum = [if has_weight { 1.0 } else { 0.0 }; ROWS];
    }
}

impl<const ROWS: usize, const KEYS: usize, const PANELS: usize> WarpTile
    for FmaTile<ROWS, KEYS, PANELS>
{
    type Element = f32;
    type Scores = Scores<ROWS, KEYS>;
    type Probabilities = ();

    const ROWS: u32 = LANES_M * ROWS as u32;
    const KEYS: u32 = LANES_N * KEYS as u32;
    const BLOCK_N: u32 = BLOCK_N;
    const WIDTH: u32 = PANEL_COLUMNS * PANELS as u32;
    const SCRATCH: u32 = P_ELEMS;

    #[inline(always)]
    fn new(scale: f32) -> Self {
        FmaTile {
            lane: Lane::from_thread_idx(),
            scale,
            max: [f32::NEG_INFINITY; ROWS],
            sum: [0.0; ROWS],
            out: [[[0.0; VEC_ELEMS as usize]; PANELS]; ROWS],
        }
    }

    #[inline(always)]
    unsafe fn scores(
        &self,
        head_dim: u32,
        smem_q: Shared<f32>,
        q_rows: u32,
        smem_k: Shared<f32>,
    ) -> Self::Scores {
        let Lane { m, n } = self.lane;
        let mut scores = [[0.0; KEYS]; ROWS];
        let mut smem_q = smem_q.offset(m * PANEL_COLUMNS + m * VEC_ELEMS);
        let mut smem_k = smem_k.offset(n * PANEL_COLUMNS + n * VEC_ELEMS);
        for _ in 0..head_dim.div_ceil(PANEL_COLUMNS) {
            unroll!(vec_idx in 0..VECS_PER_PANEL_ROW as usize, {
                // SAFETY: the vector is inside the tiles.
                unsafe { add_vec(smem_q, smem_k, vec_idx as u32, &mut scores) };
            });
            smem_q = smem_q.offset(q_rows * PANEL_COLUMNS);
            smem_k = smem_k.offset(BLOCK_N * PANEL_COLUMNS);
        }
        scores
    }

    #[inline(always)]
    fn cap(&self, scores: &mut Self::Scores, softcap: f32) {
        unroll!(i in 0..ROWS, {
            for j in 0..KEYS {
                scores[i][j] = tanh(scores[i][j] * softcap);
            }
        });
    }

    #[inline(always)]
    fn mask(&self, scores: &mut Self::Scores, visible: impl Fn(u32, u32) -> bool) {
        for i in 0..ROWS {
            for j in 0..KEYS {
                let row = self.lane.m + LANES_M * i as u32;
                if !visible(row, self.lane.n + LANES_N * j as u32) {
                    scores[i][j] = f32::NEG_INFINITY;
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn update(&mut self, scores: &Self::Scores, scratch: Shared<f32>) {
        // The probabilities of the keys before are read.
        warp::sync_warp();
        unroll!(i in 0..ROWS, {
            let probabilities = self.update_row(i, &scores[i]);
            let row = self.lane.m + LANES_M * i as u32;
            let row = scratch.offset(row * P_STRIDE + self.lane.n);
            for j in 0..KEYS {
                // SAFETY: the row is the warp's, the key under `LANES_N * KEYS`.
                unsafe { row.set(LANES_N * j as u32, probabilities[j]) };
            }
        });
        warp::sync_warp();
    }

    #[inline(always)]
    unsafe fn accumulate(&mut self, (): (), scratch: Shared<f32>, smem_v: Shared<f32>) {
        let mut smem_p = scratch.offset(self.lane.m * P_STRIDE);
        let mut smem_v = smem_v.offset(self.lane.n * VEC_ELEMS);
        for _ in 0..KEYS {
            // SAFETY: eight keys are inside the tiles.
            unsafe {
                self.accumulate_keys::<0>(smem_p, smem_v);
                self.accumulate_keys::<VEC_ELEMS>(smem_p, smem_v);
            }
            smem_p = smem_p.offset(LANES_N);
            smem_v = smem_v.offset(LANES_N * PANEL_COLUMNS);
        }
    }

    #[inline(always)]
    fn normalize(&mut self) {
        unroll!(i in 0..ROWS, {
            let total = row_sum(self.sum[i]);
            self.scale_row(i, if total > 0.0 { math::rcp_approx(total) } else { 0.0 });
        });
    }

    #[inline(always)]
    fn for_each_row(&self, mut f: impl FnMut(u32, f32, f32)) {
        unroll!(i in 0..ROWS, {
            let total = row_sum(self.sum[i]);
            if self.lane.n == 0 {
                f(self.lane.m + LANES_M * i as u32, self.max[i] * self.scale, total);
            }
        });
    }

    #[inline(always)]
    fn for_each_pair(&self, mut f: impl FnMut(u32, u32, [f32; 2])) {
        unroll!(i in 0..ROWS, {
            for_each_vec(&self.out[i], |panel, [a, b, c, d]| {
                let row = self.lane.m + LANES_M * i as u32;
                let column = PANEL_COLUMNS * panel + VEC_ELEMS * self.lane.n;
                f(row, column, [a, b]);
                f(row, column + 2, [c, d]);
            });
        });
    }
}

/// Calls `f` with each panel and its values.
#[inline(always)]
fn for_each_vec<const PANELS: usize>(
    values: &[[f32; VEC_ELEMS as usize]; PANELS],
    mut f: impl FnMut(u32, [f32; VEC_ELEMS as usize]),
) {
    unroll!(panel in 0..PANELS, {
        f(panel as u32, values[panel]);
    });
}
