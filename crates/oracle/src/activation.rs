//! Activations, and gates by them.

use crate::{Approx, Element, SUM_ROUNDING};
use gpu_types::Activation;

/// `activation(x)`.
pub fn activate(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            // `0.5 x (1 + tanh(u))`, without a difference of nearly equal numbers.
            x / (1.0 + (-2.0 * u).exp())
        }
        Activation::SwigluOai => {
            let x = if x > 7.0 { 7.0 } else { x };
            x / (1.0 + (-1.702 * x).exp())
        }
    }
}

/// What `activation(gate)` is multiplied with.
pub fn factor(activation: Activation, up: f64) -> f64 {
    match activation {
        Activation::Silu | Activation::GeluTanh => up,
        Activation::SwigluOai => up.clamp(-7.0, 7.0) + 1.0,
    }
}

/// What no slope of an activation is steeper than.
pub const MAX_SLOPE: f64 = 1.13;

/// `activation(gate) * up`, clamped to the numbers of `E` where that is f16, and not yet stored.
pub fn gated<E: Element>(activation: Activation, gate: Approx, up: Approx) -> Approx {
    let activated = activate(activation, gate.value);
    let off = MAX_SLOPE * gate.bound;
    let factor = factor(activation, up.value);
    let product = activated * factor;
    let bound = off * factor.abs() + activated.abs() * up.bound + off * up.bound;
    let bound = bound + SUM_ROUNDING * product.abs();
    let is_clamped = E::MAX < 1e6 && !product.is_nan();
    Approx::new(if is_clamped { product.clamp(-E::MAX, E::MAX) } else { product }, bound)
}
