//! The emulator: grids, blocks, warps and threads on the CPU.
//!
//! [`emulate`] runs a kernel, each of its threads a coroutine, and checks every memory access:
//! bounds, alignment, initialisation, races. An error of the kernel is a [`Fault`], which names the
//! thread and the source line. [`device`] holds the instructions that kernels call; on the host,
//! `cuda_std` is built on them.
//!
//! ```
//! use simt::{FaultKind, Geometry, Init, Kernel, Memory, Space, device};
//!
//! let mut memory = Memory::new();
//! let out = memory.alloc("out", Init::Poisoned(4 * 31));
//! let kernel = Kernel { symbol: "iota", max_threads: 32, cluster: [1, 1, 1] };
//! let geometry = Geometry { grid: [1, 1, 1], block: [32, 1, 1], shared_bytes: 0 };
//! let body = move || {
//!     let [i, ..] = device::thread_idx();
//!     device::store(Space::Global, out + 4 * u64::from(i), 4, &i.to_le_bytes());
//! };
//! let body = std::sync::Arc::new(body);
//! let fault = simt::emulate(kernel, geometry, body, &mut memory, 0).unwrap_err();
//! assert!(matches!(fault.kind, FaultKind::OutOfBounds(_)));
//! assert_eq!(fault.by.unwrap().thread, [31, 0, 0]);
//! ```

mod access;
mod agent;
mod atomic;
mod banks;
mod barrier;
mod block;
mod bulk;
mod clock;
mod cluster;
mod copy;
pub mod device;
mod fault;
mod flight;
mod fragment_a;
mod grid;
mod kernel;
mod layout;
mod machine;
mod mbarrier;
mod memory;
mod operand;
mod point;
mod product;
mod ready;
mod registers;
mod rng;
mod schedule;
mod seeds;
mod shadow;
mod stack;
mod stream;
mod tensor;
mod watchdog;

pub use fault::{
    Fault, FaultKind, InStream, MemoryAccess, Pairing, Party, Place, Unordered, Waiting,
};
pub use gpu_types::Geometry;
pub use kernel::Kernel;
pub use machine::{Report, Space};
pub use memory::{Init, Memory, MemoryError};
pub use schedule::{Body, StreamLaunch, emulate, emulate_streams};
pub use seeds::seeds;

/// The one collective of a warp that orders memory accesses.
const SYNC_WARP: &str = "bar.warp.sync";
