//! All-reduce on several devices: several calls in a row, while devices are ahead of each other.

mod group;
mod launches;
mod norm;

use crate::harness::*;
use cuda_std::launch::DevicePtr;
use group::Group;
use half::{bf16, f16};
use kernels::all_reduce::{Algorithm, AllGather, AllReduce, Workspace};
use kernels::element::Half;
use oracle::Approx;
use simt::FaultKind;

/// Calls of a test: each of the two buffers is used again.
const NUM_CALLS: usize = 4;

/// Rows of a tensor, of which a launch has room for one more.
const NUM_ROWS: usize = 3;

/// A workspace without a norm.
fn workspace(world: usize, len: usize) -> Workspace {
    Workspace::new(world, len, (0, 0)).expect("a right workspace")
}

/// Where the ranks find the sum of a call, and what it is to be.
struct Call<E> {
    out: Vec<DevicePtr<E>>,
    want: Vec<Approx>,
}

/// Adds a call of all ranks. By one shot, it is in place if `width` is even. Two shots access
/// tensors of peers: there one launch writes the rank's own, `shared`, and another one reads the sum.
fn call<E: HostElement + Half>(
    group: &mut Group,
    (algorithm, width): (Algorithm, usize),
    salt: u64,
    shared: &[DevicePtr<E>],
) -> Call<E> {
    let len = NUM_ROWS * width;
    let inputs: Vec<Vec<f32>> = (0..group.ranks.len())
        .map(|rank| random_of::<E>(len, 100 * salt + rank as u64 + 1))
        .collect();
    call_on(group, (algorithm, width), &inputs, shared)
}

/// As [`call`], on these tensors.
fn call_on<E: HostElement + Half>(
    group: &mut Group,
    (algorithm, width): (Algorithm, usize),
    inputs: &[Vec<f32>],
    shared: &[DevicePtr<E>],
) -> Call<E> {
    let (world, len) = (group.ranks.len(), NUM_ROWS * width);
    let sum = |i| inputs.iter().map(|x| f64::from(x[i])).fold(Approx::exact(0.0), Approx::plus);
    let want = stored::<E>((0..len).map(sum).collect());
    let num_rows = group.count("num_rows", NUM_ROWS);
    let op = AllReduce { max_rows: NUM_ROWS + 1, width };
    let mut outs = Vec::new();
    for rank in 0..world {
        let x = group.numbers("x", rank, &inputs[rank]);
        let ranks = group.ranks[rank].clone();
        let is_in_place = algorithm == Algorithm::OneShot && width.is_multiple_of(2);
        let out = if is_in_place { x } else { group.poisoned("out", rank, len) };
        outs.push(out);
        match algorithm {
            Algorithm::OneShot => group.push(rank, op.one_shot(&ranks, num_rows, x, out)),
            Algorithm::TwoShot => {
                group.copy(rank, len, x, shared[rank]);
                // Long rows in one block, so that its threads have several vectors.
                let max_blocks = if width < 2000 { 2 } else { 1 };
                group.push(rank, op.two_shot_in(max_blocks, &ranks, num_rows, shared));
                group.copy(rank, len, shared[rank], out);
            }
        }
    }
    Call { out: outs, want }
}

/// Tensors that all devices access.
fn shared<E: HostElement>(group: &mut Group, len: usize) -> Vec<DevicePtr<E>> {
    (0..group.ranks.len()).map(|rank| group.poisoned("tensor", rank, len)).collect()
}

impl<E: HostElement> Call<E> {
    /// Every rank has the sum, in the same bits.
    #[track_caller]
    fn assert_right(&self, group: &Group, case: &str) {
        let first = group.read(self.out[0], self.want.len());
        assert_right(case, &first, &self.want);
        for (rank, &out) in self.out.iter().enumerate() {
            let got = group.read(out, self.want.len());
            assert_eq!(bits(&got), bits(&first), "{case}: rank {rank}");
        }
    }
}

fn check<E: HostElement + Half>(world: usize, (algorithm, width): (Algorithm, usize), seed: u64) {
    check_calls::<E>(NUM_CALLS, world, (algorithm, width), seed);
}

fn check_calls<E: HostElement + Half>(
    num_calls: usize,
    world: usize,
    (algorithm, width): (Algorithm, usize),
    seed: u64,
) {
    let mut group = Group::new(workspace(world, (NUM_ROWS + 1) * width));
    let shared = shared(&mut group, NUM_ROWS * width);
    let calls: Vec<Call<E>> = (0..num_calls)
        .map(|number| call(&mut group, (algorithm, width), seed + number as u64, &shared))
        .collect();
    let case = format!("{algorithm:?} of {world} ranks, {NUM_ROWS} x {width}, seed {seed}");
    group.run(seed).unwrap_or_else(|fault| panic!("{case}: {fault}"));
    calls.iter().for_each(|call| call.assert_right(&group, &case));
}

#[test]
fn all_reduce_one_shot_matches_oracle() {
    for seed in simt::seeds() {
        // Parts of a vector, a vector and parts; a block and a part of one.
        for width in [1, 3, 8, 11, 344] {
            check::<f16>(2, (Algorithm::OneShot, width), seed);
        }
        check::<bf16>(2, (Algorithm::OneShot, 19), seed);
        check::<bf16>(4, (Algorithm::OneShot, 37), seed);
        check::<f16>(8, (Algorithm::OneShot, 7), seed);
    }
}

