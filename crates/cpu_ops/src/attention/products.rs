//! The two matrix products of attention. Rows are whole vectors: their lengths are those that
//! [`row_elems`](crate::kv::row_elems) gives.

use crate::vectors::Vectors;

/// Keys of a tile of [`inner_products`].
const KEYS: usize = 4;
/// Most rows of a tile.
const ROWS: usize = 4;

/// A matrix whose element `(row, column)` is `data[row * strides[0] + column * strides[1]]`.
#[derive(Clone, Copy)]
pub struct Strided<'a> {
    pub data: &'a [f32],
    pub strides: [usize; 2],
}

/// `out[h * out_stride + j] = q[h, :] . k[j, :]`, of rows of `width` elements.
#[inline(always)]
pub fn inner_products<V: Vectors>(
    simd: V,
    q: &[f32],
    k: &[f32],
    width: usize,
    out: &mut [f32],
    out_stride: usize,
) {
    let (q, k, width) = (V::as_simd_f32s(q).0, V::as_simd_f32s(k).0, width / V::F32_LANES);
    let rows = if V::REGISTER_COUNT >= 32 { ROWS } else { 2 };
    for (q, out) in q.chunks(rows * width).zip(out.chunks_mut(rows * out_stride)) {
        match q.len() / width {
            4 => rows_by_keys::<V, 4>(simd, q, k, width, out, out_stride),
            3 => rows_by_keys::<V, 3>(simd, q, k, width, out, out_stride),
            2 => rows_by_keys::<V, 2>(simd, q, k, width, out, out_stride),
            _ => rows_by_keys::<V, 1>(simd, q, k, width, out, out_stride),
        }
    }
}

/// [`inner_products`] of `R` rows.
#[inline(always)]
fn rows_by_keys<V: Vectors, const R: usize>(
    simd: V,
    q: &[V::f32s],
    k: &[V::f32s],
    width: usize,
    out: &mut [f32],
    out_stride: usize,
) {
    let mut rows = [&q[..width]; R];
    rows.iter_mut().zip(q.chunks_exact(width)).for_each(
        #[inline(always)]
        |(row, q)| *row = q,
    );
    let mut tiles = k.chunks_exact(KEYS * width);
    let mut first = 0;
    for k in &mut tiles {
        let scores = tile_of_keys(simd, rows, k, width);
        for (scores, out) in scores.iter().zip(out.chunks_mut(out_stride)) {
            out[first..][..KEYS].copy_from_slice(scores);
        }
        first += KEYS;
    }
    for k in tiles.remainder().chunks_exact(width) {
        for (q, out) in rows.iter().zip(out.chunks_mut(out_stride)) {
            let mut acc = simd.splat_f32s(0.0);
            for (&q, &k) in q.iter().zip(k) {
                acc = simd.mul_add_e_f32s(q, k, acc);
            }
            out[first] = simd.reduce_sum_f32s(acc);
        }
        first += 1;
    }
}

/// The inner products of `R` rows with [`KEYS`] keys.
#[inline(always)]
fn tile_of_keys<V: Vectors, const R: usize>(
    simd: V,
    q: [&[V::f32s]; R],
    k: &[V::f32s],
    width: usize,
) -> [[f32; KEYS]; R] {
    let mut acc = [[simd.splat_f32s(0.0); KEYS]; R];
    let (k0, k) = k.split_at(width);
    let (k1, k) = k.split_at(width);
    let (k2, k3) = k.split_at(width);
    for i in 0..width {
        let k = [k0[i], k1[i], k2[i], k3[i]];
        for (acc, q) in acc.iter_mut().zip(q) {
            for (acc, k) in acc.iter_mut().zip(k) {
                *acc = simd.mul_add_e_f32s(q[i], k, *acc);
            }
        }
    }
    let mut scores = [[0.0; KEYS]; R];
    for (scores, acc) in scores.iter_mut().zip(acc) {
        *scores = simd.sums(acc);
    }
    scores
}

/// `c += a b`, where rows of `b` and of `c` have `width` elements. An element of `c` is summed in
/// the order of the rows of `b`, whatever its row.
#[inline(always)]
pub fn multiply_add<V: Vectors>(simd: V, a: Strided, b: &[f32], width: usize, c: &mut [f32]) {
    let (b, c, width) = (V::as_simd_f32s(b).0, V::as_mut_simd_f32s(c).0, width / V::F32_LANES);
    let mut column = 0;
    while column < width {
        // As many vectors as there are registers for the accumulators of four rows; of a single row
        // enough to hide the latency.
        let vectors = match width - column {
            8.. if V::REGISTER_COUNT >= 32 && c.len() == width => 8,
            4.. if V::REGISTER_COUNT >= 32 => 4,
            2.. => 2,
            _ => 1,
        };
        match vectors {
            8 => tile::<V, 1, 8>(simd, a, b, width, column, c),
            4 => columns::<V, 4>(simd, a, b, width, column, c),
            2 => columns::<V, 2>(simd, a, b, width, column, c),
            _ => columns::<V, 1>(simd, a, b, width, column, c),
        }
        column += vectors;
    }
}

/// [`multiply_add`] of `N` vectors of each row, from `column` on.
#[inline(always)]
fn columns<V: Vectors, const N: usize>(
    simd: V,
    a: Strided,
    b: &[V::f32s],
    width: usize,
    column: usize,
    c: &mut [V::f32s],
) {
    for (first, c) in (0..).step_by(ROWS).zip(c.chunks_mut(ROWS * width)) {
        let a = Strided { data: &a.data[first * a.strides[0]..], ..a };
        match c.len() / width {
            4 => tile::<V, 4, N>(simd, a, b, width, column, c),
            3 => tile::<V, 3, N>(simd, a, b, width, column, c),
            2 => tile::<V, 2, N>(simd, a, b, width, column, c),
            _ => tile::<V, 1, N>(simd, a, b, width, column, c),
        }
    }
}

/// [`multiply_add`] of `N` vectors of `R` rows.
#[inline(always)]
fn tile<V: Vectors, const R: usize, const N: usize>(
    simd: V,
    a: Strided,
    b: &[V::f32s],
    width: usize,
    column: usize,
    c: &mut [V::f32s],
) {
    let mut acc = [[simd.splat_f32s(0.0); N]; R];
    for (acc, c) in acc.iter_mut().zip(c.chunks_exact(width)) {
        acc.copy_from_slice(&c[column..][..N]);
    }
    for (k, b) in b.chunks_exact(width).enumerate() {
        let b = &b[column..][..N];
        for (r, acc) in acc.iter_mut().enumerate() {
            let a = simd.splat_f32s(a.data[r * a.strides[0] + k * a.strides[1]]);
            for (acc, &b) in acc.iter_mut().zip(b) {
                *acc = simd.mul_add_e_f32s(a, b, *acc);
            }
        }
    }
    for (acc, c) in acc.iter().zip(c.chunks_exact_mut(width)) {
        c[column..][..N].copy_from_slice(acc);
    }
}
