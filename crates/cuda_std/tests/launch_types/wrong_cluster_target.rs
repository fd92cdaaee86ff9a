use cuda_std::prelude::*;

#[kernel(launch_bounds(64), cluster(2, 1, 1))]
pub unsafe fn pair(_out: GlobalMut<u32>) {}

fn main() {}