#[test]
fn all_reduce_two_shot_matches_oracle() {
    for seed in simt::seeds() {
        // Ranks without a part, parts of vectors.
        for width in [1, 3, 8, 11] {
            check_calls::<f16>(2, 2, (Algorithm::TwoShot, width), seed);
        }
        check_calls::<bf16>(3, 4, (Algorithm::TwoShot, 37), seed);
        check_calls::<f16>(2, 8, (Algorithm::TwoShot, 43), seed);
    }
    // Two blocks; more vectors than the threads load at once.
    check_calls::<f16>(2, 2, (Algorithm::TwoShot, 1401), 0);
    check_calls::<bf16>(1, 2, (Algorithm::TwoShot, 5500), 0);
    check_calls::<f16>(1, 8, (Algorithm::TwoShot, 5500), 1);
}

/// Ranks 1 and 3 cancel each other; of rank 0, what rank 1 leaves of it is lost.
#[test]
fn all_reduce_adds_in_the_order_of_the_ranks() {
    for algorithm in [Algorithm::OneShot, Algorithm::TwoShot] {
        let mut group = Group::new(workspace(4, 4 * 11));
        let shared = shared(&mut group, 33);
        let mut inputs: Vec<Vec<f32>> =
            (0..4).map(|rank| random_of::<bf16>(33, rank + 1)).collect();
        inputs[1] = inputs[1].iter().map(|value| value * 2f32.powi(18)).collect();
        inputs[3] = inputs[1].iter().map(|value| -value).collect();
        let call = call_on::<bf16>(&mut group, (algorithm, 11), &inputs, &shared);
        group.run(0).unwrap_or_else(|fault| panic!("{fault}"));
        let sum = |i| inputs.iter().map(|x: &Vec<f32>| x[i]).reduce(|sum, x| sum + x);
        let want: Vec<f32> =
            (0..33).map(|i| bf16::from_f32(sum(i).expect("four ranks")).to_f32()).collect();
        for out in call.out {
            assert_eq!(group.read(out, 33), want, "{algorithm:?}");
        }
    }
}

/// A call of other kernels, of another size, and one shot with other blocks, come between.
#[test]
fn all_reduce_calls_of_all_kinds_follow_each_other() {
    use Algorithm::{OneShot, TwoShot};
    for seed in simt::seeds() {
        let mut group = Group::new(workspace(2, 4 * 600));
        let shared = shared(&mut group, NUM_ROWS * 600);
        let shapes = [(OneShot, 9), (TwoShot, 9), (OneShot, 600), (OneShot, 5), (TwoShot, 600)];
        let calls: Vec<Call<f16>> = shapes
            .iter()
            .chain(&shapes)
            .enumerate()
            .map(|(number, &shape)| call(&mut group, shape, number as u64, &shared))
            .collect();
        group.run(seed).unwrap_or_else(|fault| panic!("seed {seed}: {fault}"));
        calls.iter().for_each(|call| call.assert_right(&group, &format!("seed {seed}")));
    }
}

/// The epochs of one shot pass their largest number.
#[test]
fn all_reduce_epochs_start_again() {
    for seed in simt::seeds() {
        let mut group = Group::new(workspace(2, 36));
        group.start_at(u32::MAX - 1, 1);
        let calls: Vec<Call<f16>> = (0..NUM_CALLS)
            .map(|number| call(&mut group, (Algorithm::OneShot, 9), number as u64, &[]))
            .collect();
        group.run(seed).unwrap_or_else(|fault| panic!("seed {seed}: {fault}"));
        calls.iter().for_each(|call| call.assert_right(&group, &format!("seed {seed}")));
    }
}

#[test]
fn all_reduce_without_a_rank_is_reported() {
    for (algorithm, calls, seed) in [
        (Algorithm::OneShot, 1, 0),
        (Algorithm::OneShot, 3, 1),
        (Algorithm::TwoShot, 1, 2),
        (Algorithm::TwoShot, 3, 3),
    ] {
        let mut group = Group::new(workspace(4, 36));
        let shared = shared(&mut group, 27);
        for number in 0..calls {
            call::<f16>(&mut group, (algorithm, 9), number, &shared);
        }
        // A call by two shots is the second of three launches.
        group.leave(2, if algorithm == Algorithm::TwoShot { 2 } else { 1 });
        let fault = group.run(seed).unwrap_err();
        assert!(matches!(fault.kind, FaultKind::Livelock(_)), "{fault}");
        let report = fault.to_string();
        assert!(report.contains(": polls `workspace of rank "), "{report}");
        assert!(report.contains("nothing is left to run on device 2"), "{report}");
    }
}

#[test]
fn all_reduce_with_workspaces_that_are_not_zeroed_is_reported() {
    for algorithm in [Algorithm::OneShot, Algorithm::TwoShot] {
        let mut group = Group::not_zeroed(workspace(2, 36));
        let shared = shared(&mut group, 27);
        call::<f16>(&mut group, (algorithm, 9), 0, &shared);
        let fault = group.run(0).unwrap_err();
        assert!(matches!(fault.kind, FaultKind::Uninitialised(_)), "{fault}");
    }
}

/// Several calls to the same `out`, of ranks that have so many columns each.
fn gathered(widths: &[usize], num_calls: usize, seed: u64) -> Group {
    let (world, out_width) = (widths.len(), widths.iter().sum());
    let mut group = Group::new(workspace(world, 0));
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
    for seed in simt::seeds() {
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
    let mut group = Group::new(workspace(2, 0));
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
