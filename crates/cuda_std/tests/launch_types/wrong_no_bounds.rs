use cuda_std::prelude::*;

#[kernel]
pub unsafe fn scale_f32(scale: f32, a: GlobalMut<f32>) {}

fn main() {}
