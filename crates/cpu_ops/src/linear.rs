//! `out[t, n] = sum_k x[t, k] * weight[n, k]`.
//!
//! A small batch is bound by reading the weight: inner products over runs of weight rows, each
//! read from memory once for all rows of x. A larger one is a matrix product by tiles, each
//! converted once. Both partition the weight's rows over the threads.
//!
//! Weights in blocks are multiplied as integers, by x in 16 bits; other elements in f32.

use super::activations::{Rows, RowsMut};
use super::weights::StoredWeight;
use blocks::{
    ByteRows, Halves, IntegerFormat, IntegerRows, Kernels, PackedRows, PlainFormat, Products,
    TILE_COLUMNS, TILE_ROWS, Tile, WeightRows, multiply_add,
};
use pulp::Arch;

/// Most rows for which inner products are used, of weights in f32 and of weights in integers. A
/// matrix product converts and transposes the weight first (`cargo bench --bench cpu -- linear`).
const MAX_DOT_ROWS: usize = 8;
const MAX_INTEGER_DOT_ROWS: usize = 4;
/// Weight elements in one task's block of inner products: half of a core's L2 cache, so that the
/// next row finds them.
const DOT_BLOCK_ELEMS: usize = 1 << 17;
/// Tasks that a weight is divided into where it is read once.
const TASKS_PER_THREAD: usize = 8;

/// Some columns of each row of the output, those of as many rows of the weight.
struct OutRows<'a>(Vec<&'a mut [f32]>);

impl<'a> OutRows<'a> {
    /// Rows of the weight.
    fn width(&self) -> usize {
        self.0[0].len()
    }

    /// The first `middle` columns, and the others.
    fn split_at(self, middle: usize) -> (Self, Self) {
        let (low, high) = self.0.into_iter().map(|row| row.split_at_mut(middle)).unzip();
        (OutRows(low), OutRows(high))
    }
}

/// x as products take it.
struct Operand<'a> {
    rows: Vec<&'a [f32]>,
    /// Where there are too many rows for inner products.
    packed: Option<PackedRows>,
    /// x in 16 bits, where a part of the weight is multiplied so.
    integers: Option<IntegerRows>,
    /// Rows with halves apart, and together.
    bytes: [Option<ByteRows>; 2],
}

/// How some rows of the weight are multiplied.
#[derive(Clone, Copy)]
struct Product<'a> {
    x: &'a Operand<'a>,
    accumulate: bool,
    batch_invariant: bool,
}

/// Computes `out = x * weight^T`, or adds it to `out` with `accumulate`. `weight` is `[out.width(),
/// x.width()]`. With `batch_invariant` the bits of a row do not depend on the other rows; large
/// batches then take twice as long.
pub fn linear(
    x: &Rows,
    weight: &StoredWeight,
    accumulate: bool,
    batch_invariant: bool,
    out: &mut RowsMut,
) {
    let rows = (0..out.num_rows()).map(|row| x.row(row)).collect();
    let out = out.rows().collect();
    multiply(rows, &weight.runs(), accumulate, batch_invariant, out);
}

/// As [`linear`], of single rows: `rows` of x and as many of `out`, and the rows of a weight.
pub fn multiply(
    rows: Vec<&[f32]>,
    weight: &[WeightRows],
    accumulate: bool,
    batch_invariant: bool,
    out: Vec<&mut [f32]>,
) {
    let Some(k) = rows.first().map(|row| row.len()) else {
        return;
    };
    let arch = Arch::new();
    let mut x = Operand { rows, packed: None, integers: None, bytes: [None, None] };
    let rows = || x.rows.iter().copied();
    for run in weight {
        let by_tiles = by_tiles(run, rows().len(), batch_invariant);
        match run.kernels() {
            Kernels::Plain(_) if by_tiles => {
                x.packed.get_or_insert_with(|| PackedRows::new(rows(), k));
            }
            Kernels::Plain(_) => {}
            Kernels::Integers(format) => match format.byte_products(arch) {
                Some((_, halves)) if !by_tiles => {
                    let new = || ByteRows::new(arch, rows(), k, halves);
                    x.bytes[usize::from(halves == Halves::Together)].get_or_insert_with(new);
                }
                _ => {
                    x.integers.get_or_insert_with(|| IntegerRows::new(arch, rows(), k));
                }
            },
        }
    }
    let x = &x;
    Product { x, accumulate, batch_invariant }.of_runs(weight, OutRows(out));
}

