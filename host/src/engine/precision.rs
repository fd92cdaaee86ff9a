//! What an engine computes in when it is free to choose.

use super::{EngineError, EngineOptions};
use crate::Model;
use crate::exec::ExecError;
use crate::model::ModelError;
use crate::plan::{Bounds, Numerics, Precision};
use crate::weights::WeightsError;

/// On the CPU f32 decodes 3 times as fast as f16 and 4 times as fast as bf16 (SmolLM2-135M, 2 cores): weights in 16 bits
/// are widened before each dot product, which takes longer than reading twice the bytes.
const ON_CPU: Precision = Precision::F32;

/// What an engine computes in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrecisionChoice {
    /// By device and model. On a GPU and the emulator f16, bf16 if f16 cannot hold a weight, and f32 if the model's rows
    /// cannot be aligned in 16 bits or bf16 cannot hold a weight. On the CPU f32, or bf16 if only that fits into the
    /// memory. [`Engine::notes`](super::Engine::notes) says why it is not the first of them.
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

/// The precisions of an engine that were tried, the last of them last, and why each but the last was given up.
#[derive(Debug)]
pub struct Attempts {
    is_free: bool,
    pub precision: Precision,
    tried: Vec<Precision>,
    pub notes: Vec<String>,
}

impl Attempts {
    /// Begins with the usual precision of the device.
    pub fn new(options: &EngineOptions) -> Self {
        let precision = match options.precision {
            PrecisionChoice::Exact(precision) => precision,
            PrecisionChoice::Auto if options.device.runs_kernels() => Precision::F16,
            PrecisionChoice::Auto => ON_CPU,
        };
        let is_free = options.precision == PrecisionChoice::Auto;
        Attempts { is_free, precision, tried: Vec::new(), notes: Vec::new() }
    }

    /// Goes on to a precision that may help against `error`.
    ///
    /// # Errors
    /// `error`, if there is none.
    pub fn next(&mut self, model: &Model, error: EngineError) -> Result<(), EngineError> {
        let next = self.alternative(&error);
        self.tried.push(self.precision);
        match next {
            Some(next)
                if self.is_free && !self.tried.contains(&next) && is_aligned(model, next) =>
            {
                let error = error.to_string();
                let reason = error.lines().next().unwrap_or_default();
                let note = format!("computes in {next} in place of {}: {reason}", self.precision);
                self.notes.push(note);
                self.precision = next;
                Ok(())
            }
            _ => Err(error),
        }
    }

    fn alternative(&self, error: &EngineError) -> Option<Precision> {
        match (error, self.precision) {
            (EngineError::Exec(ExecError::Weights(cause)), precision) => {
                match (cause.downcast_ref()?, precision) {
                    (WeightsError::OutOfRange { .. }, Precision::F16) => Some(Precision::BF16),
                    (WeightsError::OutOfRange { .. }, Precision::BF16) => Some(Precision::F32),
                    _ => None,
                }
            }
            (EngineError::Model(ModelError::Unaligned { .. }), _) => Some(Precision::F32),
            (EngineError::Memory(_), Precision::F32) => Some(Precision::BF16),
            _ => None,
        }
    }
}

/// Whether the model's rows can be aligned in `precision`.
fn is_aligned(model: &Model, precision: Precision) -> bool {
    let bounds = Bounds {
        max_tokens: 1,
        max_seqs: 1,
        max_q_len: 1,
        max_logit_rows: 1,
        max_kv_len: 1,
        mixed: false,
    };
    let budget = model.memory(&Numerics::from(precision), bounds, 1);
    !matches!(budget, Err(ModelError::Unaligned { .. }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::Device;
    use crate::plan::{BudgetError, CacheSize};

    fn no_memory(model: &Model) -> EngineError {
        let bounds = Bounds {
            max_tokens: 1,
            max_seqs: 1,
            max_q_len: 1,
            max_logit_rows: 1,
            max_kv_len: 1,
            mixed: false,
        };
        let budget = model.memory(&Numerics::default(), bounds, 1).unwrap();
        let error: BudgetError = budget.check("CPU", 100, CacheSize::Positions).unwrap_err();
        error.into()
    }

    #[test]
    fn a_model_too_large_in_f32_is_computed_in_bf16() {
        let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/goldens/llama-gqa");
        let model = Model::open(golden).unwrap();
        let auto = EngineOptions { device: Device::Cpu, ..Default::default() };
        let mut attempts = Attempts::new(&auto);
        assert_eq!(attempts.precision, Precision::F32);
        attempts.next(&model, no_memory(&model)).unwrap();
        assert_eq!((attempts.precision, attempts.notes.len()), (Precision::BF16, 1));
        assert!(attempts.notes[0].starts_with("computes in bf16 in place of f32: the model needs"));
        assert!(matches!(attempts.next(&model, no_memory(&model)), Err(EngineError::Memory(_))));

        let exact = EngineOptions { precision: Precision::F32.into(), ..auto };
        let refused = Attempts::new(&exact).next(&model, no_memory(&model));
        assert!(matches!(refused, Err(EngineError::Memory(_))));
    }
}
