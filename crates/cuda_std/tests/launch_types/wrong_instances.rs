use cuda_std::prelude::*;

#[kernel(launch_bounds(64), instances(E in [u16, u32], empty_{T} = <E>))]
pub unsafe fn empty<E>() {}

#[kernel(launch_bounds(64), instances(E in [u16, [u32; 2]], array_{E} = <E>))]
pub unsafe fn array<E>() {}

fn main() {}
