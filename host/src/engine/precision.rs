//! What an engine computes in when it is free to choose.

use super::options::DEFAULT_CONTEXT;
use super::{EngineError, EngineOptions};
use crate::Model;
use crate::exec::ExecError;
use crate::model::ModelError;
use crate::plan::{Bounds, Dtype, Numerics, PAGE_SIZE, Precision, Rank};
use crate::weights::WeightsError;

/// On the CPU nothing is faster, as it computes in f32 in any case, and weights are kept as they
/// are stored.
const ON_CPU: Precision = Precision::F32;

/// What an engine computes in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrecisionChoice {
    /// By device and model. On a GPU and the emulator f16, bf16 if f16 cannot hold a weight or
    /// ([`Config::overflows_f16`](crate::Config::overflows_f16)) activations beside dense weights, and
    /// f32 if the model's rows cannot be aligned in 16 bits or bf16 cannot hold a weight. On the
    /// CPU f32, or bf16 if only that fits into the memory. Weights in blocks stay so: on the CPU [as
    /// they are stored](crate::plan::WeightStorage::AsStored), beside f16 operands in
    /// [tiles](crate::plan::WeightStorage::Tiles).
    /// [`Engine::notes`](super::Engine::notes) says why it is not the first of them.
    #[default]
    Auto,
    /// This precision, or an error if the model cannot be computed in it. Weights are
    /// [converted](crate::plan::WeightStorage::Dense) to it.
    Exact(Precision),
    /// Linear layers' weights in E4M3, [quantised](crate::plan::WeightStorage::Fp8) when they are
    /// loaded if the checkpoint has them in another type: beside operands in f16 on a GPU and the
    /// emulator, in f32 on the CPU.
    Fp8,
}

impl From<Precision> for PrecisionChoice {
    fn from(precision: Precision) -> Self {
        PrecisionChoice::Exact(precision)
    }
}

/// The precisions of an engine that were tried, the last of them last, and why each but the last
/// was given up.
#[derive(Debug)]
pub struct Attempts {
    is_free: bool,
    pub precision: Precision,
    /// Positions that the context has at least, where the options leave it open: a precision with
    /// room for them comes before one without.
    pub least_context: usize,
    /// Whether the context comes before everything else: there is no room for as many.
    pub is_short: bool,
    tried: Vec<Precision>,
    pub notes: Vec<String>,
}

impl Attempts {
    /// Begins with the usual precision of the device, for `model`.
    pub fn new(model: &Model, options: &EngineOptions) -> Self {
        let is_free = options.precision == PrecisionChoice::Auto;
        let mut notes = Vec::new();
        let precision = match options.precision {
            PrecisionChoice::Exact(precision) => precision,
            _ if options.device.runs_kernels() && is_free && wants_bf16(model, options) => {
                let why = "f16 does not hold the activations of this family";
                notes.push(format!("computes in bf16 in place of f16: {why}"));
                Precision::BF16
            }
            _ if options.device.runs_kernels() => Precision::F16,
            PrecisionChoice::Auto | PrecisionChoice::Fp8 => ON_CPU,
        };
        let is_open = (options.context, options.cache_positions) == (None, None);
        let least_context = if is_open { DEFAULT_CONTEXT } else { PAGE_SIZE };
        Attempts { is_free, precision, least_context, is_short: false, tried: Vec::new(), notes }
    }

    /// Goes on to a precision that may help against `error`, or after the last one to a context of
    /// any length.
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
            _ if error.is_out_of_memory() && self.least_context > PAGE_SIZE => {
                self.least_context = PAGE_SIZE;
                self.is_short = true;
                Ok(())
            }
            _ => Err(error),
        }
    }

    /// Says that the context is `context`, if that is less than was wanted at first.
    pub fn note_context(&mut self, context: usize) {
        if self.is_short {
            self.notes
                .push(format!("a context of {context} positions: the memory has no room for more"));
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

/// Whether f16 does not hold the model's activations. Weights in blocks and in E4M3 stay beside
/// operands in f16: beside bf16 they would be several times as large.
fn wants_bf16(model: &Model, options: &EngineOptions) -> bool {
    let is_packed = |dtype: Dtype| dtype.block_elems() > 1 || dtype.is_fp8();
    let kept = model.weight_dtype(&options.numerics(Precision::F16));
    model.config().overflows_f16() && !kept.is_ok_and(|dtype| dtype.is_some_and(is_packed))
}

/// Whether the model's rows can be aligned in `precision`.
fn is_aligned(model: &Model, precision: Precision) -> bool {
    let bounds = Bounds::one_sequence(1);
    let plan = model.outline(Rank::ALONE, &Numerics::from(precision), bounds, 1);
    !matches!(plan, Err(ModelError::Unaligned { .. }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::Device;
    use crate::plan::{BudgetError, Fits, MemoryBudget};

    fn no_memory() -> EngineError {
        let budget = Box::new(MemoryBudget { weight_bytes: 1000, ..MemoryBudget::default() });
        let (device, fits) = ("CPU".to_owned(), Fits::Nothing);
        BudgetError { device, budget, short_bytes: 900, room_bytes: 100, fits }.into()
    }

    #[test]
    fn a_model_that_overflows_f16_is_computed_in_bf16() {
        let first = |golden: &str, device, precision| {
            let goldens = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/goldens/");
            let model = Model::open(format!("{goldens}{golden}")).unwrap();
            let options = EngineOptions { device, precision, ..Default::default() };
            let attempts = Attempts::new(&model, &options);
            (attempts.precision, attempts.notes.len())
        };
        let (gpu, auto) = (Device::Cuda(0), PrecisionChoice::Auto);
        assert_eq!(first("gemma3", gpu, auto), (Precision::BF16, 1));
        assert_eq!(first("gemma2", gpu, auto), (Precision::F16, 0));
        assert_eq!(first("gemma3", Device::Cpu, auto), (Precision::F32, 0));
        assert_eq!(first("gemma3", gpu, Precision::F16.into()), (Precision::F16, 0));
        assert_eq!(first("gemma3", gpu, PrecisionChoice::Fp8), (Precision::F16, 0));
    }

    #[test]
    fn a_model_too_large_in_f32_is_computed_in_bf16() {
        let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/goldens/llama-gqa");
        let model = Model::open(golden).unwrap();
        let auto = EngineOptions { device: Device::Cpu, ..Default::default() };
        let mut attempts = Attempts::new(&model, &auto);
        assert_eq!(attempts.precision, Precision::F32);
        attempts.next(&model, no_memory()).unwrap();
        assert_eq!((attempts.precision, attempts.notes.len()), (Precision::BF16, 1));
        assert!(attempts.notes[0].starts_with("computes in bf16 in place of f32: the model needs"));
        // A short context comes last.
        assert_eq!(attempts.least_context, DEFAULT_CONTEXT);
        attempts.next(&model, no_memory()).unwrap();
        assert_eq!((attempts.precision, attempts.least_context), (Precision::BF16, PAGE_SIZE));
        assert!(matches!(attempts.next(&model, no_memory()), Err(EngineError::Memory(_))));

        let exact = EngineOptions { precision: Precision::F32.into(), ..auto };
        let mut attempts = Attempts::new(&model, &exact);
        attempts.next(&model, no_memory()).unwrap();
        assert_eq!((attempts.precision, attempts.least_context), (Precision::F32, PAGE_SIZE));
        assert!(matches!(attempts.next(&model, no_memory()), Err(EngineError::Memory(_))));
    }
}
