//! What kernels that work on tiles of 16-bit operands share: their elements, the ring of stages that
//! copies fill and products empty, boxes that threads copy into it, and the order of tiles.

pub mod box_copy;
pub mod element;
pub mod last_block;
pub mod pipeline;
pub mod scheduler;
