use cuda_std::launch::{DevicePtr, Geometry};
use cuda_std::prelude::*;

#[kernel(launch_bounds(256, 1))]
pub unsafe fn copy_f32(len: u32, x: Global<f32>, out: GlobalMut<f32>) {
    let _ = (len, x.address(), out.address());
}

fn main() {
    let geometry = Geometry { grid: [1, 1, 1], block: [256, 1, 1], shared_bytes: 0 };
    let (x, y) = (DevicePtr::<f32>::new(256), DevicePtr::<f32>::new(512));
    copy_f32::Args { len: 7, x, y }.launch(geometry);
}
