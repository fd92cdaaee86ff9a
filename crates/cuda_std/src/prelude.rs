//! The imports of a kernel's file: `use cuda_std::prelude::*`.

pub use crate::shared::{dynamic_shared_mem, shared_array};
pub use crate::{Global, GlobalMut, Mbarrier, Shared, TensorMap};
pub use crate::{atomic, barrier, bulk, cluster, cp_async, fence, grid, registers, thread, warp};
pub use crate::{bf16x2, convert, f16x2, kernel, math, unroll};
