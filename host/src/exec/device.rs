//! Where a plan runs.

use super::cpu::CpuExecutor;
use super::cuda::{self, CudaExecutor, CudaRanks};
#[cfg(feature = "emulator")]
use super::emulated::EmulatedExecutor;
use super::{ExecError, Executor, Gemm, Target, WeightSource};
use crate::plan::Plan;
use std::path::PathBuf;
use std::slice;
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
    /// The GPU's kernels on the CPU, every access checked: for tiny models, where there is no GPU.
    /// Needs the crate's feature `emulator`.
    Emulated,
}

impl FromStr for Device {
    type Err = ExecError;

    fn from_str(name: &str) -> Result<Self, ExecError> {
        let unknown =
            || ExecError::NoDevice(format!("device {name:?}: auto, cpu, cuda, cuda:N or emulated"));
        match name {
            "auto" => Ok(Device::Auto),
            "cpu" => Ok(Device::Cpu),
            "cuda" => Ok(Device::Cuda(0)),
            "emulated" => Ok(Device::Emulated),
            _ => {
                let ordinal = name.strip_prefix("cuda:").ok_or_else(unknown)?;
                ordinal.parse().map(Device::Cuda).map_err(|_| unknown())
            }
        }
    }
}

impl Device {
    /// Whether a target can be chosen there; which of them a GPU can run is known when it is
    /// opened.
    ///
    /// # Errors
    /// [`ExecError::TargetOnCpu`].
    pub fn check_target(self, target: Option<Target>) -> Result<(), ExecError> {
        match target {
            Some(target) if self != Device::Emulated && self.cuda_ordinal().is_none() => {
                Err(ExecError::TargetOnCpu(target))
            }
            _ => Ok(()),
        }
    }

    /// Whether the GPU's kernels run, on a GPU or emulated; else the CPU's.
    pub fn runs_kernels(self) -> bool {
        self == Device::Emulated || self.cuda_ordinal().is_some()
    }

    /// Whether tensor cores there multiply E4M3, by kernels for `target`; `None`: by the newest.
    pub(crate) fn multiplies_fp8(self, target: Option<Target>) -> bool {
        let newest = match self.cuda_ordinal() {
            Some(ordinal) => {
                let devices = cuda::devices().unwrap_or_default();
                devices.get(ordinal).and_then(|device| device.target).map(|target| target.name)
            }
            None => (self == Device::Emulated).then_some(Target::Sm90a.name()),
        };
        let is_asked = target.is_none_or(|target| target == Target::Sm90a);
        is_asked && newest == Some(Target::Sm90a.name())
    }

    /// The GPU that is meant; `None`: the CPU, or the emulator on it.
    pub fn cuda_ordinal(self) -> Option<usize> {
        match self {
            Device::Auto => cuda::first_device(),
            Device::Cpu | Device::Emulated => None,
            Device::Cuda(ordinal) => Some(ordinal),
        }
    }
}

/// Which kernels run on a GPU, and where their machine code is kept.
#[derive(Clone, Debug, Default)]
pub struct GpuOptions {
    /// Whose kernels compute linear layers.
    pub gemm: Gemm,
    /// What halfwarp's kernels are compiled for; `None`: the newest target that the device can run.
    pub target: Option<Target>,
    /// Folder of the machine code that the driver compiles kernels to, so that the next start
    /// compiles nothing ([`default_cubin_dir`]). `None`: it is not kept. What was not read for a
    /// month is removed.
    pub cubin_dir: Option<PathBuf>,
}

/// `cubin` in halfwarp's cache (`$HALFWARP_CACHE`, `$XDG_CACHE_HOME/halfwarp` or
/// `$HOME/.cache/halfwarp`); `None` if the environment names no such place.
pub fn default_cubin_dir() -> Option<PathBuf> {
    model_cache::cache_dir().ok().map(|dir| dir.join("cubin"))
}

/// Opens `device` with the weights of `plan`, whose bounds are the largest that will be prepared.
///
/// # Errors
/// As [`open_ranks`].
pub fn open(
    device: Device,
    options: &GpuOptions,
    plan: &Plan,
    weights: &dyn WeightSource,
) -> Result<Box<dyn Executor>, ExecError> {
    open_ranks(device, options, slice::from_ref(plan), weights)
}

/// Opens `device` with the weights of `plans`, one of each rank, whose bounds are the largest that will be prepared.
///
/// # Errors
/// [`ExecError::NoDevice`], [`ExecError::Gemm`], and those of the executor.
pub fn open_ranks(
    device: Device,
    options: &GpuOptions,
    plans: &[Plan],
    weights: &dyn WeightSource,
) -> Result<Box<dyn Executor>, ExecError> {
    options.gemm.check_device(device)?;
    device.check_target(options.target)?;
    Ok(match device.cuda_ordinal() {
        Some(ordinal) => match plans {
            [plan] => Box::new(CudaExecutor::open(ordinal, options, plan, weights)?),
            _ => Box::new(CudaRanks::open(ordinal, options, plans, weights)?),
        },
        #[cfg(feature = "emulator")]
        None if device == Device::Emulated => {
            Box::new(EmulatedExecutor::open_ranks(options.target, plans, weights)?)
        }
        #[cfg(not(feature = "emulator"))]
        None if device == Device::Emulated => {
            let why = "the emulator is not built in: build halfwarp with its feature `emulator`";
            return Err(ExecError::NoDevice(why.to_owned()));
        }
        None => Box::new(CpuExecutor::open_ranks(plans, weights)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_has_no_target() {
        for target in [Target::Sm80, Target::Sm90a] {
            for device in [Device::Emulated, Device::Cuda(0)] {
                assert!(device.check_target(Some(target)).is_ok());
            }
            let error = Device::Cpu.check_target(Some(target)).unwrap_err().to_string();
            let expected = "is for GPU kernels, and this runs on the CPU";
            assert_eq!(error, format!("the target {} {expected}", target.name()));
        }
        assert!(Device::Cpu.check_target(None).is_ok());
    }

    #[test]
    fn device_names() {
        let device = |name: &str| name.parse::<Device>().ok();
        assert_eq!(device("auto"), Some(Device::Auto));
        assert_eq!(device("cpu"), Some(Device::Cpu));
        assert_eq!(device("cuda"), Some(Device::Cuda(0)));
        assert_eq!(device("cuda:3"), Some(Device::Cuda(3)));
        assert_eq!(device("emulated"), Some(Device::Emulated));
        for name in ["", "gpu", "cuda:", "cuda:-1", "cuda:x", "CPU", "cuda3"] {
            assert_eq!(device(name), None, "{name:?}");
        }
    }
}
