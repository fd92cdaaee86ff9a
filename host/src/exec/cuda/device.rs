//! CUDA devices: what is there, and which kernels each can run.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use cuda_loader::OverlappingLauncher;
use cuda_loader::nccl::NcclError;
use cust::CudaFlags;
use cust::context::{Context, CurrentContext};
use cust::device::{Device as CudaDevice, DeviceAttribute};
use cust::error::{CudaError, CudaResult};
use cust::event::{Event, EventStatus};
use cust::memory::mem_get_info;
use cust::stream::{Stream, StreamFlags};
use cust::sys::CUresult;

use crate::exec::ExecError;
use crate::exec::Target;
use crate::ptx::{self, KernelSet};
use kernels::gemm::Gpu;

pub use cuda_loader::Version;

/// The least compute capability that the kernels are compiled for.
const MIN_CAPABILITY: Capability = Capability { major: 8, minor: 0 };

/// A compute capability: 9.0 of an H200.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Capability {
    /// 9 of 9.0.
    pub major: u32,
    /// 0 of 9.0.
    pub minor: u32,
}

impl std::fmt::Display for Capability {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl Capability {
    /// The kernels for a device of this capability. `None` below 8.0.
    pub fn target(self) -> Option<&'static KernelSet> {
        ptx::target(self.code()?.name())
    }

    /// What code a device of this capability runs: that of `sm_90a` on 9.0 alone, that of `sm_80`
    /// on everything newer through the driver's JIT. `None` below 8.0.
    fn code(self) -> Option<Target> {
        let hopper = Capability { major: 9, minor: 0 };
        match self {
            _ if self == hopper => Some(Target::Sm90a),
            _ if self >= MIN_CAPABILITY => Some(Target::Sm80),
            _ => None,
        }
    }
}

/// What a device is.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// Number of the device: `N` of `cuda:N`.
    pub ordinal: usize,
    /// The product's name.
    pub name: String,
    /// Compute capability.
    pub capability: Capability,
    /// Size of the whole memory.
    pub memory_bytes: usize,
    /// Multiprocessors.
    pub num_sms: usize,
    /// Most shared memory of a multiprocessor, of what it divides between that and L1.
    pub sm_shared_bytes: u32,
    /// The kernels that it runs, or `None` if its compute capability is too low.
    pub target: Option<&'static KernelSet>,
}

/// The newest CUDA that the driver serves.
///
/// # Errors
/// [`ExecError::NoDevice`] without a driver, or with one that is too old.
pub fn driver_version() -> Result<Version, ExecError> {
    match cuda_loader::load() {
        Ok(driver) => Ok(driver.version()),
        Err(error) => Err(ExecError::NoDevice(error.to_string())),
    }
}

/// A text that changes when the driver does: its release where the kernel module says it, which is
/// finer than the version of CUDA.
pub(super) fn driver_name() -> Result<String, ExecError> {
    let release = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    Ok(format!("{} {release}", driver_version()?))
}

/// How kernels are launched on `gpu` that overlap with the launch before: where they are compiled
/// to wait for it, and the driver can.
pub(super) fn overlapping_launcher(gpu: Gpu) -> Result<Option<OverlappingLauncher>, ExecError> {
    let driver = cuda_loader::load().map_err(|error| ExecError::NoDevice(error.to_string()))?;
    Ok(driver.overlapping_launcher().filter(|_| gpu.target == Target::Sm90a))
}

/// All devices of this machine, in the driver's order; none on a machine that has a driver but no
/// device.
///
/// # Errors
/// [`ExecError::NoDevice`] without a driver, or with one that is too old; [`ExecError::Driver`] if
/// it does not answer.
pub fn devices() -> Result<Vec<DeviceInfo>, ExecError> {
    driver_version()?;
    match cust::init(CudaFlags::empty()) {
        Err(CudaError::NoDevice) => return Ok(Vec::new()),
        result => result.map_err(failed("cuInit"))?,
    }
    let count = CudaDevice::num_devices().map_err(failed("counting the devices"))?;
    (0..count).map(info).collect()
}

