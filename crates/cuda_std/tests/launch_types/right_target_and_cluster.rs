#![deny(warnings)]

use cuda_std::launch::{DevicePtr, Geometry};
use cuda_std::prelude::*;

#[kernel(
    launch_bounds(64, 1),
    target(sm_90a),
    cluster(BLOCKS, ROWS.div_ceil(4), 1),
    instances(rows_pair = <2, 4>, rows_quad = <4, 8>)
)]
unsafe fn rows<const BLOCKS: u32, const ROWS: u32>(out: GlobalMut<u32>) {
    // SAFETY: one element per thread.
    unsafe { out.set(thread::index_1d() as usize, ROWS) };
}

#[kernel(launch_bounds(64), cluster(2, 1, 1), target(sm_90a))]
unsafe fn pair(_out: GlobalMut<u32>) {}

#[kernel(launch_bounds(64), target(sm_80))]
unsafe fn older(_out: GlobalMut<u32>) {}

#[kernel(launch_bounds(64))]
unsafe fn everywhere(_out: GlobalMut<u32>) {}

#[kernel(launch_bounds(64), overlaps)]
unsafe fn overlapping(out: GlobalMut<u32>) {
    grid::wait_for_dependencies();
    // SAFETY: one element per thread.
    unsafe { out.set(thread::index_1d() as usize, 1) };
}

fn main() {
    let geometry = Geometry { grid: [8, 8, 1], block: [64, 1, 1], shared_bytes: 0 };
    let out = DevicePtr::new(256);
    assert_eq!((rows::Instance::rows_pair.blocks(), rows::Instance::rows_quad.rows()), (2, 8));
    assert_eq!(rows::Args { out }.launch(rows::Instance::rows_pair, geometry).cluster, [2, 1, 1]);
    assert_eq!(rows::Args { out }.launch(rows::Instance::rows_quad, geometry).cluster, [4, 2, 1]);
    assert_eq!(pair::Args { _out: out }.launch(geometry).cluster, [2, 1, 1]);
    assert_eq!(everywhere::Args { _out: out }.launch(geometry).cluster, [1, 1, 1]);
    assert!(overlapping::Args { out }.launch(geometry).overlaps);
    assert!(!pair::Args { _out: out }.launch(geometry).overlaps);
    assert!(!older::Args { _out: out }.launch(geometry).overlaps);
    let targets = (rows::TARGET, older::TARGET, everywhere::TARGET);
    assert_eq!(targets, (Some("sm_90a"), Some("sm_80"), None));
}
