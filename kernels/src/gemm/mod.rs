//! Linear layers: `out = x * weight^T (+ bias) (+ residual)`.

pub mod f32;
