//! Every operation of the kernels in f64 with its error bound, as naively as it is defined: what
//! tests compare kernels with. Nothing here knows a kernel.

mod activation;
mod approx;
mod attention;
mod delta;
mod e4m3;
mod element;
mod encoder;
mod linear;
mod norm;
mod rng;
mod rope;
mod sampling;

pub use activation::{MAX_SLOPE, activate, factor, gated};
pub use approx::{Approx, SUM_ROUNDING};
pub use attention::{Attended, Attention, Pages};
pub use delta::{Gated, causal_conv, delta_rule};
pub use e4m3::{E4M3_MAX, e4m3_code, e4m3_value};
pub use element::Element;
pub use encoder::{gelu, layer_norm, mean};
pub use linear::{Accumulator, Linear, Matrix};
pub use norm::rms_norm;
pub use rng::Rng;
pub use rope::rope;
pub use sampling::{Choice, Sampling, sample};
