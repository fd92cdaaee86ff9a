//! Boxes that a GPU rejects, or with which it writes more than the box.

use cuda_std::bulk::CacheHint;
use cuda_std::prelude::*;
use cuda_std::tensor_map::{Element, L2Promotion, Swizzle, TensorMapSpec};
use half::f16;

use super::planted::{Run, assert_found, assert_right, geometry, is_invalid, run};

/// A box is 32 rows of 64 f16.
const COLUMNS: u32 = 64;
const ROWS: u32 = 32;
const BOX_BYTES: u32 = 2 * COLUMNS * ROWS;

const LOAD: u32 = 0;
const STORE: u32 = 1;
const ADD: u32 = 2;

/// Moves the box at a corner.
#[kernel(
    launch_bounds(1),
    target(sm_90a),
    instances(load_box = <LOAD>, store_box = <STORE>, add_box = <ADD>)
)]
unsafe fn move_box<const HOW: u32>(map: TensorMap, column: i32, row: i32) {
    // SAFETY: a box, and a barrier.
    unsafe {
        let smem: Shared<u32> = dynamic_shared_mem();
        if HOW == LOAD {
            let barrier = Mbarrier::new(shared_array![u64; 1]);
            barrier.init(1);
            fence::mbarrier_init();
            barrier.arrive_expect_tx(BOX_BYTES);
            bulk::tensor_load(smem, map, [column, row], barrier, CacheHint::EvictNormal);
            barrier.wait(0);
        } else {
            (0..BOX_BYTES / 4).for_each(|i| smem.set(i, 0));
            fence::proxy_async_shared();
            if HOW == STORE {
                bulk::tensor_store(map, [column, row], smem);
            } else {
                bulk::tensor_reduce_add(map, [column, row], smem);
            }
            bulk::commit_group();
            bulk::wait_group::<0>();
        }
    }
}

/// Moves the box at a corner of 40 rows of `width` f16.
fn move_box_of(instance: move_box::Instance, width: u64, [column, row]: [i32; 2]) -> Vec<Run> {
    run(move |device| {
        let spec = TensorMapSpec {
            address: device.zeros::<f16>("tensor", 208 * 40).0,
            element: Element::F16,
            dims: vec![width, 40],
            strides_bytes: vec![416],
            box_dims: vec![COLUMNS, ROWS],
            swizzle: Swizzle::B128,
            l2_promotion: L2Promotion::default(),
        };
        let map = device.map(&spec);
        move_box::Args { map, column, row }.launch(instance, geometry(1, 1))
    })
}

#[test]
fn a_row_off_16_bytes_and_stores_out_of_bounds() {
    use move_box::Instance;
    let (load, store, add) = (Instance::load_box, Instance::store_box, Instance::add_box);
    let found = |instance: Instance, width, corner, why| {
        let runs = move_box_of(instance, width, corner);
        assert_found(&runs, instance.symbol(), &["bulk::tensor_"], is_invalid(why));
    };
    for how in [load, store, add] {
        found(how, 200, [33, 0], "byte 66 of a row: expected a multiple of 16");
    }
    for (how, corner) in [(store, [-8, 0]), (add, [0, -7])] {
        found(how, 200, corner, "expected 0 or more; of the tensor at `tensor`");
    }
    for how in [store, add] {
        found(how, 203, [192, 0], "past the end of rows of 406 bytes");
    }
    // A load, and stores that end before the row's end or after it.
    for (how, column) in [(load, 192), (store, 136), (store, 208)] {
        let moved = move_box_of(how, 203, [column, 0]);
        assert_right(&moved, |_| unreachable!("there is no output"));
    }
}
