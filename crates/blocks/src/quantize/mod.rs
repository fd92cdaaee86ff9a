//! f32 to blocks, bit for bit as ggml's reference quantisers choose levels and scales: one function
//! a format, over a block. Where a group's scale is zero any level would do; it is 0 here.
//!
//! Source: `quantize_row_*_ref` in ggml's ggml-quants.c, without an importance matrix.

mod k;
mod legacy;

use gpu_types::Dtype;

/// Converts f32, a whole number of blocks of them, to as many blocks.
///
/// # Errors
/// A value that is not finite or, where the scale of a block has no finite f16, its largest one.
pub type Quantizer = fn(&[f32], &mut [u8]) -> Result<(), f32>;

/// The conversion of f32 to the blocks of `dtype`, if it is a format that is written.
pub fn quantizer(dtype: Dtype) -> Option<Quantizer> {
    Some(match dtype {
        Dtype::Q4_0 => |values, out| each(values, out, legacy::q4_0),
        Dtype::Q4_1 => |values, out| each(values, out, legacy::q4_1),
        Dtype::Q5_0 => |values, out| each(values, out, legacy::q5_0),
        Dtype::Q5_1 => |values, out| each(values, out, legacy::q5_1),
        Dtype::Q8_0 => |values, out| each(values, out, legacy::q8_0),
        Dtype::Q4_K => |values, out| each(values, out, k::q4_k),
        Dtype::Q5_K => |values, out| each(values, out, k::q5_k),
        Dtype::Q6_K => |values, out| each(values, out, k::q6_k),
        _ => return None,
    })
}

/// A scale that has no finite f16.
struct Overflow;

/// Applies `block` to each `ELEMS` of `values` and the `BYTES` of `out` that they become.
fn each<const ELEMS: usize, const BYTES: usize>(
    values: &[f32],
    out: &mut [u8],
    block: impl Fn(&[f32; ELEMS], &mut [u8; BYTES]) -> Result<(), Overflow>,
) -> Result<(), f32> {
    for (values, out) in values.as_chunks().0.iter().zip(out.as_chunks_mut().0) {
        if let Some(&value) = values.iter().find(|value| !value.is_finite()) {
            return Err(value);
        }
        block(values, out).map_err(|Overflow| largest(values))?;
    }
    Ok(())
}

/// The value of the largest magnitude, the first of several.
fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |most: f32, &value| if value.abs() > most.abs() { value } else { most })
}

/// Writes `value` as f16 to the start of `out`, and returns what it has become.
fn put_half(out: &mut [u8], value: f32) -> Result<f32, Overflow> {
    let half = half::f16::from_f32(value);
    out[..2].copy_from_slice(&half.to_le_bytes());
    if half.is_finite() { Ok(half.to_f32()) } else { Err(Overflow) }
}

/// `1 / scale`, and 0 for 0.
fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}