/// Whether a product with so many rows of x is one by tiles.
fn by_tiles(weight: &WeightRows, num_rows: usize, batch_invariant: bool) -> bool {
    let max_dot_rows = match weight.kernels() {
        Kernels::Plain(_) => MAX_DOT_ROWS,
        Kernels::Integers(_) => MAX_INTEGER_DOT_ROWS,
    };
    num_rows > max_dot_rows && !batch_invariant
}

impl Product<'_> {
    /// The rows that are stored alike are multiplied together.
    fn of_runs(self, weight: &[WeightRows], out: OutRows) {
        if let [run, ref rest @ ..] = *weight {
            let middle = run.num_rows();
            let (low, high) = out.split_at(middle);
            rayon::join(|| self.of_run(run, low), || self.of_runs(rest, high));
        }
    }

    fn of_run(self, weight: WeightRows, out: OutRows) {
        if by_tiles(&weight, self.x.rows.len(), self.batch_invariant) {
            self.divide(TILE_ROWS, TILE_ROWS, weight, out, &Self::matrix_product);
        } else {
            let mut elems = DOT_BLOCK_ELEMS;
            if self.x.rows.len() <= MAX_INTEGER_DOT_ROWS {
                let tasks = TASKS_PER_THREAD * rayon::current_num_threads();
                elems = elems.max(weight.num_rows() * weight.width() / tasks);
            }
            let block_n = (elems / weight.width()).max(1);
            self.divide(block_n, 8, weight, out, &Self::inner_products);
        }
    }

    /// Halves the range of weight rows, at multiples of `unit`, until a task has at most `block_n`.
    fn divide(
        self,
        block_n: usize,
        unit: usize,
        weight: WeightRows,
        out: OutRows,
        compute: &(impl Fn(Self, WeightRows, OutRows) + Sync),
    ) {
        let n = out.width();
        if n <= block_n {
            return compute(self, weight, out);
        }
        let middle = (n / 2).next_multiple_of(unit).min(n - 1);
        let (weight_low, weight_high) = weight.split_at(middle);
        let (low, high) = out.split_at(middle);
        rayon::join(
            || self.divide(block_n, unit, weight_low, low, compute),
            || self.divide(block_n, unit, weight_high, high, compute),
        );
    }

    fn inner_products(self, weight: WeightRows, mut out: OutRows) {
        let arch = Arch::new();
        let bytes = match weight.kernels() {
            Kernels::Integers(format) => format.byte_products(arch),
            Kernels::Plain(_) => None,
        };
        if let Some((products, halves)) = bytes {
            let x = self.x.bytes[usize::from(halves == Halves::Together)].as_ref();
            let x = x.expect("made for products of bytes");
            return products(arch, weight.bytes(), x, self.accumulate, &mut out.0);
        }
        let mut store = |t: usize, n: usize, product| {
            let out = &mut out.0[t][n];
            *out = if self.accumulate { *out + product } else { product };
        };
        match weight.kernels() {
            Kernels::Plain(format) => (format.products)(arch, weight, &self.x.rows, &mut store),
            Kernels::Integers(format) => {
                let x = self.x.integers.as_ref().expect("made for weights in blocks");
                Products { format, weight: weight.bytes(), x }.compute(arch, store);
            }
        }
    }

    /// A tile's rows.
    fn matrix_product(self, weight: WeightRows, out: OutRows) {
        let mut acc = vec![[0.0; TILE_ROWS]; self.x.rows.len()];
        match weight.kernels() {
            Kernels::Plain(format) => self.plain_tiles(format, weight, &mut acc),
            Kernels::Integers(format) => self.integer_tiles(format, weight, &mut acc),
        }
        for (out, acc) in out.0.into_iter().zip(&acc) {
            for (out, &product) in out.iter_mut().zip(acc) {
                *out = if self.accumulate { *out + product } else { product };
            }
        }
    }

    fn plain_tiles(self, format: PlainFormat, weight: WeightRows, acc: &mut [[f32; TILE_ROWS]]) {
        let x = self.x.packed.as_ref().expect("made for many rows");
        let mut tile = vec![[0.0; TILE_ROWS]; TILE_COLUMNS];
        for column in (0..weight.width()).step_by(TILE_COLUMNS) {
            let columns = TILE_COLUMNS.min(weight.width() - column);
            let tile = &mut tile[..columns];
            (format.fill_tile)(Arch::new(), weight, column, tile);
            multiply_add(Arch::new(), x, column, tile, acc);
        }
    }

    fn integer_tiles(
        self,
        format: IntegerFormat,
        weight: WeightRows,
        acc: &mut [[f32; TILE_ROWS]],
    ) {
        let x = self.x.integers.as_ref().expect("made for weights in blocks");
        let mut tile = Tile::new(format);
        for column in (0..weight.width()).step_by(TILE_COLUMNS) {
            tile.fill(Arch::new(), weight.bytes(), weight.width(), column);
            tile.multiply_add(Arch::new(), x, column, acc);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_close, random};
    use blocks::decoder;
    use gpu_types::{BlockFormat, E4m3};
    use half::{bf16, f16};
    use plan::{Dtype, ReadWeightError, Weight, WeightPart, WeightSource};
    use std::ops::Range;

    fn oracle(x: &[f32], weight: &[f32], k: usize, start: &[f32]) -> Vec<f64> {
        let n = weight.len() / k;
        let product = |t: usize, n: usize| -> f64 {
            let (x, w) = (&x[t * k..][..k], &weight[n * k..][..k]);
            x.iter().zip(w).map(|(&x, &w)| x as f64 * w as f64).sum()
        };
        let rows = x.len() / k;
        let outputs = (0..rows).flat_map(|t| (0..n).map(move |n| (t, n)));
        outputs.map(|(t, i)| start[t * n + i] as f64 + product(t, i)).collect()
    }

    /// 0, 1 and several rows, on both sides of the switch to matrix products; widths around the
    /// vector and the task block.
    #[test]
    fn linear_matches_oracle() {
        for rows in [0, 1, 2, 3, MAX_DOT_ROWS, MAX_DOT_ROWS + 1, 70] {
            for (n, k) in [(1, 1), (5, 15), (7, 16), (96, 17), (256, 128), (193, 1536), (3, 70_000)]
            {
                let (x, weight) = (random(1, rows * k), random(2, n * k));
                for accumulate in [false, true] {
                    let start = if accumulate { random(3, rows * n) } else { vec![0.0; rows * n] };
                    let mut out = if accumulate { start.clone() } else { vec![f32::NAN; rows * n] };
                    let mut out_rows = RowsMut::dense(&mut out, n);
                    let stored = StoredWeight::of(&weight, k);
                    linear(&Rows::dense(&x, k), &stored, accumulate, false, &mut out_rows);
                    let wanted = oracle(&x, &weight, k, &start);
                    let case = format!("{rows} rows, [{n}, {k}], accumulate {accumulate}");
                    assert_close(&out, &wanted, 1e-5, &case);
                }
            }
        }
    }

    #[test]
    fn a_row_is_the_same_whatever_other_rows_there_are() {
        let (n, k) = (192, 576);
        let (x, weight) = (random(1, 3 * MAX_DOT_ROWS * k), random(2, n * k));
        let weight = StoredWeight::of(&weight, k);
        let blocks = stored(&[(100, Dtype::Q4_0), (92, Dtype::Q8_0)], k).0;
        for weight in [&weight, &blocks] {
            let run = |rows: Range<usize>| {
                let mut out = vec![f32::NAN; rows.len() * n];
                let x = Rows::dense(&x[rows.start * k..rows.end * k], k);
                linear(&x, weight, false, true, &mut RowsMut::dense(&mut out, n));
                out
            };
            let alone: Vec<f32> = (0..3 * MAX_DOT_ROWS).flat_map(|row| run(row..row + 1)).collect();
            assert_eq!(run(0..3 * MAX_DOT_ROWS), alone);
            assert_eq!(run(0..7), alone[..7 * n]);
        }
    }

    /// The largest error of an output, over the norm of the products that it is the sum of.
    fn relative_error(got: &[f32], wanted: &[f64], x: &[f32], weight: &[f32], k: usize) -> f64 {
        let squares = |values: &[f32]| values.iter().map(|x| x * x).collect::<Vec<_>>();
        let norms = oracle(&squares(x), &squares(weight), k, &vec![0.0; wanted.len()]);
        let errors = got.iter().zip(wanted).zip(norms);
        errors
            .map(|((&got, wanted), norm)| (f64::from(got) - wanted).abs() / (norm.sqrt() + 1e-30))
            .fold(0.0, |max, error| if error <= max { max } else { error })
    }

    /// Gives any weight these bytes.
    struct Bytes(Vec<u8>);

    impl WeightSource for Bytes {
        fn read(&self, _: &Weight, out: &mut [u8]) -> Result<(), ReadWeightError> {
            out.copy_from_slice(&self.0);
            Ok(())
        }
    }

    /// Random elements of `dtype`, the first block all zero bytes.
    fn random_bytes(seed: u64, elems: usize, dtype: Dtype) -> Vec<u8> {
        if dtype == Dtype::F32 {
            return bytemuck::cast_slice(&random(seed, elems)).to_vec();
        }
        let halves = |seed, len| random(seed, len).into_iter().map(f16::from_f32);
        if dtype == Dtype::F16 {
            return halves(seed, elems).flat_map(f16::to_le_bytes).collect();
        }
        let Dtype::Blocks(format) = dtype else { panic!("{dtype}") };
        let f16_scales = format.facts().f16_scales;
        let len = dtype.bytes(elems).unwrap();
        let mut bytes: Vec<u8> =
            random(seed, len).iter().map(|x| (x * 1000.0) as i32 as u8).collect();
        let scales = halves(seed + 1, 2 * len / dtype.block_bytes()).collect::<Vec<_>>();
        for (block, scales) in bytes.chunks_exact_mut(dtype.block_bytes()).zip(scales.chunks(2)) {
            for (&field, scale) in f16_scales.iter().zip(scales) {
                block[field..field + 2].copy_from_slice(&scale.to_le_bytes());
            }
        }
        bytes[..dtype.block_bytes()].fill(0);
        bytes
    }

    /// A stack of so many rows of each type, and its elements.
    fn stored(parts: &[(usize, Dtype)], k: usize) -> (StoredWeight, Vec<f32>) {
        let (mut bytes, mut elements) = (Vec::new(), Vec::new());
        for (seed, &(rows, dtype)) in (10..).zip(parts) {
            let part = random_bytes(seed, rows * k, dtype);
            let mut values = vec![f32::NAN; rows * k];
            decoder(dtype).unwrap()(Arch::new(), &part, &mut values);
            bytes.extend(part);
            elements.extend(values);
        }
        let part = |&(rows, dtype): &(usize, Dtype)| WeightPart::new("part", rows, dtype);
        let mut weight = Weight::whole("stack", elements.len() / k, k, Dtype::F32);
        weight.parts = parts.iter().map(part).collect();
        assert_eq!(weight.bytes(), bytes.len());
        (StoredWeight::read(&weight, &Bytes(bytes)).unwrap(), elements)
    }

    /// Each format by itself, and in stacks as Q4_K_M has them; an f32 part after blocks, which no
    /// word starts at. x in 16 bits is off by 2^-17 of the largest of 32, evenly spread.
    #[test]
    fn blocks_match_the_oracle_on_what_they_hold() {
        use BlockFormat::*;
        let alone =
            [Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_XS, IQ4_NL, IQ2_S];
        let mut stacks = Vec::from(alone.map(|format| vec![(21, Dtype::Blocks(format))]));
        let (q4, q6) = (Dtype::Q4_K, Dtype::Q6_K);
        stacks.push(vec![(21, Dtype::F16)]);
        stacks.push(vec![(40, q4), (8, q4), (9, q6)]);
        stacks.push(vec![(3, q6), (70, Dtype::F32), (1, Dtype::Q8_0), (130, Dtype::F16)]);
        for parts in stacks {
            for k in [256, 1280] {
                let (weight, elements) = stored(&parts, k);
                let n = elements.len() / k;
                for rows in [1, 2, 3, 4, 5, 9, 70] {
                    let x = random(1, rows * k);
                    let mut out = vec![f32::NAN; rows * n];
                    let mut out_rows = RowsMut::dense(&mut out, n);
                    linear(&Rows::dense(&x, k), &weight, false, false, &mut out_rows);
                    let wanted = oracle(&x, &elements, k, &vec![0.0; rows * n]);
                    let off = relative_error(&out, &wanted, &x, &elements, k);
                    assert!(off < 1e-4, "{off:e}: {rows} rows, k {k}, {parts:?}");
                }
            }
        }
    }

    /// Elements of `dtype` with scales, for E4M3 one a row or a block of 128 x 128, and their
    /// numbers.
    fn stored_plain(dtype: Dtype, n: usize, k: usize) -> (StoredWeight, Vec<f32>) {
        let codes = random(5, n * k).into_iter().map(|x| (x * 1000.0) as i32 as u8);
        let (mut bytes, mut elements) = (Vec::new(), Vec::new());
        for (x, code) in random(6, n * k).into_iter().zip(codes) {
            match dtype {
                Dtype::F16 => bytes.extend(f16::from_f32(x).to_le_bytes()),
                Dtype::BF16 => bytes.extend(bf16::from_f32(x).to_le_bytes()),
                // Not NaN.
                _ => bytes.push(if code & 0x7F == 0x7F { 0 } else { code }),
            }
            elements.push(match *bytes {
                [.., low, high] if dtype == Dtype::F16 => f16::from_le_bytes([low, high]).to_f32(),
                [.., low, high] if dtype == Dtype::BF16 => {
                    bf16::from_le_bytes([low, high]).to_f32()
                }
                _ => E4m3::from_bits(bytes[bytes.len() - 1]).to_f32(),
            });
        }
        let mut weight = Weight::whole("weight", n, k, dtype);
        weight.parts = vec![WeightPart::new("part", n, dtype)];
        if weight.num_scales() > 0 {
            let scales = random(7, weight.num_scales());
            for (i, element) in elements.iter_mut().enumerate() {
                let (row, column) = (i / k, i % k);
                *element *= match dtype {
                    Dtype::F8_E4M3 => scales[row],
                    _ => scales[row / 128 * k.div_ceil(128) + column / 128],
                };
            }
            bytes.resize(weight.scales_at(), 0);
            bytes.extend_from_slice(bytemuck::cast_slice(&scales));
        }
        (StoredWeight::read(&weight, &Bytes(bytes)).unwrap(), elements)
    }

    /// Inner products and tiles, whole ones and parts; columns that fill no step or block.
    #[test]
    fn plain_elements_match_the_oracle() {
        for dtype in [Dtype::F16, Dtype::BF16, Dtype::F8_E4M3, Dtype::F8_E4M3_BLOCKS] {
            for (n, k) in [(1, 32), (5, 13), (150, 256), (37, 700)] {
                let (weight, elements) = stored_plain(dtype, n, k);
                for rows in [1, 2, 3, 4, 7, MAX_DOT_ROWS, MAX_DOT_ROWS + 1, 45] {
                    let x = random(1, rows * k);
                    let mut out = vec![f32::NAN; rows * n];
                    let mut out_rows = RowsMut::dense(&mut out, n);
                    linear(&Rows::dense(&x, k), &weight, false, false, &mut out_rows);
                    let wanted = oracle(&x, &elements, k, &vec![0.0; rows * n]);
                    let off = relative_error(&out, &wanted, &x, &elements, k);
                    assert!(off < 1e-5, "{off:e}: {rows} rows, [{n}, {k}], {dtype}");
                }
            }
        }
    }
}
