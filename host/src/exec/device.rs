//! Where a plan runs.

use super::cpu::CpuExecutor;
use super::{ExecError, Executor, WeightSource};
use crate::plan::Plan;
use std::str::FromStr;

/// Where a plan runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Device {
    /// The first NVIDIA GPU if there is one, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The NVIDIA GPU of this number.
    Cuda(usize),
}

impl FromStr for Device {
    type Err = ExecError;

    fn from_str(name: &str) -> Result<Self, ExecError> {
        let unknown = || ExecError::NoDevice(format!("device {name:?}: auto, cpu, cuda or cuda:N"));
        match name {
            "auto" => Ok(Device::Auto),
            "cpu" => Ok(Device::Cpu),
            "cuda" => Ok(Device::Cuda(0)),
            _ => {
                let ordinal = name.strip_prefix("cuda:").ok_or_else(unknown)?;
                ordinal.parse().map(Device::Cuda).map_err(|_| unknown())
            }
        }
    }
}

impl Device {
    /// What it is called and how much of its memory is free; `None` where the system does not say.
    ///
    /// # Errors
    /// [`ExecError::NoDevice`].
    pub fn free_memory(self) -> Result<Option<(String, usize)>, ExecError> {
        match self {
            Device::Auto | Device::Cpu => Ok(available_bytes().map(|free| ("CPU".into(), free))),
            Device::Cuda(ordinal) => Err(no_cuda(ordinal)),
        }
    }
}

/// Opens `device` with the weights of `plan`, whose bounds are the largest that will be prepared.
///
/// # Errors
/// [`ExecError::NoDevice`], and those of the executor.
pub fn open(
    device: Device,
    plan: &Plan,
    weights: &dyn WeightSource,
) -> Result<Box<dyn Executor>, ExecError> {
    match device {
        Device::Auto | Device::Cpu => Ok(Box::new(CpuExecutor::open(plan, weights)?)),
        Device::Cuda(ordinal) => Err(no_cuda(ordinal)),
    }
}

fn no_cuda(ordinal: usize) -> ExecError {
    ExecError::NoDevice(format!("cuda:{ordinal} is not there: choose --device cpu"))
}

/// Memory that the system can hand out without swapping.
fn available_bytes() -> Option<usize> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: usize = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_names() {
        let device = |name: &str| name.parse::<Device>().ok();
        assert_eq!(device("auto"), Some(Device::Auto));
        assert_eq!(device("cpu"), Some(Device::Cpu));
        assert_eq!(device("cuda"), Some(Device::Cuda(0)));
        assert_eq!(device("cuda:3"), Some(Device::Cuda(3)));
        for name in ["", "gpu", "cuda:", "cuda:-1", "cuda:x", "CPU", "cuda3"] {
            assert_eq!(device(name), None, "{name:?}");
        }
    }
}
