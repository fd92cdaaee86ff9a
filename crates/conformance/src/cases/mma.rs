//! Warp-level MMAs.

use conformance_kernels::mma::{K, K_OF_8_BITS, M, N, mma_f16, mma_f32, mma_fp8};
use cuda_std::launch::Geometry;

use crate::inputs::{blocks, random_words, words_of_bytes, words_of_halves};
use crate::mma_reference::{self, Accumulation, Draw, Element, Operand, PROBES_OF_16_BITS, Step};
use crate::numbers::{BF16, E4M3, E5M2, F16, Format, Rounding};
use crate::{Buffer, Case, Tolerance, Want};

/// MMAs, one per block.
const NUM_TILES: u32 = 16;

const ROWS: usize = M as usize;
const COLUMNS: usize = N as usize;

/// All cases.
pub fn cases() -> Vec<Case> {
    use mma_f32::Instance;
    let (f16, bf16) = (Instance::mma_f32_f16, Instance::mma_f32_bf16);
    vec![
        accumulated_in_f32("mma_whole_f16", f16, F16, Draw::Whole),
        accumulated_in_f32("mma_whole_bf16", bf16, BF16, Draw::Whole),
        accumulated_in_f32("mma_any_f16", f16, F16, Draw::Any),
        accumulated_in_f32("mma_any_bf16", bf16, BF16, Draw::Any),
        probe("mma_probe_f16", f16, F16),
        probe("mma_probe_bf16", bf16, BF16),
        accumulated_in_f16("mma_whole_f16_in_f16", Draw::Whole),
        accumulated_in_f16("mma_any_f16_in_f16", Draw::Any),
        eight_bit_elements("mma_whole_e4m3", mma_fp8::Instance::mma_fp8_e4m3, E4M3, Draw::Whole),
        eight_bit_elements("mma_whole_e5m2", mma_fp8::Instance::mma_fp8_e5m2, E5M2, Draw::Whole),
        eight_bit_elements("mma_any_e4m3", mma_fp8::Instance::mma_fp8_e4m3, E4M3, Draw::Any),
        eight_bit_elements("mma_any_e5m2", mma_fp8::Instance::mma_fp8_e5m2, E5M2, Draw::Any),
    ]
}

/// A tile's operands, and C: integers, or numbers with all of f32's bits.
fn tile(format: Format, k: u32, draw: Draw, seed: u64) -> (Operand, Operand, Vec<f64>) {
    let k = k as usize;
    let a = Operand::random(format, (ROWS, k), draw, seed);
    let b = Operand::random(format, (COLUMNS, k), draw, seed + 1);
    let c = random_words(seed + 2).take(ROWS * COLUMNS).map(|word| match draw {
        Draw::Whole => f64::from(word % 64) - 32.0,
        Draw::Any => f64::from((word as i32 as f32) * 2f32.powi(-27)),
    });
    let c = c.collect();
    (a, b, c)
}

fn tiles(format: Format, draw: Draw) -> Vec<(Operand, Operand, Vec<f64>)> {
    let mut tiles: Vec<_> =
        (0..u64::from(NUM_TILES)).map(|seed| tile(format, K, draw, 70 + 3 * seed)).collect();
    if draw == Draw::Whole {
        let [infinity, nan] =
            [f64::INFINITY, f64::NAN].map(|value| format.round(value, Rounding::Nearest));
        // Some of the infinities in a row cancel.
        for (mn, k, code) in [(3, 5, infinity), (3, 11, infinity), (4, 5, nan)] {
            tiles[0].0.codes[mn][k] = code;
            tiles[1].1.codes[mn][k] = code;
        }
    }
    tiles
}

/// The elements of tiles, added up by instructions of k = 16.
fn elements(tiles: &[(Operand, Operand, Vec<f64>)], in_f16: bool) -> Vec<Element> {
    let step = Step { k: K as usize, in_f16 };
    tiles.iter().flat_map(|(a, b, c)| mma_reference::elements(a, b, c, step)).collect()
}

fn halves<'a>(operands: impl Iterator<Item = &'a Operand>) -> Buffer {
    let codes: Vec<u16> = operands.flat_map(|operand| operand.codes.concat()).collect();
    Buffer::words(&words_of_halves(&codes))
}

fn bits_of_f32(values: impl Iterator<Item = f64>) -> Vec<u32> {
    values.map(|value| (value as f32).to_bits()).collect()
}