fn info(ordinal: u32) -> Result<DeviceInfo, ExecError> {
    let failed = failed("asking for a device's properties");
    let device = CudaDevice::get_device(ordinal).map_err(failed)?;
    let attribute = |attribute| -> Result<u32, ExecError> {
        device.get_attribute(attribute).map(|value| value as u32).map_err(failed)
    };
    let capability = Capability {
        major: attribute(DeviceAttribute::ComputeCapabilityMajor)?,
        minor: attribute(DeviceAttribute::ComputeCapabilityMinor)?,
    };
    Ok(DeviceInfo {
        ordinal: ordinal as usize,
        name: device.name().map_err(failed)?,
        capability,
        memory_bytes: device.total_memory().map_err(failed)?,
        num_sms: attribute(DeviceAttribute::MultiprocessorCount)? as usize,
        sm_shared_bytes: attribute(DeviceAttribute::MaxSharedMemoryPerMultiprocessor)?,
        target: capability.target(),
    })
}

/// The first device that has kernels; `None` without a driver or a device.
pub fn first_device() -> Option<usize> {
    devices().ok()?.iter().position(|device| device.target.is_some())
}

/// The device `cuda:<ordinal>` of `devices`, its kernels, and what launches are made for: `target`,
/// or the newest that it can run. Whether they overlap is for [`overlapping_launcher`] to say.
pub(super) fn choose(
    devices: &[DeviceInfo],
    ordinal: usize,
    target: Option<Target>,
) -> Result<(&DeviceInfo, &'static KernelSet, Gpu), ExecError> {
    let Some(device) = devices.get(ordinal) else {
        let there = match devices.len() {
            0 => "the driver finds no CUDA device".to_owned(),
            1 => "this machine has one CUDA device, cuda:0".to_owned(),
            count => format!("this machine has {count} CUDA devices, cuda:0 to cuda:{}", count - 1),
        };
        return Err(ExecError::NoDevice(format!("there is no device cuda:{ordinal}: {there}")));
    };
    let Some(newest) = device.capability.code() else {
        return Err(ExecError::NoDevice(format!(
            "cuda:{ordinal} ({}) has compute capability {}, the kernels need {MIN_CAPABILITY} or newer; use the CPU",
            device.name, device.capability
        )));
    };
    let target = target.unwrap_or(newest);
    if (target, newest) == (Target::Sm90a, Target::Sm80) {
        return Err(ExecError::TargetTooNew {
            device: format!("cuda:{ordinal} ({})", device.name),
            capability: device.capability.to_string(),
            target,
        });
    }
    let kernels = ptx::target(target.name()).expect("this program has the kernels of each target");
    Ok((device, kernels, Gpu { target, num_sms: device.num_sms, overlaps: false }))
}

/// Most bytes that a context takes. What is in use beyond that, when a context is made, is of
/// other processes.
const MAX_CONTEXT_BYTES: usize = 1 << 30;

/// A device that this process has opened.
#[derive(Clone, Copy)]
pub(super) struct Opened {
    pub context: &'static Context,
    /// What was in use on the device when the context had been made, by any process; at most
    /// [`MAX_CONTEXT_BYTES`].
    pub context_bytes: usize,
}

/// The device's primary context, current in this thread.
pub(super) fn open_context(device: &DeviceInfo) -> Result<&'static Context, ExecError> {
    Ok(open(device)?.context)
}

