//! Where a plan runs.

use super::cpu::CpuExecutor;
use super::cuda::{self, CudaExecutor, CudaRanks};
#[cfg(feature = "emulator")]
use super::emulated::EmulatedExecutor;
use super::{Collectives, ExecError, Executor, Gemm, Target, WeightSource};
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
    /// The NVIDIA GPU of this number; of several that share a model the first, and the others follow it.
    Cuda(usize),
    /// These NVIDIA GPUs, which share a model.
    CudaSet(CudaSet),
    /// The GPU's kernels on the CPU, every access checked: for tiny models, where there is no GPU.
    /// Needs the crate's feature `emulator`.
    Emulated,
}

/// Numbers of NVIDIA GPUs, each once, in the order of the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaSet {
    ordinals: [u8; CudaSet::MAX],
    len: u8,
}

impl CudaSet {
    /// Most GPUs.
    pub const MAX: usize = 16;

    /// `None` for none, more than [`CudaSet::MAX`], a number beyond 255, and one that comes twice.
    pub fn new(ordinals: &[usize]) -> Option<Self> {
        let mut set = CudaSet { ordinals: [0; CudaSet::MAX], len: 0 };
        for (index, &ordinal) in ordinals.iter().enumerate() {
            let is_new = !ordinals[..index].contains(&ordinal);
            let ordinal = u8::try_from(ordinal).ok().filter(|_| is_new)?;
            *set.ordinals.get_mut(index)? = ordinal;
            set.len += 1;
        }
        (set.len > 0).then_some(set)
    }

    /// The numbers.
    pub fn ordinals(&self) -> impl ExactSizeIterator<Item = usize> + '_ {
        self.ordinals[..usize::from(self.len)].iter().map(|&ordinal| usize::from(ordinal))
    }
}

impl FromStr for Device {
    type Err = ExecError;

    fn from_str(name: &str) -> Result<Self, ExecError> {
        let unknown = || {
            let names = "auto, cpu, cuda, cuda:N, cuda:N,M,... or emulated";
            ExecError::NoDevice(format!("device {name:?}: {names}"))
        };
        match name {
            "auto" => Ok(Device::Auto),
            "cpu" => Ok(Device::Cpu),
            "cuda" => Ok(Device::Cuda(0)),
            "emulated" => Ok(Device::Emulated),
            _ => {
                let numbers = name.strip_prefix("cuda:").ok_or_else(unknown)?.split(',');
                let ordinals: Result<Vec<usize>, _> = numbers.map(str::parse).collect();
                match ordinals.map_err(|_| unknown())?[..] {
                    [ordinal] => Ok(Device::Cuda(ordinal)),
                    ref ordinals => CudaSet::new(ordinals).map(Device::CudaSet).ok_or_else(unknown),
                }
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
            Device::CudaSet(set) => set.ordinals().next(),
        }
    }

    /// The first of several GPUs; any other device itself.
    #[must_use]
    pub fn first(self) -> Self {
        match self {
            Device::CudaSet(set) => set.ordinals().next().map_or(Device::Auto, Device::Cuda),
            device => device,
        }
    }

    /// How many GPUs are named; 1 of any other device.
    pub fn num_named(self) -> usize {
        match self {
            Device::CudaSet(set) => set.ordinals().len(),
            _ => 1,
        }
    }

    /// The GPUs of the ranks of a world of `world`; `None`: they are on the CPU.
    ///
    /// # Errors
    /// [`ExecError::Ranks`] if another number of GPUs is named.
    pub fn cuda_ordinals(self, world: usize) -> Result<Option<Vec<usize>>, ExecError> {
        match self {
            Device::CudaSet(set) if set.ordinals().len() != world => {
                let named = set.ordinals().len();
                Err(ExecError::Ranks(format!("{named} GPUs are named for {world} ranks")))
            }
            Device::CudaSet(set) => Ok(Some(set.ordinals().collect())),
            _ => Ok(self.cuda_ordinal().map(|first| (first..first + world).collect())),
        }
    }
}

/// Which kernels run on a GPU, and where their machine code is kept.
#[derive(Clone, Debug, Default)]
pub struct GpuOptions {
    /// Whose kernels compute linear layers.
    pub gemm: Gemm,
    /// Whose kernels add over GPUs that share a model.
    pub collectives: Collectives,
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
    options.collectives.check_device(device)?;
    device.check_target(options.target)?;
    Ok(match (device.cuda_ordinals(plans.len())?.as_deref(), plans) {
        (Some([ordinal]), [plan]) => {
            Box::new(CudaExecutor::open(*ordinal, options, plan, weights)?)
        }
        (Some(ordinals), _) => Box::new(CudaRanks::open(ordinals, options, plans, weights)?),
        #[cfg(feature = "emulator")]
        (None, _) if device == Device::Emulated => {
            Box::new(EmulatedExecutor::open_ranks(options.target, plans, weights)?)
        }
        #[cfg(not(feature = "emulator"))]
        (None, _) if device == Device::Emulated => {
            return Err(no_emulator());
        }
        (None, _) => Box::new(CpuExecutor::open_ranks(plans, weights)?),
    })
}

/// The error of a build without the emulator.
#[cfg(not(feature = "emulator"))]
pub(super) fn no_emulator() -> ExecError {
    let why = "the emulator is not built in: cargo build --release --features emulator";
    ExecError::NoDevice(why.to_owned())
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
    fn ranks_are_on_the_named_gpus() {
        let ordinals = |device: Device, world| device.cuda_ordinals(world);
        assert_eq!(ordinals(Device::Cuda(1), 2).unwrap(), Some(vec![1, 2]));
        assert_eq!(ordinals(Device::Cpu, 2).unwrap(), None);
        let set = Device::CudaSet(CudaSet::new(&[3, 1]).unwrap());
        assert_eq!((set.cuda_ordinal(), set.num_named()), (Some(3), 2));
        assert_eq!((set.first(), Device::Cpu.first()), (Device::Cuda(3), Device::Cpu));
        assert_eq!(ordinals(set, 2).unwrap(), Some(vec![3, 1]));
        let error = ordinals(set, 4).unwrap_err().to_string();
        assert_eq!(error, "2 GPUs are named for 4 ranks");
    }

    #[test]
    fn device_names() {
        let device = |name: &str| name.parse::<Device>().ok();
        assert_eq!(device("auto"), Some(Device::Auto));
        assert_eq!(device("cpu"), Some(Device::Cpu));
        assert_eq!(device("cuda"), Some(Device::Cuda(0)));
        assert_eq!(device("cuda:3"), Some(Device::Cuda(3)));
        assert_eq!(device("emulated"), Some(Device::Emulated));
        let set = CudaSet::new(&[2, 0]).unwrap();
        assert_eq!(device("cuda:2,0"), Some(Device::CudaSet(set)));
        let many: Vec<String> = (0..=CudaSet::MAX).map(|ordinal| ordinal.to_string()).collect();
        let many = format!("cuda:{}", many.join(","));
        let lists = ["cuda:0,", "cuda:0,0", "cuda:0,256", "cuda:0 1", &many];
        let names = ["", "gpu", "cuda:", "cuda:-1", "cuda:x", "CPU", "cuda3"];
        for name in names.into_iter().chain(lists) {
            assert_eq!(device(name), None, "{name:?}");
        }
    }
}
