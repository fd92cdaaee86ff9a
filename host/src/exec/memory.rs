//! The memory of a device: what is free, what a model will take, and what it took.

use super::cpu::CpuExecutor;
use super::cuda;
#[cfg(feature = "emulator")]
use super::emulated::EmulatedExecutor;
use super::{Device, ExecError, GpuOptions};
use crate::plan::{MemoryBudget, Plan};
use cpu_ops::host_memory::available_bytes;

/// The memory of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// The device.
    pub device: String,
    /// All of it; of the host what this process could get.
    pub total_bytes: usize,
    /// What no process has.
    pub free_bytes: usize,
    /// What this process's CUDA context takes, which is not free any more.
    pub context_bytes: usize,
}

impl MemoryInfo {
    /// The same device with room for so many bytes, all of which may be taken.
    #[must_use]
    pub fn with_room(self, room_bytes: usize) -> Self {
        let (total_bytes, free_bytes) = (room_bytes, room_bytes);
        MemoryInfo { total_bytes, free_bytes, context_bytes: 0, ..self }
    }

    /// What a model and its context may take, where a process may have `share` of the device.
    pub fn room_bytes(&self, share: f64) -> usize {
        let share_bytes = (self.total_bytes as f64 * share) as usize;
        share_bytes.min(self.free_bytes.saturating_add(self.context_bytes))
    }
}

impl Device {
    /// How much memory there is; `None` where the system does not say.
    ///
    /// # Errors
    /// [`ExecError::NoDevice`], [`ExecError::Driver`].
    pub fn free_memory(self) -> Result<Option<MemoryInfo>, ExecError> {
        let on_host = |device: &str, bytes| MemoryInfo {
            device: device.to_owned(),
            total_bytes: bytes,
            free_bytes: bytes,
            context_bytes: 0,
        };
        match self.cuda_ordinal() {
            Some(ordinal) => cuda::free_memory(ordinal).map(Some),
            #[cfg(not(feature = "emulator"))]
            None if self == Device::Emulated => Err(super::device::no_emulator()),
            // The emulator keeps beside each byte whether it was written.
            #[cfg(feature = "emulator")]
            None if self == Device::Emulated => {
                Ok(available_bytes().map(|free| on_host("emulator", free / 2)))
            }
            None => Ok(available_bytes().map(|free| on_host("CPU", free))),
        }
    }
}

/// The memory that an executor of `device` will take: opened with `largest`, whose bounds are the
/// largest, and with all of `prepared` made ready. Plans may be without the data of their tables.
///
/// Temporary values of one operation on the CPU are not counted, such as f32 copies of its rows
/// in 16 bits.
///
/// # Errors
/// [`ExecError::NoDevice`], [`ExecError::Driver`].
pub fn memory_budget(
    device: Device,
    options: &GpuOptions,
    largest: &Plan,
    prepared: &[Plan],
) -> Result<MemoryBudget, ExecError> {
    match device.cuda_ordinals(largest.rank.world)? {
        Some(ordinals) => cuda::memory_budget(&ordinals, options, largest, prepared),
        #[cfg(feature = "emulator")]
        None if device == Device::Emulated => {
            Ok(EmulatedExecutor::memory_budget(options.target, largest, prepared))
        }
        None => Ok(CpuExecutor::memory_budget(largest, prepared)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_room_is_a_share_of_all_and_no_more_than_what_is_free() {
        let mut gpu = MemoryInfo {
            device: "GPU".to_owned(),
            total_bytes: 1000,
            free_bytes: 950,
            context_bytes: 50,
        };
        assert_eq!([0.5, 0.9, 1.0].map(|share| gpu.room_bytes(share)), [500, 900, 1000]);
        // Another process has 300.
        gpu.free_bytes = 650;
        assert_eq!([0.5, 0.9, 1.0].map(|share| gpu.room_bytes(share)), [500, 700, 700]);
    }
}