/// Opens the device: its primary context is current in this thread.
///
/// It is made once, which takes a tenth of a second, and never given back: the driver tears a
/// context down when its last owner is gone, and a thread that opens the device at that moment
/// crashes.
pub(super) fn open(device: &DeviceInfo) -> Result<Opened, ExecError> {
    static CONTEXTS: Mutex<BTreeMap<usize, Opened>> = Mutex::new(BTreeMap::new());
    let mut contexts = CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(opened) = contexts.get(&device.ordinal) {
        make_current(opened.context)?;
        return Ok(*opened);
    }
    let handle = CudaDevice::get_device(device.ordinal as u32).map_err(failed("cuDeviceGet"))?;
    let context = Context::new(handle).map_err(failed("opening the device"))?;
    let context: &'static Context = Box::leak(Box::new(context));
    let (free_bytes, total_bytes) = mem_get_info().map_err(failed("cuMemGetInfo"))?;
    let context_bytes = total_bytes.saturating_sub(free_bytes).min(MAX_CONTEXT_BYTES);
    let opened = Opened { context, context_bytes };
    contexts.insert(device.ordinal, opened);
    Ok(opened)
}

/// Makes `context` the one that driver calls of this thread act on.
pub(super) fn make_current(context: &Context) -> Result<(), ExecError> {
    CurrentContext::set_current(context).map_err(failed("cuCtxSetCurrent"))
}

/// A stream of device `ordinal` that no executor has; its context is current. It waits for no
/// other: a blocking stream could not be captured while another thread of the process uses the
/// default stream.
///
/// Executors hand their streams on: on an H200 a process that has made some of them, four in one
/// case and eight in another, starts each kernel of a graph 0.17 us later from then on, though no
/// two are there at a time.
pub(super) fn open_stream(ordinal: usize) -> Result<Arc<Stream>, ExecError> {
    static STREAMS: Mutex<Vec<(usize, Arc<Stream>)>> = Mutex::new(Vec::new());
    let mut streams = STREAMS.lock().unwrap_or_else(PoisonError::into_inner);
    let is_free =
        |(of, stream): &&(usize, Arc<Stream>)| *of == ordinal && Arc::strong_count(stream) == 1;
    if let Some((_, stream)) = streams.iter().find(is_free) {
        return Ok(Arc::clone(stream));
    }
    let stream = Stream::new(StreamFlags::NON_BLOCKING, None).map_err(failed("making a stream"))?;
    let stream = Arc::new(stream);
    streams.push((ordinal, Arc::clone(&stream)));
    Ok(stream)
}

/// Names the call that failed. Errors are printed by the name of their code: `CudaError` takes its
/// text from the driver, and panics where there is none.
pub(super) fn failed(call: &'static str) -> impl Fn(CudaError) -> ExecError + Copy {
    move |error| ExecError::Driver { call: call.to_owned(), error: format!("{error:?}") }
}

/// How long a wait with a limit asks again and again, before it sleeps in between.
const SPIN: Duration = Duration::from_millis(20);

/// What a device has been given to do.
pub(super) trait Work {
    /// Whether it is done.
    fn is_done(&self) -> CudaResult<bool>;

    /// Waits until it is.
    fn wait(&self) -> CudaResult<()>;
}

/// All that was started.
impl Work for Stream {
    fn is_done(&self) -> CudaResult<bool> {
        // SAFETY: the stream is live.
        match unsafe { cust::sys::cuStreamQuery(self.as_inner()) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            CUresult::CUDA_SUCCESS => Ok(true),
            // The call that waits has its error.
            _ => self.synchronize().map(|()| true),
        }
    }

    fn wait(&self) -> CudaResult<()> {
        self.synchronize()
    }
}

/// All that was started before it was recorded.
impl Work for Event {
    fn is_done(&self) -> CudaResult<bool> {
        Ok(self.query()? == EventStatus::Ready)
    }

    fn wait(&self) -> CudaResult<()> {
        self.synchronize()
    }
}

/// Waits for `work`; no longer than `limit`, if there is one.
///
/// # Errors
/// [`ExecError::RankFailed`] after the limit, when the device still works; [`ExecError::Driver`].
pub(super) fn wait_for(
    work: &impl Work,
    limit: Option<Duration>,
    call: &'static str,
) -> Result<(), ExecError> {
    let Some(limit) = limit else { return work.wait().map_err(failed(call)) };
    let start = Instant::now();
    loop {
        if work.is_done().map_err(failed(call))? {
            return Ok(());
        }
        let waited = start.elapsed();
        if waited > limit {
            return Err(ExecError::RankFailed(format!(
                "{call} takes more than {} s",
                limit.as_secs()
            )));
        }
        if waited < SPIN { thread::yield_now() } else { thread::sleep(SPIN / 100) }
    }
}

