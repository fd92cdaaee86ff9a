use cuda_std::prelude::*;

#[kernel(launch_bounds(256, 1))]
pub unsafe fn scale_f32<const STEPS: usize>(scale: f32, a: GlobalMut<f32>) {}

fn main() {}
