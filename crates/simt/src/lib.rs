//! The emulator: grids, blocks, warps and threads on the CPU.
//!
//! [`emulate`] runs the text of a kernel, every thread of it a coroutine, and checks each access to
//! memory: bounds, alignment, initialisation, races. What the kernel does wrong is a [`Fault`], which
//! names the thread and the line. The instructions that a kernel calls are in [`device`]; `cuda_std`
//! is built on them on the host.
//!
//! ```
//! use simt::{FaultKind, Geometry, Init, Memory, Space, device};
//!
//! let mut memory = Memory::new();
//! let out = memory.alloc("out", Init::Poisoned(4 * 31));
//! let (grid, block, cluster) = ([1, 1, 1], [32, 1, 1], [1, 1, 1]);
//! let geometry = Geometry { grid, block, cluster, shared_bytes: 0 };
//! let body = move || {
//!     let [i, ..] = device::thread_idx();
//!     device::store(Space::Global, out + 4 * u64::from(i), 4, &i.to_le_bytes());
//! };
//! let fault = simt::emulate("iota", geometry, std::sync::Arc::new(body), &mut memory, 0).unwrap_err();
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
mod geometry;
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
mod tensor;

pub use fault::{Fault, FaultKind, MemoryAccess, Party, Place, Waiting};
pub use geometry::Geometry;
pub use machine::{Report, Space};
pub use memory::{Init, Memory, MemoryError};
pub use schedule::{Body, emulate};
pub use seeds::seeds;

/// The one collective of a warp that orders memory accesses.
const SYNC_WARP: &str = "bar.warp.sync";
