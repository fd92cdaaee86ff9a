use core::any::TypeId;
use cuda_std::launch::{DevicePtr, Geometry};
use cuda_std::prelude::*;
use sizes::Instance;

#[kernel(
    launch_bounds(COLUMNS, 1),
    instances(
        E in [u16, u32],
        O in [E as "", f32 as "_f32"],
        sizes_{E}_64{O} = <E, O, 64>,
        sizes_u16_128 = <u16, u16, 128>
    )
)]
pub unsafe fn sizes<E: Send + Sync + 'static, O: Send + Sync + 'static, const COLUMNS: u32>(
    len: u32,
    x: Global<E>,
    out: GlobalMut<O>,
) {
    let _ = (len, x.address(), out.address());
}

fn main() {
    let symbols: Vec<_> = Instance::ALL.iter().map(|instance| instance.symbol()).collect();
    let of_16 = ["sizes_u16_64", "sizes_u16_64_f32"];
    assert_eq!(symbols[..2], of_16);
    assert_eq!(symbols[2..], ["sizes_u32_64", "sizes_u32_64_f32", "sizes_u16_128"]);
    assert_eq!(Instance::sizes_u32_64.e(), TypeId::of::<u32>());
    assert_eq!(Instance::sizes_u32_64.o(), TypeId::of::<u32>());
    assert_eq!(Instance::sizes_u32_64_f32.o(), TypeId::of::<f32>());
    assert_eq!(Instance::sizes_u16_128.columns(), 128);

    let geometry = Geometry { grid: [1, 1, 1], block: [64, 1, 1], shared_bytes: 0 };
    let args = || {
        let (x, out) = (DevicePtr::<u16>::new(256), DevicePtr::<f32>::new(512));
        sizes::Args { out, x, len: 7 }
    };
    let launch = args().launch(Instance::sizes_u16_64_f32, geometry);
    assert_eq!((launch.symbol, launch.max_threads), ("sizes_u16_64_f32", 64));
    assert_eq!(launch.arg_offsets, [0, 8, 16]);
    assert_eq!(launch.args[16..], 512u64.to_le_bytes());
    // An instance of other element types is refused before anything is launched.
    for other in [Instance::sizes_u16_64, Instance::sizes_u32_64_f32] {
        assert!(std::panic::catch_unwind(move || args().launch(other, geometry)).is_err());
    }
}
