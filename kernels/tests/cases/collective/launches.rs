//! Launch geometry of all-reduce, and what is refused.

use crate::harness::*;
use cuda_std::launch::DevicePtr;
use half::{bf16, f16};
use kernels::all_reduce::{
    Algorithm, AllReduce, AllReduceAdd, AllReduceNorm, NormOperands, Ranks, Workspace,
    one_shot_max_bytes,
};

/// Rank 1 of `world`, with room for `max_elems` elements and a norm of 4 rows of 4096.
fn ranks(world: usize, max_elems: usize) -> Ranks {
    let workspace = Workspace::new(world, max_elems, (4, 4096)).expect("a right workspace");
    let addresses = (0..world as u64).map(|rank| ptr(100 + rank)).collect();
    Ranks::new(1, workspace, addresses).expect("a right rank")
}

fn tensors<E>(world: usize) -> Vec<DevicePtr<E>> {
    (0..world as u64).map(|rank| ptr(10 + rank)).collect()
}

#[test]
fn all_reduce_takes_one_shot_for_small_tensors() {
    let of_size = |world, max_rows, width| {
        let ranks = ranks(world, 128 << 10);
        of(AllReduce { max_rows, width }.launch(&ranks, ptr(9), &tensors::<f16>(world)))
    };
    assert_eq!(of_size(2, 1, 4096), ("all_reduce_one_shot_f16_w2", [4, 1, 1], 128, 0));
    assert_eq!(of_size(8, 3, 683), ("all_reduce_one_shot_f16_w8", [3, 1, 1], 128, 0));
    assert_eq!(of_size(4, 32, 4096), ("all_reduce_one_shot_f16_w4", [128, 1, 1], 128, 0));
    assert_eq!(of_size(4, 33, 4096), ("all_reduce_two_shot_f16_w4", [17, 1, 1], 256, 0));
    assert_eq!(of_size(2, 4096, 4096), ("all_reduce_two_shot_f16_w2", [128, 1, 1], 256, 0));
    // A workspace that has room for less.
    let op = AllReduce { max_rows: 1, width: 4096 };
    let launch = op.launch(&ranks(2, 1024), ptr(9), &tensors::<bf16>(2));
    assert_eq!(of(launch), ("all_reduce_two_shot_bf16_w2", [1, 1, 1], 256, 0));
    let workspace = Workspace::new(2, 128 << 10, (0, 0)).expect("a right workspace");
    let largest = AllReduce { max_rows: 1, width: one_shot_max_bytes(2) / 2 };
    assert_eq!(largest.algorithm(&workspace), Algorithm::OneShot);
    // More ranks send more.
    assert_eq!(of_size(8, 8, 4096), ("all_reduce_one_shot_f16_w8", [32, 1, 1], 128, 0));
    assert_eq!(of_size(8, 9, 4096), ("all_reduce_two_shot_f16_w8", [3, 1, 1], 256, 0));
    for (max_rows, width) in [(0, 4096), (7, 0)] {
        let op = AllReduce { max_rows, width };
        assert!(is_nothing(op.launch(&ranks(2, 1024), ptr(9), &tensors::<f16>(2))));
        assert!(is_nothing(op.two_shot(&ranks(2, 1024), ptr(9), &tensors::<f16>(2))));
    }
}

#[test]
fn all_reduce_rejects_what_the_workspace_has_no_room_for() {
    let what = |launch| refused(launch).0;
    let op = AllReduce { max_rows: 2, width: 4096 };
    let ranks = ranks(2, 4096);
    assert_eq!(what(op.one_shot::<f16>(&ranks, ptr(9), ptr(1), ptr(2))), "elements of one shot");
    let misaligned = DevicePtr::<f16>::new(0x1008);
    let small = AllReduce { max_rows: 1, width: 4096 };
    assert_eq!(what(small.one_shot(&ranks, ptr(9), misaligned, ptr(2))), "address of x");
    assert_eq!(what(small.one_shot(&ranks, ptr(9), ptr(2), misaligned)), "address of out");
    assert_eq!(what(op.launch(&ranks, ptr(9), &tensors::<f16>(3))), "tensors");
    assert_eq!(what(op.two_shot(&ranks, ptr(9), &[ptr(1), misaligned])), "address of a tensor");
    let none = op.two_shot_in(0, &ranks, ptr(9), &tensors::<f16>(2));
    assert_eq!(what(none), "blocks");
    let huge = AllReduce { max_rows: 1 << 20, width: 1 << 12 };
    assert_eq!(what(huge.launch(&ranks, ptr(9), &tensors::<f16>(2))), "elements");

    let workspace = |world, hidden_size| Workspace::new(world, 1024, (1, hidden_size));
    assert!(workspace(3, 4096).is_err());
    assert!(workspace(2, 4100).is_err());
    assert!(workspace(2, 16392).is_err());
    let right = workspace(2, 16384).expect("a right workspace");
    assert!(Ranks::new(2, right, tensors(2)).is_err());
    assert!(Ranks::new(0, right, tensors(3)).is_err());
    assert!(Ranks::new(0, right, vec![ptr(1), DevicePtr::new(0x1001)]).is_err());
    // Two buffers of two lines for each vector of each rank, epochs, and flags.
    let lines = 2 * 2 * 2 * (128 + 2048) * 16;
    assert_eq!(right.bytes(), 256 + 512 + 256 + 2 * 128 * 2 * 4 + lines);
}

