//! All-gather of columns, against the ranks' columns put side by side.

use cuda_std::launch::DevicePtr;
use kernels::all_reduce::{AllGather, Workspace};
use simt::FaultKind;

use super::group::Group;
use crate::device::{SEEDS, random};

const NUM_ROWS: usize = 3;

/// Several calls to the same `out`, of ranks that have so many columns each.
fn gathered(widths: &[usize], num_calls: usize, seed: u64) -> Group {
    let (world, out_width) = (widths.len(), widths.iter().sum());
    let mut group = Group::new(Workspace::new(world, 0, (0, 0)).expect("a right workspace"));
    let num_rows = group.count("num_rows", NUM_ROWS);
    let out: Vec<DevicePtr<f32>> =
        (0..world).map(|rank| group.poisoned("out", rank, NUM_ROWS * out_width)).collect();
    let mut want = Vec::new();
    for call in 0..num_calls {
        let columns: Vec<Vec<f32>> = (0..world)
            .map(|rank| random(NUM_ROWS * widths[rank], seed + (10 * call + rank) as u64))
            .collect();
        let row = |row: usize| {
            let of_rank =
                |rank: usize| columns[rank][row * widths[rank]..][..widths[rank]].to_vec();
            (0..world).flat_map(of_rank).collect::<Vec<f32>>()
        };
        want = (0..NUM_ROWS).flat_map(row).collect();
        for rank in 0..world {
            let x = group.numbers("x", rank, &columns[rank]);
            let (max_rows, width) = (NUM_ROWS + 1, widths[rank]);
            let first_column = widths[..rank].iter().sum();
            let op = AllGather { max_rows, width, out_width, first_column };
            let ranks = group.ranks[rank].clone();
            group.push(rank, op.launch(&ranks, num_rows, x, &out));
        }
    }
    let case = format!("columns {widths:?}, seed {seed}");
    group.run(seed).unwrap_or_else(|fault| panic!("{case}: {fault}"));
    for (rank, &out) in out.iter().enumerate() {
        assert_eq!(group.read(out, want.len()), want, "{case}: rank {rank}");
    }
    group
}

#[test]
fn all_gather_puts_columns_side_by_side() {
    for seed in SEEDS {
        // Whole vectors; shares that differ; rows that are not aligned; none of one rank's.
        for widths in [&[16, 16][..], &[16, 32], &[16, 21], &[0, 5], &[16, 16, 16, 13]] {
            gathered(widths, 3, seed);
        }
    }
    // More vectors than the threads of all blocks.
    gathered(&[8192, 8208], 1, 0);
}

#[test]
fn all_gather_without_a_rank_is_reported() {
    let mut group = Group::new(Workspace::new(2, 0, (0, 0)).expect("a right workspace"));
    let num_rows = group.count("num_rows", 1);
    let out: Vec<DevicePtr<f32>> = (0..2).map(|rank| group.poisoned("out", rank, 16)).collect();
    for rank in 0..2 {
        let x = group.numbers("x", rank, &[1.0; 8]);
        let op = AllGather { max_rows: 1, width: 8, out_width: 16, first_column: 8 * rank };
        let ranks = group.ranks[rank].clone();
        group.push(rank, op.launch(&ranks, num_rows, x, &out));
    }
    group.leave(1, 1);
    let fault = group.run(1).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::Livelock(_)), "{fault}");
}
