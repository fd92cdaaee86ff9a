use cuda_std::prelude::*;

#[kernel(launch_bounds(256, 1))]
pub fn scale_f32(scale: f32, a: GlobalMut<f32>) {}

fn main() {}
