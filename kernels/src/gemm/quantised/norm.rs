//! RMSNorm of x, fused into a linear layer: each block norms all rows, with the bits of
//! [`rms_norm`](mod@crate::rms_norm), instead of waiting for a launch that does.

use super::format::TILE_K;
use crate::element::{Half, VEC_ELEMS};
use crate::rms_norm::{SEGMENT_ELEMS, Vector, num_segments, scale, scaled, sum_segments, weighted};
use cuda_std::prelude::*;
use half::f16;

// A segment of squares is a tile.
const _: () = assert!(SEGMENT_ELEMS == TILE_K);

/// What x is normed by.
#[derive(Clone, Copy)]
pub struct Norm {
    /// `[k]`; null if x is not normed.
    pub weight: Global<f32>,
    /// `1 / k`.
    pub reciprocal: f32,
    /// Added to the mean of squares.
    pub eps: f32,
    /// Elements of a row.
    pub k: u32,
}

impl Norm {
    /// Whether x is normed.
    #[inline(always)]
    pub fn exists(&self) -> bool {
        !self.weight.is_null()
    }

    /// The lane's weights of a tile, which may be loaded before x is there; zeros if x is not
    /// normed.
    ///
    /// # Safety
    /// 1. The weight, if it is there, holds `k` elements, 16-byte aligned.
    #[inline(always)]
    pub unsafe fn weights(&self, tile: u32) -> Vector {
        // SAFETY: the caller's promise.
        unsafe { self.load(self.weight, tile, self.exists()) }
    }

    /// The lane's eight elements of a tile of `row`; zeros from `k` on, or if it is not there.
    ///
    /// # Safety
    /// 1. `row` holds `k` elements, 16-byte aligned, if it is there.
    #[inline(always)]
    pub unsafe fn load(&self, row: Global<f32>, tile: u32, exists: bool) -> Vector {
        let k = tile * TILE_K + warp::lane_id() * VEC_ELEMS;
        let (at, is_inside) = (row.wrapping_add(k as usize), exists && k < self.k);
        // SAFETY: inside, by the condition.
        let ([a, b, c, d], [e, f, g, h]) =
            unsafe { (at.get_vec_if(0, is_inside), at.get_vec_if(4, is_inside)) };
        [a, b, c, d, e, f, g, h]
    }

    /// Segments of a row: the tiles, and some of zeros.
    #[inline(always)]
    pub fn num_segments(&self) -> u32 {
        num_segments(self.k)
    }

    /// The lane's elements of a row, normed, in f16.
    ///
    /// # Safety
    /// 1. `square_sums` holds those of the row's segments, 16-byte aligned.
    #[inline(always)]
    pub unsafe fn apply(
        &self,
        values: Vector,
        weights: Vector,
        square_sums: Shared<f32>,
    ) -> [u32; 4] {
        // SAFETY: the caller's promise.
        let sum = unsafe { sum_segments(square_sums, self.num_segments()) };
        let scale = scale(sum, self.reciprocal, self.eps);
        let [a, b, c, d, e, f, g, h] = scaled(weighted(values, weights), scale);
        [f16::pack(a, b), f16::pack(c, d), f16::pack(e, f), f16::pack(g, h)]
    }
}
