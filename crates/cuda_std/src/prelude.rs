//! What a kernel's file imports: `use cuda_std::prelude::*`.

pub use crate::shared::{dynamic_shared_mem, shared_array};
pub use crate::{Global, GlobalMut, Shared, convert, cp_async, kernel, math, thread, unroll, warp};
