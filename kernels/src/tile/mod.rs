//! What tiled kernels share: element types, the pipeline of shared-memory stages, boxes that
//! threads copy, the tile scheduler, and the last block of a reduction.

pub mod box_copy;
pub mod element;
pub mod last_block;
pub mod pipeline;
pub mod scheduler;
pub mod smem;
pub mod softmax;
pub mod weight;
