//! Whose kernels add over ranks.

use std::fmt;

use super::{Device, ExecError};

/// Whose kernels add over the GPUs that share a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Collectives {
    /// Kernels of this library where they can: 2, 4 or 8 GPUs that access each other's memory, operands in 16 bits.
    /// Else NCCL's.
    #[default]
    Auto,
    /// Kernels of this library.
    Halfwarp,
    /// Kernels of NVIDIA's NCCL, opened at run time.
    Nccl,
}

impl Collectives {
    /// Whether ranks on `device` can meet so.
    ///
    /// # Errors
    /// [`ExecError::Ranks`] for NCCL without a GPU.
    pub fn check_device(self, device: Device) -> Result<(), ExecError> {
        if self == Collectives::Nccl && device.cuda_ordinal().is_none() {
            let runs_on = if device == Device::Emulated { "emulator" } else { "CPU" };
            let why = format!("NCCL adds between NVIDIA GPUs, and this runs on the {runs_on}");
            return Err(ExecError::Ranks(why));
        }
        Ok(())
    }
}

impl fmt::Display for Collectives {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Collectives::Auto => "auto",
            Collectives::Halfwarp => "halfwarp",
            Collectives::Nccl => "nccl",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nccl_is_refused_where_there_is_no_gpu() {
        for device in [Device::Cpu, Device::Emulated] {
            assert!(Collectives::Auto.check_device(device).is_ok());
            assert!(Collectives::Halfwarp.check_device(device).is_ok());
            let error = Collectives::Nccl.check_device(device).unwrap_err().to_string();
            assert!(error.starts_with("NCCL adds between NVIDIA GPUs"), "{error}");
        }
        assert!(Collectives::Nccl.check_device(Device::Cuda(0)).is_ok());
    }
}