fn geometry(num_tiles: u32) -> Geometry {
    blocks(num_tiles, 32)
}

fn accumulated_in_f32(
    name: &'static str,
    instance: mma_f32::Instance,
    format: Format,
    draw: Draw,
) -> Case {
    let tiles = tiles(format, draw);
    let want = mma_reference::want(&elements(&tiles, false), draw);
    let buffers = vec![
        halves(tiles.iter().map(|(a, ..)| a)),
        halves(tiles.iter().map(|(_, b, _)| b)),
        Buffer::words(&bits_of_f32(tiles.iter().flat_map(|(.., c)| c.iter().copied()))),
        Buffer::Out(want),
    ];
    Case::new(name, buffers, move |p| {
        mma_f32::Args { num_columns: N, a: p.at(0), b: p.at(1), c: p.at(2), out: p.at(3) }
            .launch(instance, geometry(NUM_TILES))
    })
}

/// 8-bit elements, accumulated in f32: two steps of 16 products in f16.
fn eight_bit_elements(
    name: &'static str,
    instance: mma_fp8::Instance,
    format: Format,
    draw: Draw,
) -> Case {
    let tiles: Vec<_> = (0..u64::from(NUM_TILES))
        .map(|seed| tile(format, K_OF_8_BITS, draw, 170 + 3 * seed))
        .collect();
    let want = mma_reference::want(&elements(&tiles, false), draw);
    let bytes = |operands: &mut dyn Iterator<Item = &Operand>| {
        let codes = operands.flat_map(|operand| operand.codes.concat());
        Buffer::words(&words_of_bytes(&codes.map(|code| code as u8).collect::<Vec<u8>>()))
    };
    let buffers = vec![
        bytes(&mut tiles.iter().map(|(a, ..)| a)),
        bytes(&mut tiles.iter().map(|(_, b, _)| b)),
        Buffer::words(&bits_of_f32(tiles.iter().flat_map(|(.., c)| c.iter().copied()))),
        Buffer::Out(want),
    ];
    Case::new(name, buffers, move |p| {
        mma_fp8::Args { num_columns: N, a: p.at(0), b: p.at(1), c: p.at(2), out: p.at(3) }
            .launch(instance, geometry(NUM_TILES))
    })
}

/// How the tensor cores accumulate.
fn probe(name: &'static str, instance: mma_f32::Instance, format: Format) -> Case {
    let (a, b, want) = mma_reference::probes(&PROBES_OF_16_BITS, format, K as usize, COLUMNS);
    let before = |sum: &Accumulation| [sum.before; COLUMNS];
    let buffers = vec![
        halves([&a].into_iter()),
        halves([&b].into_iter()),
        Buffer::words(&bits_of_f32(PROBES_OF_16_BITS.iter().flat_map(before))),
        Buffer::Out(want),
    ];
    Case::new(name, buffers, move |p| {
        mma_f32::Args { num_columns: 1, a: p.at(0), b: p.at(1), c: p.at(2), out: p.at(3) }
            .launch(instance, geometry(1))
    })
}

/// Accumulation in f16.
fn accumulated_in_f16(name: &'static str, draw: Draw) -> Case {
    let round = |value: f64| F16.round(value, Rounding::Nearest);
    let mut tiles = tiles(F16, draw);
    // C is representable in f16.
    let all = tiles.iter_mut().flat_map(|(.., c)| c);
    all.for_each(|value| *value = F16.value(round(*value)));
    let elements = elements(&tiles, true);
    let exact = elements.iter().map(|element| element.exact);
    let want = match draw {
        Draw::Whole => {
            let codes: Vec<u16> = exact.map(round).collect();
            Want::Words(words_of_halves(&codes))
        }
        Draw::Any => {
            let bounds = elements.iter().map(|element| element.bound()).collect();
            Want::F16(exact.collect(), Tolerance::Each(bounds))
        }
    };
    let c: Vec<u16> = tiles.iter().flat_map(|(.., c)| c.iter().map(|&c| round(c))).collect();
    let buffers = vec![
        halves(tiles.iter().map(|(a, ..)| a)),
        halves(tiles.iter().map(|(_, b, _)| b)),
        Buffer::words(&words_of_halves(&c)),
        Buffer::Out(want),
    ];
    Case::new(name, buffers, |p| {
        mma_f16::Args { a: p.at(0), b: p.at(1), c: p.at(2), out: p.at(3) }
            .launch(geometry(NUM_TILES))
    })
}
