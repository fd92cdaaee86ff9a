use cuda_std::prelude::*;

#[kernel(launch_bounds(64), target(sm_100))]
pub unsafe fn pair(_out: GlobalMut<u32>) {}

fn main() {}
