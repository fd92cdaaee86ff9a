//! f32 to blocks, bit for bit as ggml chooses levels and scales: one function a format, over a block.
//!
//! Source: `quantize_row_*_ref` (without importance) and `quantize_*` (with it) in ggml's
//! ggml-quants.c.

mod fit;
mod four_bit;
mod k;
mod legacy;

use gpu_types::Dtype;

/// Converts f32, a row of whole blocks, to as many blocks.
///
/// The second argument is how much each column matters, if that is known: levels and scales are
/// chosen so that the errors of the columns that matter are small. None is below zero. Without it
/// the values may be several rows.
///
/// # Errors
/// A value that is not finite or, where the scale of a block has no finite f16, its largest one.
pub type Quantizer = fn(&[f32], Option<&[f32]>, &mut [u8]) -> Result<(), f32>;

/// The conversion of f32 to the blocks of `dtype`, if it is a format that is written.
pub fn quantizer(dtype: Dtype) -> Option<Quantizer> {
    Some(match dtype {
        Dtype::Q4_0 => |x, w, out| legacy_row(x, w, out, legacy::q4_0, legacy::weighted_q4_0),
        Dtype::Q4_1 => |x, w, out| legacy_row(x, w, out, legacy::q4_1, legacy::weighted_q4_1),
        Dtype::Q5_0 => |x, w, out| legacy_row(x, w, out, legacy::q5_0, legacy::weighted_q5_0),
        Dtype::Q5_1 => |x, w, out| legacy_row(x, w, out, legacy::q5_1, legacy::weighted_q5_1),
        Dtype::Q8_0 => |x, _, out| each(x, None, out, |x, _, out| legacy::q8_0(x, out)),
        Dtype::Q2_K => |x, w, out| each(x, w, out, k::q2_k),
        Dtype::Q3_K => |x, w, out| each(x, w, out, k::q3_k),
        Dtype::Q4_K => |x, w, out| each(x, w, out, k::q4_k),
        Dtype::Q5_K => |x, w, out| each(x, w, out, k::q5_k),
        Dtype::Q6_K => |x, w, out| each(x, w, out, k::q6_k),
        Dtype::IQ4_NL => |x, w, out| each(x, w, out, four_bit::iq4_nl),
        Dtype::IQ4_XS => |x, w, out| each(x, w, out, four_bit::iq4_xs),
        Dtype::MXFP4 => |x, _, out| each(x, None, out, |x, _, out| four_bit::mxfp4(x, out)),
        _ => return None,
    })
}

/// A scale that has no finite f16.
struct Overflow;

/// Checks scales, and sums of squares: those of large values are beyond f32.
fn check(values: &[f32]) -> Result<(), Overflow> {
    if values.iter().all(|value| value.is_finite()) { Ok(()) } else { Err(Overflow) }
}

/// Quantises a block whose columns have weights, the second argument.
type Weighted<const BYTES: usize> =
    fn(&[f32; 32], &[f32; 32], &mut [u8; BYTES]) -> Result<(), Overflow>;

/// A format of 32 elements: what a value weighs depends on the mean square of its row.
fn legacy_row<const BYTES: usize>(
    values: &[f32],
    importance: Option<&[f32]>,
    out: &mut [u8],
    plain: fn(&[f32; 32], &mut [u8; BYTES]) -> Result<(), Overflow>,
    weighted: Weighted<BYTES>,
) -> Result<(), f32> {
    let sigma2 = importance.map_or(0.0, |_| fit::mean_square(values));
    // The squares of large values are beyond f32.
    if !sigma2.is_finite() {
        let not_finite = values.iter().find(|value| !value.is_finite());
        return Err(not_finite.copied().unwrap_or_else(|| largest(values)));
    }
    each(values, importance, out, |values, importance, out| match importance {
        None => plain(values, out),
        Some(importance) => weighted(values, &fit::weights(values, importance, sigma2), out),
    })
}

/// Applies `block` to each `ELEMS` of `values`, their importance and the `BYTES` of `out` that they
/// become.
fn each<const ELEMS: usize, const BYTES: usize>(
    values: &[f32],
    importance: Option<&[f32]>,
    out: &mut [u8],
    block: impl Fn(&[f32; ELEMS], Option<&[f32; ELEMS]>, &mut [u8; BYTES]) -> Result<(), Overflow>,
) -> Result<(), f32> {
    let mut importance = importance.map(|importance| importance.as_chunks().0.iter());
    for (values, out) in values.as_chunks().0.iter().zip(out.as_chunks_mut().0) {
        if let Some(&value) = values.iter().find(|value| !value.is_finite()) {
            return Err(value);
        }
        let importance = importance.as_mut().and_then(Iterator::next);
        block(values, importance, out).map_err(|Overflow| largest(values))?;
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
