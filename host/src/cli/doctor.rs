//! `halfwarp doctor`.

use super::{failure::Failure, terminal};
use cuda_loader::nccl::Nccl;
use halfwarp::{
    Device,
    exec::cuda::{self, DeviceInfo},
    ptx::TARGETS,
};
use hub::{HubCache, Settings};
use std::fmt::Write;

const NOTHING_RUNS: &str = "nothing runs without a model\n\
                            halfwarp fetch or pull gets one; -m PATH runs one of your own";

const GIB: f64 = (1u64 << 30) as f64;

/// Prints what was found on this machine, and what to do about what is missing. Without a model nothing can run.
///
/// # Errors
/// [`Failure::Environment`] if no model is in the caches.
pub fn run() -> Result<(), Failure> {
    let mut report = String::new();
    let mut line = |what: &str, found: &str| {
        let found = found.replace('\n', "\n         ");
        writeln!(report, "{what:<8} {found}").expect("a String takes everything");
    };
    match cuda::driver_version() {
        Ok(version) => {
            line("driver", &format!("CUDA {version}"));
            gpus(&mut line);
        }
        Err(error) => line("driver", &format!("{error}\nmodels run on the CPU")),
    }
    line("CPU", &cpu());
    let targets: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
    let num_kernels = TARGETS[0].kernels.len();
    line("kernels", &format!("{num_kernels}, as PTX for {}", targets.join(" and ")));
    let is_ready = models(&mut line);
    terminal::print(&report)?;
    if is_ready { Ok(()) } else { Err(Failure::Environment(NOTHING_RUNS.to_owned())) }
}

/// Whether a model is in one of the caches.
fn models(line: &mut impl FnMut(&str, &str)) -> bool {
    let cache = match model_cache::cache_dir() {
        Ok(cache) => cache,
        Err(error) => {
            line("cache", &error.to_string());
            return false;
        }
    };
    line("cache", &cache.display().to_string());
    let mut is_ready = false;
    for model in model_cache::MODELS {
        let is_fetched = model.path(&cache).is_file();
        let found = if is_fetched { "fetched" } else { "not fetched: halfwarp fetch" };
        line("model", &format!("{} {found}", model.name));
        is_ready |= is_fetched;
    }
    if let Ok(dir) = Settings::cache_dir_from_env() {
        let num_pulled = HubCache::new(&dir).models().map_or(0, |models| models.len());
        line("hub", &format!("{num_pulled} models in {}", dir.display()));
        is_ready |= num_pulled > 0;
    }
    is_ready
}

fn gpus(line: &mut impl FnMut(&str, &str)) {
    match cuda::devices() {
        Ok(devices) if devices.is_empty() => line("GPU", "none: models run on the CPU"),
        Ok(devices) => {
            for device in &devices {
                line(&format!("cuda:{}", device.ordinal), &gpu(device));
            }
            // What GPUs that share a model can do without.
            if devices.len() > 1 {
                line("NCCL", &nccl());
            }
        }
        Err(error) => line("GPU", &format!("{error}\nmodels run on the CPU")),
    }
}

fn nccl() -> String {
    match Nccl::open() {
        Ok(nccl) => format!("{}, {}", nccl.version(), nccl.library().display()),
        Err(error) => error.to_string(),
    }
}

fn gpu(device: &DeviceInfo) -> String {
    let kernels = match device.target {
        Some(target) => format!("runs the {} kernels", target.name),
        None => "too old for the kernels, which need 8.0".to_owned(),
    };
    format!(
        "{}, compute capability {}, {:.1} GiB, {} SMs: {kernels}",
        device.name,
        device.capability,
        device.memory_bytes as f64 / GIB,
        device.num_sms
    )
}

fn cpu() -> String {
    let threads = rayon::current_num_threads();
    match Device::Cpu.free_memory() {
        Ok(Some(memory)) => {
            format!("{threads} threads, {:.1} GiB free", memory.free_bytes as f64 / GIB)
        }
        _ => format!("{threads} threads"),
    }
}