#[test]
fn all_reduce_with_a_norm_has_a_block_a_row() {
    let (x, out) = (tensors(2), tensors(2));
    let operands = NormOperands::<bf16> { x: &x, residual: ptr(2), weight: ptr(3), out: &out };
    let launch = |max_rows, hidden_size| {
        let workspace = Workspace::new(2, 0, (4, hidden_size)).expect("a right workspace");
        let ranks = Ranks::new(0, workspace, tensors(2)).expect("a right rank");
        AllReduceNorm { max_rows, hidden_size, eps: 1e-6 }.launch(&ranks, ptr(9), &operands)
    };
    assert_eq!(of(launch(3, 896)), ("all_reduce_norm_bf16_w2_v1", [3, 1, 1], 128, 0));
    assert_eq!(of(launch(1, 4096)), ("all_reduce_norm_bf16_w2_v1", [1, 1, 1], 512, 0));
    assert_eq!(of(launch(1, 5120)), ("all_reduce_norm_bf16_w2_v2", [1, 1, 1], 384, 0));
    assert_eq!(of(launch(4, 16384)), ("all_reduce_norm_bf16_w2_v4", [4, 1, 1], 512, 0));
    assert!(is_nothing(launch(0, 4096)) && is_nothing(launch(3, 0)));
    // More rows than the workspace has lines for: a rank's rows, in up to 128 blocks.
    assert_eq!(of(launch(5, 896)), ("all_reduce_two_shot_norm_bf16_w2", [3, 1, 1], 64, 0));
    assert_eq!(of(launch(8192, 4096)), ("all_reduce_two_shot_norm_bf16_w2", [128, 1, 1], 256, 0));
    assert_eq!(of(launch(8192, 16384)), ("all_reduce_two_shot_norm_bf16_w2", [128, 1, 1], 1024, 0));
    assert!(is_nothing(launch(5, 0)));
    assert!(launch(1 << 20, 1 << 12).is_err());

    let ranks = ranks(2, 1024);
    // The lines of a row lie where the workspace's rows have them.
    let other = AllReduceNorm { max_rows: 1, hidden_size: 2048, eps: 1e-6 };
    assert!(other.one_shot(&ranks, ptr(9), &operands).is_err());
    assert!(other.two_shot_in(0, &ranks, ptr(9), &operands).is_err());
    let one = NormOperands { x: &x[..1], ..operands };
    assert!(other.launch(&ranks, ptr(9), &one).is_err());
    let misaligned = NormOperands { residual: DevicePtr::new(0x1004), ..operands };
    assert!(other.launch(&ranks, ptr(9), &misaligned).is_err());
}

#[test]
fn all_reduce_with_an_addition_gives_all_ranks_the_residual() {
    let launch = |max_rows, hidden_size| {
        let add = AllReduceAdd { max_rows, hidden_size };
        add.launch::<f16>(&ranks(4, 1024), ptr(9), &tensors(4), &tensors(4))
    };
    assert_eq!(of(launch(9, 896)), ("all_reduce_two_shot_add_f16_w4", [2, 1, 1], 256, 0));
    assert!(is_nothing(launch(0, 4096)));
    assert!(launch(1, 4100).is_err());
    let three = AllReduceAdd { max_rows: 1, hidden_size: 8 };
    assert!(three.launch::<f16>(&ranks(4, 1024), ptr(9), &tensors(4), &tensors(3)).is_err());
}
