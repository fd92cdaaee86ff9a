//! What an engine computes in when it is free to choose.

use super::{EngineError, EngineOptions};
use crate::Model;
use crate::exec::ExecError;
use crate::model::ModelError;
use crate::plan::{Bounds, Numerics, Precision};
use crate::weights::WeightsError;

/// The precision that is chosen on the CPU: weights in 16 bits are read in half of the time.
const ON_CPU: Precision = Precision::BF16;

/// What an engine computes in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrecisionChoice {
    /// By device and model. On a GPU and the emulator f16, or bf16 if f16 cannot hold a weight. On the CPU bf16. f32
    /// where the model's rows cannot be aligned in 16 bits or bf16 cannot hold a weight.
    #[default]
    Auto,
    /// This precision, or an error if the model cannot be computed in it.
    Exact(Precision),
}

impl From<Precision> for PrecisionChoice {
    fn from(precision: Precision) -> Self {
        PrecisionChoice::Exact(precision)
    }
}

/// The precision to try first, and what there is to say about it.
pub fn first(
    options: &EngineOptions,
    model: &Model,
) -> Result<(Precision, Vec<String>), EngineError> {
    let precision = match options.precision {
        PrecisionChoice::Exact(precision) => return Ok((precision, Vec::new())),
        PrecisionChoice::Auto if options.device.runs_kernels() => Precision::F16,
        PrecisionChoice::Auto => ON_CPU,
    };
    let bounds =
        Bounds { max_tokens: 1, max_seqs: 1, max_q_len: 1, max_logit_rows: 1, max_kv_len: 1 };
    match model.memory(&Numerics::from(precision), bounds, 1) {
        Err(error @ ModelError::Unaligned { .. }) => {
            let wider = Precision::F32;
            Ok((wider, vec![note(wider, precision, &error.into())]))
        }
        Err(error) => Err(error.into()),
        Ok(_) => Ok((precision, Vec::new())),
    }
}

/// The precision to try after `precision`, if one with a larger range can help against `error`.
pub fn after(
    options: &EngineOptions,
    precision: Precision,
    error: &EngineError,
) -> Option<Precision> {
    let EngineError::Exec(ExecError::Weights(cause)) = error else { return None };
    let is_out_of_range = matches!(cause.downcast_ref(), Some(WeightsError::OutOfRange { .. }));
    match precision {
        _ if options.precision != PrecisionChoice::Auto || !is_out_of_range => None,
        Precision::F16 => Some(Precision::BF16),
        Precision::BF16 => Some(Precision::F32),
        Precision::F32 => None,
    }
}

/// One line: why it is `chosen` in place of `preferred`.
pub fn note(chosen: Precision, preferred: Precision, error: &EngineError) -> String {
    let error = error.to_string();
    let reason = error.lines().next().unwrap_or_default();
    format!("computes in {chosen} in place of {preferred}: {reason}")
}
