//! What kernels that work on tiles of 16-bit operands share: their elements, the ring of stages that
//! copies fill and products empty, and the order of tiles.

pub mod element;
pub mod last_block;
pub mod pipeline;
pub mod scheduler;
