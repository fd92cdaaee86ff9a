//! Stored elements to f32, bit for bit as ggml converts them: one function a format, over a block.
//!
//! Source: the `block_*` structures in ggml's ggml-common.h and `dequantize_row_*` in
//! ggml-quants.c.

mod four_bit;
mod k;
mod legacy;
mod quantize;

use half::f16;
use half::slice::HalfFloatSliceExt;

use crate::plan::Dtype;

pub use quantize::quantizer;

/// Converts whole blocks to as many f32 as they hold.
pub type Decoder = fn(&[u8], &mut [f32]);

/// The conversion of `dtype` to f32, if it is one that weights are stored in.
pub fn decoder(dtype: Dtype) -> Option<Decoder> {
    Some(match dtype {
        Dtype::F32 => |stored, out| each(stored, out, |x, [out]| *out = f32::from_le_bytes(*x)),
        Dtype::F16 => f16_run,
        Dtype::BF16 => |stored, out| {
            each(stored, out, |&[low, high]: &[u8; 2], [out]| {
                *out = f32::from_le_bytes([0, 0, low, high]);
            });
        },
        Dtype::Q4_0 => |stored, out| each(stored, out, legacy::q4_0),
        Dtype::Q4_1 => |stored, out| each(stored, out, legacy::q4_1),
        Dtype::Q5_0 => |stored, out| each(stored, out, legacy::q5_0),
        Dtype::Q5_1 => |stored, out| each(stored, out, legacy::q5_1),
        Dtype::Q8_0 => |stored, out| each(stored, out, legacy::q8_0),
        Dtype::Q2_K => |stored, out| each(stored, out, k::q2_k),
        Dtype::Q3_K => |stored, out| each(stored, out, k::q3_k),
        Dtype::Q4_K => |stored, out| each(stored, out, k::q4_k),
        Dtype::Q5_K => |stored, out| each(stored, out, k::q5_k),
        Dtype::Q6_K => |stored, out| each(stored, out, k::q6_k),
        Dtype::IQ4_XS => |stored, out| each(stored, out, four_bit::iq4_xs),
        Dtype::MXFP4 => |stored, out| each(stored, out, four_bit::mxfp4),
        Dtype::U32 => return None,
    })
}

/// Applies `block` to each `BYTES` of `stored` and the `ELEMS` of `out` that they become.
fn each<const BYTES: usize, const ELEMS: usize>(
    stored: &[u8],
    out: &mut [f32],
    block: impl Fn(&[u8; BYTES], &mut [f32; ELEMS]),
) {
    let (blocks, outs) = (stored.as_chunks().0, out.as_chunks_mut().0);
    blocks.iter().zip(outs).for_each(|(stored, out)| block(stored, out));
}

/// F16, many at a time: the processor's own instruction converts eight.
fn f16_run(stored: &[u8], out: &mut [f32]) {
    let mut halves = [f16::ZERO; 64];
    for (stored, out) in stored.chunks(2 * halves.len()).zip(out.chunks_mut(halves.len())) {
        let halves = &mut halves[..out.len()];
        for (half, bytes) in halves.iter_mut().zip(stored.as_chunks().0) {
            *half = f16::from_le_bytes(*bytes);
        }
        halves.convert_to_f32_slice(out);
    }
}

/// The `N` bytes of a block from `start` on.
fn field<const N: usize>(block: &[u8], start: usize) -> &[u8; N] {
    block[start..].first_chunk().expect("a field is inside its block")
}

/// The f16 of a block at `start`, as f32.
fn half_at(block: &[u8], start: usize) -> f32 {
    f16::from_le_bytes(*field(block, start)).to_f32()
}
