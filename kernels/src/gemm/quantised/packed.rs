//! The host's side of packed weights: from the blocks of a file to the tiles of [`format`].
//!
//! [`format`]: super::format

use super::format::{BLOCKS, Format, TILE_K, TILE_ROWS, UNIT_K, UNIT_STEPS};
use cuda_std::launch::{DevicePtr, LaunchError};
use gpu_types::{BlockFormat, TileLayout};
use std::any::TypeId;

const ROWS: usize = TILE_ROWS as usize;
const UNIT: usize = UNIT_K as usize;

/// `$value` of `$F`, the type that reads tiles of `$format`; `None` of a format without tiles.
macro_rules! with_format {
    ([$($ty:ty as $name:literal),* $(,)?] [$format:ident, $F:ident => $value:expr]) => {
        $(if $format as u32 == <$ty as Format>::FORMAT as u32 {
            type $F = $ty;
            Some($value)
        } else)* {
            None
        }
    };
    ($format:expr, $F:ident => $value:expr) => {{
        let format: BlockFormat = $format;
        BLOCKS! { with_format [format, $F => $value] }
    }};
}

pub(super) use with_format;

// What kernels read is what the table of formats says.
const _: () = {
    let mut i = 0;
    while i < BlockFormat::ALL.len() {
        let format = BlockFormat::ALL[i];
        let read = with_format!(format, F => [F::SCALE_BYTES as usize, F::UNIT_BYTES as usize]);
        match (format.tile_bytes(), read) {
            (Some([scales, unit]), Some(read)) => assert!(scales == read[0] && unit == read[1]),
            (tile, read) => assert!(tile.is_none() && read.is_none()),
        }
        i += 1;
    }
};

/// The one of `all` instances whose type `f` reads tiles of `format`, and for which `is_it` holds.
///
/// # Errors
/// [`LaunchError::Shape`] if there is none.
pub fn instance_of<I: Copy>(
    format: BlockFormat,
    all: &[I],
    f: fn(I) -> TypeId,
    is_it: impl Fn(I) -> bool,
) -> Result<I, LaunchError> {
    let reader = format_type(format)?;
    let mut found = all.iter().copied().filter(|&i| f(i) == reader && is_it(i));
    found.next().ok_or_else(|| no_kernel(format))
}

/// The type that reads tiles of `format`.
///
/// # Errors
/// [`LaunchError::Shape`] if there is none.
pub fn format_type(format: BlockFormat) -> Result<TypeId, LaunchError> {
    with_format!(format, F => TypeId::of::<F>()).ok_or_else(|| no_kernel(format))
}

fn no_kernel(format: BlockFormat) -> LaunchError {
    let (value, expected) = (format.facts().ggml_id as usize, "a type that kernels multiply");
    LaunchError::Shape { what: "ggml type", value, expected }
}

/// Packs up to 16 rows of `k` elements, `stored` as the file has them, into `out`; missing rows
/// are zeros. Rows of tiles are independent of each other.
///
/// # Panics
/// If `format` has no tiles, `k` is no multiple of its blocks, `stored` is no whole rows or more
/// than 16, or `out` is not of [`BlockFormat::row_tile_bytes`].
pub fn pack(format: BlockFormat, k: usize, stored: &[u8], out: &mut [u8]) {
    let (elems, block_bytes) = (format.block_elems(), format.block_bytes());
    let row_bytes = k / elems * block_bytes;
    assert!(k.is_multiple_of(elems), "k is {k} in {format:?}");
    assert!(stored.len().is_multiple_of(row_bytes) && stored.len() <= ROWS * row_bytes);
    assert_eq!(Some(out.len()), format.row_tile_bytes(k));
    let rows: Vec<&[u8]> = stored.chunks_exact(row_bytes).collect();
    out.fill(0);
    let layout = format.tile().expect("it has the bytes of tiles");
    let [scale_bytes, unit_bytes] = format.tile_bytes().expect("it has tiles");
    let tile_bytes = scale_bytes + TILE_K as usize / UNIT * unit_bytes;
    let tile_blocks = TILE_K as usize / elems;
    let quants_of: fn(&[u8], &mut [u8]) =
        with_format!(format, F => F::quants as fn(&[u8], &mut [u8])).expect("it has tiles");
    for (tile, out) in out.chunks_mut(tile_bytes).enumerate() {
        let (scales, units) = out.split_at_mut(scale_bytes);
        let mut quants = [[0; TILE_K as usize]; ROWS];
        for (row, stored) in rows.iter().enumerate() {
            let stored = stored.chunks_exact(block_bytes);
            for (i, block) in stored.skip(tile * tile_blocks).take(tile_blocks).enumerate() {
                pack_scales(&layout, block, [row, i, tile_blocks], scales);
                quants_of(block, &mut quants[row][i * elems..][..elems]);
            }
        }
        for (unit, out) in units.chunks_exact_mut(unit_bytes).enumerate() {
            pack_unit(layout.quant_bits, &quants, unit * UNIT, out);
        }
    }
}

