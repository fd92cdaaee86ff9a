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
    let (a, b, out) = (DevicePtr::<f32>::new(256), DevicePtr::new(512), DevicePtr::new(768));
    let launch = add_f32::Args { len: 7, a, b, out }.launch(geometry);
    assert_eq!(launch.symbol, "add_f32");
    assert_eq!(launch.arg_offsets, [0, 8, 16, 24]);
    assert_eq!(launch.args.len(), 32);
    assert_eq!(launch.args[..4], 7u32.to_le_bytes());
    assert_eq!(launch.args[8..16], 256u64.to_le_bytes());
}
