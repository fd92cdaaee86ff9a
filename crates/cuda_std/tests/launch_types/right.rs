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

#[kernel(launch_bounds(32, 1))]
pub unsafe fn copy_f32(x: Global<f32>, out: [GlobalMut<f32>; 3], index: u32) {
    for out in out {
        // SAFETY: a view has such an element.
        unsafe { out.set(index as usize, x.get(index as usize)) };
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

    // An array is one argument.
    let launch = copy_f32::Args { x: a, out: [b, out, a], index: 5 }.launch(geometry);
    assert_eq!(launch.arg_offsets, [0, 8, 32]);
    let words: Vec<u64> =
        launch.args[8..32].as_chunks().0.iter().map(|&w| u64::from_le_bytes(w)).collect();
    assert_eq!(words, [512, 768, 256]);
    assert_eq!(launch.args[32..], 5u32.to_le_bytes());
}
