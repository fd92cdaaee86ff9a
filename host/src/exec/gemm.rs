//! Whose kernels compute linear layers.

use std::fmt;

use cuda_loader::cublas::ComputeType;

use super::{Device, Target};
use crate::plan::{Accumulate, Dtype};

/// Whose kernels compute linear layers on a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Gemm {
    /// Kernels of this library.
    #[default]
    Halfwarp,
    /// Kernels of cuBLAS, with accumulators in f32.
    Cublas,
    /// Kernels of cuBLAS, with accumulators in f16: for operands in f16 alone.
    CublasF16,
}

impl Gemm {
    /// The type of cuBLAS's accumulators for `operands`; `None` if the kernels are not those of
    /// cuBLAS.
    ///
    /// # Errors
    /// [`GemmError::CublasOperands`].
    pub fn compute_type(self, operands: Dtype) -> Result<Option<ComputeType>, GemmError> {
        match (self, operands) {
            (Gemm::Halfwarp, _) => Ok(None),
            (Gemm::Cublas, _) => Ok(Some(ComputeType::F32)),
            (Gemm::CublasF16, Dtype::F16) => Ok(Some(ComputeType::F16)),
            (Gemm::CublasF16, _) => Err(GemmError::CublasOperands { operands }),
        }
    }

    /// Whether accumulators can be of type `accumulate` on `device`.
    ///
    /// # Errors
    /// For accumulators in f16: [`GemmError::CublasAccumulate`], and
    /// [`GemmError::AccumulateOnCpu`].
    pub fn check_accumulate(self, accumulate: Accumulate, device: Device) -> Result<(), GemmError> {
        let has_kernels = device == Device::Emulated || device.cuda_ordinal().is_some();
        match accumulate {
            Accumulate::F32 => Ok(()),
            Accumulate::F16 if self != Gemm::Halfwarp => {
                Err(GemmError::CublasAccumulate { gemm: self })
            }
            Accumulate::F16 if has_kernels => Ok(()),
            Accumulate::F16 => Err(GemmError::AccumulateOnCpu),
        }
    }

    /// Whether linear layers can be computed so on `device`.
    ///
    /// # Errors
    /// [`GemmError::NoGpu`] for cuBLAS.
    pub fn check_device(self, device: Device) -> Result<(), GemmError> {
        if self == Gemm::Halfwarp || device.cuda_ordinal().is_some() {
            return Ok(());
        }
        let runs_on = if device == Device::Emulated { "emulator" } else { "CPU" };
        Err(GemmError::NoGpu { gemm: self, runs_on })
    }
}

/// Why linear layers cannot be computed as [`Gemm`] says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GemmError {
    /// [`Gemm::CublasF16`] with other operands than f16.
    #[error(
        "{gemm} accumulates in f16, for operands in F16 alone, and these are in {operands}\n\
         compute in f16, or accumulate in f32 with {}",
        Gemm::Cublas,
        gemm = Gemm::CublasF16
    )]
    CublasOperands {
        /// Type of the operands.
        operands: Dtype,
    },
    /// [`Accumulate::F16`] with kernels of cuBLAS.
    #[error(
        "accumulators in f16 are an option of halfwarp's kernels, and linear layers are by {gemm}\n\
         choose {} instead, or leave the accumulators in f32",
        Gemm::CublasF16
    )]
    CublasAccumulate {
        /// Whose kernels were chosen.
        gemm: Gemm,
    },
    /// [`Accumulate::F16`] on the CPU.
    #[error(
        "accumulators in f16 are an option of GPU kernels, and this runs on the CPU\n\
         choose a GPU or the emulator, or leave the accumulators in f32"
    )]
    AccumulateOnCpu,
    /// cuBLAS without a GPU.
    #[error("{gemm} needs an NVIDIA GPU, and this runs on the {runs_on}")]
    NoGpu {
        /// Whose kernels were chosen.
        gemm: Gemm,
        /// `CPU` or `emulator`.
        runs_on: &'static str,
    },
    /// A target for kernels of cuBLAS, which has its own.
    #[error(
        "the target {} is an option of halfwarp's kernels, and linear layers are by {gemm}",
        target.name()
    )]
    CublasTarget {
        /// Whose kernels were chosen.
        gemm: Gemm,
        /// The target.
        target: Target,
    },
    /// cuBLAS cannot be loaded.
    #[error("{0}")]
    Library(String),
}

impl fmt::Display for Gemm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Gemm::Halfwarp => "halfwarp",
            Gemm::Cublas => "cublas",
            Gemm::CublasF16 => "cublas-f16",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cublas_accumulates_in_f32_or_in_the_type_of_f16_operands() {
        for operands in [Dtype::F32, Dtype::F16, Dtype::BF16] {
            assert_eq!(Gemm::Halfwarp.compute_type(operands), Ok(None));
            assert_eq!(Gemm::Cublas.compute_type(operands), Ok(Some(ComputeType::F32)));
        }
        let in_f16 = |operands| Gemm::CublasF16.compute_type(operands);
        assert_eq!(in_f16(Dtype::F16), Ok(Some(ComputeType::F16)));
        for operands in [Dtype::F32, Dtype::BF16] {
            assert_eq!(in_f16(operands), Err(GemmError::CublasOperands { operands }));
        }
    }

    #[test]
    fn accumulators_in_f16_are_of_halfwarps_kernels() {
        let check = |gemm: Gemm, device| {
            gemm.check_accumulate(Accumulate::F32, device).unwrap();
            gemm.check_accumulate(Accumulate::F16, device)
        };
        assert_eq!(check(Gemm::Halfwarp, Device::Emulated), Ok(()));
        assert_eq!(check(Gemm::Halfwarp, Device::Cuda(0)), Ok(()));
        assert_eq!(check(Gemm::Halfwarp, Device::Cpu), Err(GemmError::AccumulateOnCpu));
        let gemm = Gemm::Cublas;
        assert_eq!(check(gemm, Device::Cuda(0)), Err(GemmError::CublasAccumulate { gemm }));
    }

    #[test]
    fn cublas_is_refused_where_there_is_no_gpu() {
        for (device, runs_on) in [(Device::Cpu, "CPU"), (Device::Emulated, "emulator")] {
            assert_eq!(Gemm::Halfwarp.check_device(device), Ok(()));
            let gemm = Gemm::Cublas;
            assert_eq!(gemm.check_device(device), Err(GemmError::NoGpu { gemm, runs_on }));
        }
        assert_eq!(Gemm::Cublas.check_device(Device::Cuda(0)), Ok(()));
    }

    /// At most two lines each, and no option of a command line.
    #[test]
    fn errors_name_no_flags() {
        let errors = [
            GemmError::CublasOperands { operands: Dtype::BF16 },
            GemmError::CublasAccumulate { gemm: Gemm::Cublas },
            GemmError::AccumulateOnCpu,
            GemmError::NoGpu { gemm: Gemm::Cublas, runs_on: "CPU" },
            GemmError::CublasTarget { gemm: Gemm::Cublas, target: Target::Sm80 },
        ];
        for error in errors.map(|error| error.to_string()) {
            assert!(!error.contains("--") && error.lines().count() <= 2, "{error}");
        }
    }
}
