use cuda_std::launch::{DevicePtr, Geometry};
use cuda_std::prelude::*;

#[kernel(launch_bounds(256, 1))]
pub unsafe fn add_f32(len: u32, a: Global<f32>, b: Global<f32>, out: GlobalMut<f32>) {
    let i = thread::index_1d();
    if i < len {
        // SAFETY: three views of `len` elements.
        unsafe { out.set(i as usize, a.get(i as usize) + b.get(i as usize)) };
    }
}

fn main() {
    let geometry = Geometry { grid: [1, 1, 1], block: [256, 1, 1], shared_bytes: 0 };
    let (a, b) = (DevicePtr::<f32>::new(256), DevicePtr::new(512));
    add_f32::Args { len: 7, a, b }.launch(geometry);
}
