use cuda_std::launch::{DevicePtr, Geometry};
use cuda_std::prelude::*;

#[kernel(launch_bounds(128, 1))]
pub unsafe fn prefetch(map: TensorMap) {
    map.prefetch();
}

fn main() {
    let geometry = Geometry { grid: [1, 1, 1], block: [128, 1, 1], shared_bytes: 0 };
    let tensor = DevicePtr::<f32>::new(1024);
    prefetch::Args { map: tensor }.launch(geometry);
}
