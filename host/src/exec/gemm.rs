//! Who computes linear layers.

use std::fmt;

use cuda_loader::cublas::ComputeType;

use super::{Device, ExecError};
use crate::plan::{Accumulate, Dtype};

/// Who computes linear layers on a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Gemm {
    /// The kernels of this program.
    #[default]
    Halfwarp,
    /// cuBLAS, which sums products in f32.
    Cublas,
    /// cuBLAS, which sums products in f16: those of f16 operands alone.
    CublasF16,
}

impl Gemm {
    /// What cuBLAS sums products of `operands` in; `None` where it is not asked.
    ///
    /// # Errors
    /// [`ExecError::Gemm`] if cuBLAS cannot.
    pub fn compute_type(self, operands: Dtype) -> Result<Option<ComputeType>, ExecError> {
        match (self, operands) {
            (Gemm::Halfwarp, _) => Ok(None),
            (Gemm::Cublas, _) => Ok(Some(ComputeType::F32)),
            (Gemm::CublasF16, Dtype::F16) => Ok(Some(ComputeType::F16)),
            (Gemm::CublasF16, _) => Err(ExecError::Gemm(format!(
                "--gemm {self} is for operands in F16, and these are in {operands}\n\
                 use --dtype f16, or --gemm {}, which sums in f32",
                Gemm::Cublas
            ))),
        }
    }

    /// Whether products of `operands` can be summed in `accumulate` where `device` is.
    ///
    /// # Errors
    /// [`ExecError::Gemm`] for sums in f16 of other operands than f16, by cuBLAS, which [`Gemm::CublasF16`] asks for, and
    /// on the CPU.
    pub fn check_accumulate(
        self,
        accumulate: Accumulate,
        operands: Dtype,
        device: Device,
    ) -> Result<(), ExecError> {
        if accumulate == Accumulate::F32 {
            return Ok(());
        }
        let has_kernels = device == Device::Emulated || device.cuda_ordinal().is_some();
        let why = match operands {
            _ if self != Gemm::Halfwarp => {
                format!("is for the kernels of this program\nuse --gemm {}", Gemm::CublasF16)
            }
            Dtype::F16 if has_kernels => return Ok(()),
            Dtype::F16 => "is for GPU kernels, and this runs on the CPU\n\
                           choose --device cuda or emulated, or leave --accumulate out"
                .to_owned(),
            other => format!(
                "is for operands in F16, and these are in {other}\n\
                 use --dtype f16, or leave --accumulate out"
            ),
        };
        Err(ExecError::Gemm(format!("--accumulate f16 {why}")))
    }

    /// Whether linear layers can be computed so where `device` is.
    ///
    /// # Errors
    /// [`ExecError::Gemm`] for cuBLAS where there is no GPU.
    pub fn check_device(self, device: Device) -> Result<(), ExecError> {
        if self == Gemm::Halfwarp || device.cuda_ordinal().is_some() {
            return Ok(());
        }
        let runs_on = if device == Device::Emulated { "emulator" } else { "CPU" };
        Err(ExecError::Gemm(format!(
            "--gemm {self} needs an NVIDIA GPU, and this runs on the {runs_on}\n\
             choose a GPU with --device cuda, or leave --gemm out"
        )))
    }
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
    fn cublas_sums_in_f32_or_in_the_type_of_f16_operands() {
        let compute = |gemm: Gemm, operands| gemm.compute_type(operands).ok();
        for operands in [Dtype::F32, Dtype::F16, Dtype::BF16] {
            assert_eq!(compute(Gemm::Halfwarp, operands), Some(None));
            assert_eq!(compute(Gemm::Cublas, operands), Some(Some(ComputeType::F32)));
        }
        assert_eq!(compute(Gemm::CublasF16, Dtype::F16), Some(Some(ComputeType::F16)));
        assert_eq!(compute(Gemm::CublasF16, Dtype::F32), None);
        let error = Gemm::CublasF16.compute_type(Dtype::BF16).unwrap_err().to_string();
        assert!(
            error.starts_with("--gemm cublas-f16 is for operands in F16, and these"),
            "{error}"
        );
    }

    #[test]
    fn sums_in_f16_are_of_f16_by_our_kernels() {
        let check = |gemm: Gemm, operands, device| {
            gemm.check_accumulate(Accumulate::F32, operands, device).unwrap();
            gemm.check_accumulate(Accumulate::F16, operands, device).map_err(|e| e.to_string())
        };
        let ours = |operands, device| check(Gemm::Halfwarp, operands, device);
        assert_eq!(ours(Dtype::F16, Device::Emulated), Ok(()));
        assert_eq!(ours(Dtype::F16, Device::Cuda(0)), Ok(()));
        let refused = [
            (ours(Dtype::F16, Device::Cpu), "this runs on the CPU"),
            (ours(Dtype::BF16, Device::Emulated), "these are in BF16\nuse --dtype f16"),
            (ours(Dtype::F32, Device::Cpu), "these are in F32"),
            (check(Gemm::Cublas, Dtype::F16, Device::Cuda(0)), "use --gemm cublas-f16"),
        ];
        for (result, why) in refused {
            let error = result.unwrap_err();
            assert!(error.starts_with("--accumulate f16 is for") && error.contains(why), "{error}");
        }
    }

    #[test]
    fn cublas_is_refused_where_there_is_no_gpu() {
        for device in [Device::Cpu, Device::Emulated] {
            assert!(Gemm::Halfwarp.check_device(device).is_ok());
            let error = Gemm::Cublas.check_device(device).unwrap_err();
            assert!(matches!(&error, ExecError::Gemm(why) if why.contains("--device cuda")));
        }
        assert!(Gemm::Cublas.check_device(Device::Cuda(0)).is_ok());
    }
}
