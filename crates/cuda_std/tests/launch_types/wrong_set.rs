use cuda_std::prelude::*;

#[kernel(launch_bounds(32), instances(E in HALVES, add_{E} = <E>))]
pub unsafe fn add<E>(_out: GlobalMut<u32>) {}

#[kernel(launch_bounds(32), instances(E in [u8], keep_{E} = <E>, except(keep_u16)))]
pub unsafe fn keep<E>(_out: GlobalMut<u32>) {}

fn main() {}
