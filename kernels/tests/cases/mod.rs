//! The cases of each folder of kernels.

mod attention;
mod cache;
mod collective;
mod delta;
mod encoder;
mod experts;
mod linear;
mod rows;
mod sampling;
mod tile;
