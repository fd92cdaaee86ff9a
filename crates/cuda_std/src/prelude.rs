//! What a kernel's file imports: `use cuda_std::prelude::*`.

pub use crate::shared::{dynamic_shared_mem, shared_array};
pub use crate::{
    Global, GlobalMut, Shared, bf16x2, convert, cp_async, f16x2, kernel, math, thread, unroll, warp,
};