/// What went wrong between ranks.
pub(super) fn by_nccl(error: NcclError) -> ExecError {
    ExecError::RankFailed(error.to_string())
}

/// The result of a call that `cust` has no face for.
pub(super) fn check(call: &str, code: CUresult) -> Result<(), ExecError> {
    match code {
        CUresult::CUDA_SUCCESS => Ok(()),
        code => Err(ExecError::Driver { call: call.to_owned(), error: format!("{code:?}") }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(ordinal: usize, major: u32, minor: u32) -> DeviceInfo {
        let capability = Capability { major, minor };
        DeviceInfo {
            ordinal,
            name: "Test".to_owned(),
            capability,
            memory_bytes: 1 << 30,
            num_sms: 1,
            sm_shared_bytes: 100 << 10,
            target: capability.target(),
        }
    }

    #[test]
    fn hopper_alone_runs_sm_90a() {
        let target = |major, minor| Capability { major, minor }.target().map(|target| target.name);
        assert_eq!(target(9, 0), Some("sm_90a"));
        for (major, minor) in [(8, 0), (8, 6), (8, 9), (10, 0), (12, 0)] {
            assert_eq!(target(major, minor), Some("sm_80"), "{major}.{minor}");
        }
        assert_eq!(target(7, 5), None);
    }

    #[test]
    fn a_device_that_is_not_there_is_told_with_those_that_are() {
        let error = |devices: &[DeviceInfo]| choose(devices, 2, None).unwrap_err().to_string();
        assert_eq!(
            error(&[device(0, 9, 0), device(1, 9, 0)]),
            "there is no device cuda:2: this machine has 2 CUDA devices, cuda:0 to cuda:1"
        );
        assert!(error(&[device(0, 9, 0)]).ends_with("this machine has one CUDA device, cuda:0"));
        assert!(error(&[]).ends_with("the driver finds no CUDA device"));
    }

    #[test]
    fn a_low_capability_is_an_error_that_says_so() {
        let error = choose(&[device(0, 7, 5)], 0, None).unwrap_err().to_string();
        assert!(error.contains("compute capability 7.5, the kernels need 8.0"), "{error}");
        assert_eq!(choose(&[device(0, 8, 6)], 0, None).unwrap().1.name, "sm_80");
    }

    #[test]
    fn older_kernels_run_on_a_newer_device_and_not_the_other_way() {
        let chosen = |devices: &[DeviceInfo], target| {
            choose(devices, 0, target)
                .map(|(_, kernels, gpu)| (kernels.name, gpu.target.name()))
                .map_err(|error| error.to_string())
        };
        let (sm_80, sm_90a) = (Some(Target::Sm80), Some(Target::Sm90a));
        let hopper = [device(0, 9, 0)];
        assert_eq!(chosen(&hopper, None), Ok(("sm_90a", "sm_90a")));
        assert_eq!(chosen(&hopper, sm_90a), Ok(("sm_90a", "sm_90a")));
        assert_eq!(chosen(&hopper, sm_80), Ok(("sm_80", "sm_80")));
        for other in [device(0, 8, 0), device(0, 12, 0)] {
            let capability = other.capability;
            let devices = [other];
            assert_eq!(chosen(&devices, sm_80), Ok(("sm_80", "sm_80")));
            let error = chosen(&devices, sm_90a).unwrap_err();
            let why =
                format!("compute capability {capability}: it cannot run the kernels for sm_90a");
            assert!(error.contains(&why), "{error}");
        }
        assert!(chosen(&[device(0, 7, 5)], sm_80).unwrap_err().contains("need 8.0"));
    }
}
