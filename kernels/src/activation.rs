//! Gates of feed-forward layers, `activation(gate) * up`: the device function of each activation. A
//! new one is a type and a name in `ROW_GATES` here, and in `GATES` for dense models.

use crate::element::Number;
use core::f32::consts::LOG2_E;
use cuda_std::prelude::*;
use gpu_types::Activation;

cuda_std::instance_set! {
    /// The gates that kernels fuse with linear layers, in the order of [`Activation::FUSED`].
    pub(crate) GATES = [
        crate::activation::Silu as "silu",
        crate::activation::GeluTanh as "gelu_tanh",
    ];
}

cuda_std::instance_set! {
    /// All gates, in the order of [`Activation::ALL`].
    pub(crate) ROW_GATES = [
        crate::activation::Silu as "silu",
        crate::activation::GeluTanh as "gelu_tanh",
        crate::activation::SwigluOai as "swiglu_oai",
    ];
}

/// The gate of a linear layer, or of rows.
pub trait Gate: 'static {
    /// The activation; `None` without a gate.
    const ACTIVATION: Option<Activation>;
    /// Parts of a linear layer's weight: one, or gate and up, stacked.
    const PARTS: usize = num_parts(Self::ACTIVATION);

    /// `activation(x)`.
    fn activate(x: f32) -> f32;

    /// `activation(gate) * up`, clamped to [`Number::CLAMP`].
    #[inline(always)]
    fn apply<E: Number>(gate: f32, up: f32) -> f32 {
        (Self::activate(gate) * up).clamp(-E::CLAMP, E::CLAMP)
    }
}

/// No gate.
pub struct NoGate;

impl Gate for NoGate {
    const ACTIVATION: Option<Activation> = None;

    #[inline(always)]
    fn activate(x: f32) -> f32 {
        x
    }
}

/// [`Activation::Silu`].
pub struct Silu;

impl Gate for Silu {
    const ACTIVATION: Option<Activation> = Some(Activation::Silu);

    #[inline(always)]
    fn activate(x: f32) -> f32 {
        // For a very negative x the exponential is infinite and its reciprocal 0, as silu is.
        x * math::rcp_approx(1.0 + math::exp2_approx(-x * LOG2_E))
    }
}

/// [`Activation::GeluTanh`].
pub struct GeluTanh;

impl Gate for GeluTanh {
    const ACTIVATION: Option<Activation> = Some(Activation::GeluTanh);

    #[inline(always)]
    fn activate(x: f32) -> f32 {
        // As silu, of twice the argument of tanh.
        let factor = math::fma(x * x, Activation::GELU_CUBIC, 1.0);
        let exponent = x * (-2.0 * Activation::GELU_SLOPE * LOG2_E) * factor;
        x * math::rcp_approx(1.0 + math::exp2_approx(exponent))
    }
}

/// [`Activation::SwigluOai`].
pub struct SwigluOai;

impl Gate for SwigluOai {
    const ACTIVATION: Option<Activation> = Some(Activation::SwigluOai);

    #[inline(always)]
    fn activate(x: f32) -> f32 {
        // NaN stays.
        let x = if x > Activation::SWIGLU_LIMIT { Activation::SWIGLU_LIMIT } else { x };
        let exponent = -x * (Activation::SWIGLU_ALPHA * LOG2_E);
        x * math::rcp_approx(1.0 + math::exp2_approx(exponent))
    }

    #[inline(always)]
    fn apply<E: Number>(gate: f32, up: f32) -> f32 {
        let up = up.clamp(-Activation::SWIGLU_LIMIT, Activation::SWIGLU_LIMIT);
        (Self::activate(gate) * (up + 1.0)).clamp(-E::CLAMP, E::CLAMP)
    }
}

/// Parts of a linear layer's weight: one, or gate and up, stacked.
pub(crate) const fn num_parts(gate: Option<Activation>) -> usize {
    1 + gate.is_some() as usize
}

/// The gate of a kernel that has it as an argument, [`gate_arg`], and not as a type.
#[derive(Clone, Copy)]
pub(crate) struct GateArg(pub u32);

/// The argument that stands for a gate: 1 without one.
pub(crate) const fn gate_arg(gate: Option<Activation>) -> u32 {
    match gate {
        None => 1,
        Some(activation) => 2 + activation as u32,
    }
}

/// The argument of the last gate.
const LAST_ARG: u32 = 1 + Activation::ALL.len() as u32;

macro_rules! apply {
    ([$($gate:ty as $name:literal),* $(,)?] $arg:expr, $E:ty, $gate_value:expr, $up:expr) => {
        // The last one without a question, so that a single one costs none.
        $(if const { gate_arg(<$gate>::ACTIVATION) == LAST_ARG }
            || $arg == const { gate_arg(<$gate>::ACTIVATION) }
        {
            <$gate>::apply::<$E>($gate_value, $up)
        } else)* {
            f32::NAN
        }
    };
}

impl GateArg {
    /// As [`Gate::PARTS`].
    #[inline(always)]
    pub fn num_parts(self) -> u32 {
        if LAST_ARG == 2 { self.0 } else { self.0.min(2) }
    }

    /// [`Gate::apply`] of a gate that there is.
    #[inline(always)]
    pub fn apply<E: Number>(self, gate: f32, up: f32) -> f32 {
        ROW_GATES! { apply self.0, E, gate, up }
    }
}

#[cfg(not(target_arch = "nvptx64"))]
pub use host::gate_of;

#[cfg(not(target_arch = "nvptx64"))]
mod host {
    use super::{Activation, Gate};
    use core::any::TypeId;

    macro_rules! types {
        ([$($gate:ty as $name:literal),* $(,)?]) => {
            [$((TypeId::of::<$gate>(), <$gate as Gate>::ACTIVATION)),*]
        };
    }

    /// A type for each activation.
    const TYPES: [(TypeId, Option<Activation>); Activation::ALL.len()] = ROW_GATES! { types };

    /// The activation of an instance's type [`Gate`].
    pub fn gate_of(gate: TypeId) -> Option<Activation> {
        TYPES.iter().find(|(of, _)| *of == gate).and_then(|(_, activation)| *activation)
    }

    #[test]
    fn every_activation_is_a_gate() {
        assert_eq!(TYPES.map(|(_, activation)| activation), Activation::ALL.map(Some));
        assert!(TYPES.iter().zip(GATES! { types }).all(|(all, fused)| *all == fused));
    }
}