/// Copies the scales of block `i` of `blocks` in row `row` to their place in a tile.
fn pack_scales(layout: &TileLayout, block: &[u8], [row, i, blocks]: [usize; 3], scales: &mut [u8]) {
    let mut copy = |to: usize, (start, end): (usize, usize)| {
        scales[to..to + end - start].copy_from_slice(&block[start..end]);
    };
    let bytes = layout.scales.1 - layout.scales.0;
    copy(bytes * (blocks * row + i), layout.scales);
    let mut first = bytes * blocks * ROWS;
    for &(start, end) in layout.row_factors {
        copy(first + (end - start) * (row % 8 * 2 + row / 8), (start, end));
        first += (end - start) * ROWS;
    }
}

/// Packs the quants of 64 elements along k from `first` on.
fn pack_unit(
    [low_bits, high_bits]: [usize; 2],
    quants: &[[u8; TILE_K as usize]; ROWS],
    first: usize,
    out: &mut [u8],
) {
    let (low_out, high_out) = out.split_at_mut(128 * low_bits);
    for lane in 0..32 {
        let (group, pair) = (lane / 4, lane % 4);
        let [mut low, mut high] = [0; 2];
        for step in 0..UNIT_STEPS {
            let k = first + 16 * step + 4 * pair;
            let rows = [group, group + 8].map(|row| {
                let [a, b, c, d] = [0, 1, 2, 3].map(|i| u32::from(quants[row][k + i]));
                // Bytes in the order of the columns 0, 8, 1, 9 of A.
                a | c << 8 | b << 16 | d << 24
            });
            match low_bits {
                8 => {
                    let at = step / 2 * 512 + 16 * lane + step % 2 * 8;
                    low_out[at..at + 8].copy_from_slice(rows.map(u32::to_le_bytes).as_flattened());
                }
                4 => {
                    let [upper, lower] = rows.map(|row| row & 0x0f0f_0f0f);
                    let word = upper | lower << 4;
                    low_out[16 * lane + 4 * step..][..4].copy_from_slice(&word.to_le_bytes());
                }
                _ => low |= plane(low_bits, step, rows),
            }
            high |= plane(high_bits, step, rows.map(|row| row >> low_bits));
        }
        if low_bits == 2 {
            low_out[8 * lane..][..8].copy_from_slice(&low.to_le_bytes());
        }
        let bytes = 4 * high_bits;
        high_out[bytes * lane..][..bytes].copy_from_slice(&high.to_le_bytes()[..bytes]);
    }
}

/// Whether kernels take a packed weight `[n, k]` of `format` at `weight`.
pub fn check(
    format: BlockFormat,
    n: usize,
    k: usize,
    weight: DevicePtr<u8>,
) -> Result<(), LaunchError> {
    let refuse = |what, value, expected| Err(LaunchError::Shape { what, value, expected });
    if format.tile().is_none() {
        return Err(no_kernel(format));
    }
    if !k.is_multiple_of(format.block_elems()) {
        let expected = match format.block_elems() {
            256 => "a multiple of 256",
            _ => "a multiple of 32",
        };
        return refuse("k", k, expected);
    }
    if format.row_tile_bytes(k).is_none_or(|bytes| u32::try_from(bytes).is_err()) {
        return refuse("k", k, "16 rows of at most 4 GiB");
    }
    if format.packed_bytes(n, k).is_none_or(|bytes| bytes > isize::MAX as usize) {
        return refuse("n", n, "a weight that fits into memory");
    }
    if !weight.0.is_multiple_of(16) {
        return refuse("address", weight.0 as usize, "a multiple of 16");
    }
    Ok(())
}

/// The lowest `bits` of the quants of a step in a lane's words of a plane, see `Nibbles`; the second
/// word is the upper half.
fn plane(bits: usize, step: usize, [upper, lower]: [u32; 2]) -> u64 {
    let (word, shift) = (step * bits / 4, step * bits % 4);
    let of = |row: u32, column: usize| {
        let [a, c, b, d] = row.to_le_bytes().map(|byte| u64::from(byte) & ((1 << bits) - 1));
        let [lo, hi] = if column == 0 { [a, b] } else { [c, d] };
        lo | hi << 16
    };
    let of_word = of(upper, 0) << (4 + shift)
        | of(lower, 0) << (8 + shift)
        | of(upper, 1) << (12 + shift)
        | of(lower, 1) << shift;
    of_word << (32 * word)
}
