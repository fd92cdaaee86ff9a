//! Weights that are not dense: rows in E4M3, and blocks of every format with tiles.

use crate::harness::*;
use blocks::Arch;
use gpu_types::{Dtype, OnGpu, TileLayout};
use half::f16;
use kernels::Rows;
use kernels::gemm::quantised::{self, BlockFormat};
use oracle::{E4M3_MAX, Matrix, Rng, e4m3_code, e4m3_value};
use std::ops::Range;

/// Rows of a weight, and elements of a row, that share a scale where blocks have scales.
const SCALE_BLOCK: usize = 128;

/// The code of NaN in E4M3: between rows, and past the last one.
pub const NAN: u8 = 0x7f;

/// A matrix as it is stored: codes in E4M3 and their scales, or blocks as a file has them.
#[derive(Clone, Default)]
pub struct Codes {
    pub bytes: Vec<u8>,
    pub scales: Vec<f32>,
}

impl Codes {
    /// Rows of `k` codes at a stride, up to `max_rows` rows, with NaN between and after them.
    pub fn rows(
        &self,
        device: &mut Device,
        name: &str,
        k: usize,
        (stride, max_rows): (usize, usize),
    ) -> Rows<()> {
        let padded = |row: &[u8]| [row, &vec![NAN; stride - k]].concat();
        let mut bytes: Vec<u8> = self.bytes.chunks(k).flat_map(padded).collect();
        bytes.resize(max_rows * stride, NAN);
        Rows::new(device.bytes(name, &bytes), stride)
    }
}

/// Rows of every code but NaN, small ones more often; row 1 a hundred times larger than the others,
/// row 2 of zeros, row 3 of the largest numbers.
pub fn e4m3([rows, k]: [usize; 2], in_blocks: bool, salt: u64) -> (Matrix, Codes) {
    let value = |x: f32| if x > 0.9 { E4M3_MAX * (x - 0.9) * 10.0 } else { x };
    let codes = random(rows * k, salt).into_iter().map(|x| e4m3_code(value(x)));
    let mut codes: Vec<u8> = codes.collect();
    let k_blocks = k.div_ceil(SCALE_BLOCK);
    let num_scales = if in_blocks { rows.div_ceil(SCALE_BLOCK) * k_blocks } else { rows };
    let scales = random(num_scales, salt + 5).into_iter().map(|x| 0.01 * (x.abs() + 0.1));
    let mut scales: Vec<f32> = scales.collect();
    if rows > 4 {
        codes[2 * k..3 * k].fill(0);
        codes[3 * k..4 * k].fill(0x7e);
        scales[1 % num_scales] *= 100.0;
    }
    let matrix = Matrix::new(rows, k, |row, column| {
        let block = row / SCALE_BLOCK * k_blocks + column / SCALE_BLOCK;
        let scale = scales[if in_blocks { block } else { row }];
        f64::from(e4m3_value(codes[row * k + column])) * f64::from(scale)
    });
    (matrix, Codes { bytes: codes, scales })
}

/// Random rows of a format; each factor of a block is `factor` of a number from -1 to 1, or near its
/// magnitude.
pub fn tiles(
    format: BlockFormat,
    [rows, k]: [usize; 2],
    factor: impl Fn(f32) -> f32,
) -> (Matrix, Codes) {
    let mut rng = Rng::new(2);
    let mut bytes: Vec<u8> = Vec::new();
    let small_floats = SmallFloats::new(format);
    for _ in 0..rows * (k / format.block_elems()) {
        let mut block: Vec<u8> = (0..format.block_bytes()).map(|_| rng.bits() as u8).collect();
        for &at in format.facts().f16_scales {
            let factor = factor(rng.float());
            block[at..at + 2].copy_from_slice(&f16::from_f32(factor).to_le_bytes());
        }
        for at in small_floats.field.clone() {
            block[at] = small_floats.nearest(factor(rng.float()));
        }
        bytes.extend(block);
    }
    let values = elements(format, &bytes).into_iter().map(f64::from).collect();
    (Matrix { rows, cols: k, values }, Codes { bytes, scales: Vec::new() })
}

/// The elements of blocks as the CPU's codecs have them, which are compared with ggml's own.
fn elements(format: BlockFormat, stored: &[u8]) -> Vec<f32> {
    let mut out = vec![0.0; stored.len() / format.block_bytes() * format.block_elems()];
    let decode = blocks::decoder(Dtype::Blocks(format)).expect("every format has one");
    decode(Arch::new(), stored, &mut out);
    out
}

/// Scales of a byte, of a format that has none in f16.
struct SmallFloats {
    /// Where they are in a block.
    field: Range<usize>,
    /// The largest element of a block by its scale.
    largest: Vec<f32>,
}

impl SmallFloats {
    fn new(format: BlockFormat) -> Self {
        let OnGpu::Tiles(TileLayout { scales: (start, end), .. }) = format.facts().on_gpu else {
            panic!("{format:?} has no tiles");
        };
        let field = if format.facts().f16_scales.is_empty() { start..end } else { 0..0 };
        let largest = |scale| {
            let elements = (0..=255).flat_map(|quants| {
                let mut block = vec![quants; format.block_bytes()];
                block[field.clone()].fill(scale);
                elements(format, &block)
            });
            elements.fold(0.0, f32::max)
        };
        let scales = if field.is_empty() { 0..=0 } else { 0..=255 };
        SmallFloats { largest: scales.map(largest).collect(), field }
    }

    /// The scale with which the largest element is nearest to that with `factor`, in f16; of zero for
    /// zero alone.
    fn nearest(&self, factor: f32) -> u8 {
        let largest = |scale: u8| self.largest[usize::from(scale)];
        let off = |scale: &u8| (largest(*scale) - 8.0 * factor.abs()).abs();
        let scales = (0..=255).filter(|&scale| factor == 0.0 || largest(scale) > 0.0);
        scales.min_by(|a, b| off(a).total_cmp(&off(b))).expect("some are not zero")
    }
}

/// The formats in blocks of `elems` elements.
pub fn in_blocks_of(elems: usize) -> impl Iterator<Item = BlockFormat> + Clone {
    BlockFormat::tiled().filter(move |format| format.block_elems() == elems)
}

/// Packs `rows` rows.
pub fn pack(format: BlockFormat, [rows, k]: [usize; 2], stored: &[u8]) -> Vec<u8> {
    let mut packed = vec![0; format.packed_bytes(rows, k).unwrap()];
    let stored_tiles = stored.chunks(16 * stored.len() / rows);
    let tiles = packed.chunks_exact_mut(format.row_tile_bytes(k).unwrap());
    tiles.zip(stored_tiles).for_each(|(out, stored)| quantised::pack(format, k, stored, out));
    packed
}
