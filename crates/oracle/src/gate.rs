//! SwiGLU.

use crate::{Approx, Element, SUM_ROUNDING};

/// `x * sigmoid(x)`.
pub fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// `silu(gate) * up`, clamped to the numbers of `E` where that is f16, and not yet stored.
pub fn gated<E: Element>(gate: Approx, up: Approx) -> Approx {
    let activated = silu(gate.value);
    // The slope of SiLU is at most 1.1.
    let off = 1.1 * gate.bound;
    let product = activated * up.value;
    let bound = off * up.value.abs() + activated.abs() * up.bound + off * up.bound;
    let bound = bound + SUM_ROUNDING * product.abs();
    let is_clamped = E::MAX < 1e6 && !product.is_nan();
    Approx::new(if is_clamped { product.clamp(-E::MAX, E::MAX) } else { product }, bound)
}
