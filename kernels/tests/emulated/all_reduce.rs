//! All-reduce on several devices: several calls in a row, while devices are ahead of each other.

#[path = "all_reduce/group.rs"]
mod group;
#[path = "all_reduce/norm.rs"]
mod norm;

use cuda_std::launch::DevicePtr;
use half::{bf16, f16};
use kernels::all_reduce::{Algorithm, AllReduce, Workspace};
use kernels::element::Half;
use simt::FaultKind;

use crate::device::{SEEDS, Stored, assert_stored, random_of};
use group::Group;

/// Calls of a test: each of the two buffers is used again.
const NUM_CALLS: usize = 4;

/// Rows of a tensor, of which a launch has room for one more.
const NUM_ROWS: usize = 3;

/// A workspace without a norm.
fn workspace(world: usize, len: usize) -> Workspace {
    Workspace::new(world, len, (0, 0)).expect("a right workspace")
}

/// The tensors of a call, and what their sum is to be.
struct Call<E> {
    x: Vec<DevicePtr<E>>,
    out: Vec<DevicePtr<E>>,
    want: Vec<f64>,
}

/// Adds a call of all ranks. By one shot, every other one has an output of its own.
fn call<E: Stored + Half>(
    group: &mut Group,
    (algorithm, width): (Algorithm, usize),
    salt: u64,
) -> Call<E> {
    let (world, len) = (group.ranks.len(), NUM_ROWS * width);
    let inputs: Vec<Vec<f32>> =
        (0..world).map(|rank| random_of::<E>(len, 100 * salt + rank as u64 + 1)).collect();
    let sum = |i| inputs.iter().map(|x| f64::from(x[i])).sum();
    let want = (0..len).map(sum).collect();
    let x: Vec<DevicePtr<E>> =
        inputs.iter().enumerate().map(|(rank, x)| group.numbers("x", rank, x)).collect();
    let in_place = algorithm == Algorithm::TwoShot || salt.is_multiple_of(2);
    let mut out = x.clone();
    let num_rows = group.count("num_rows", NUM_ROWS);
    let op = AllReduce { max_rows: NUM_ROWS + 1, width };
    for rank in 0..world {
        if !in_place {
            out[rank] = group.poisoned("out", rank, len);
        }
        let ranks = group.ranks[rank].clone();
        let launch = match algorithm {
            Algorithm::OneShot => op.one_shot(&ranks, num_rows, x[rank], out[rank]),
            Algorithm::TwoShot => op.two_shot(&ranks, num_rows, &x),
        };
        group.push(rank, launch);
    }
    Call { x, out, want }
}

impl<E: Stored> Call<E> {
    /// Every rank has the sum, in the same bits.
    #[track_caller]
    fn assert_right(&self, group: &Group, case: &str) {
        let first = group.read(self.out[0], self.want.len());
        assert_stored::<E>(case, &first, &self.want, 1e-6);
        for (rank, &out) in self.out.iter().enumerate() {
            let bits =
                |values: Vec<f32>| -> Vec<u32> { values.into_iter().map(f32::to_bits).collect() };
            let (got, first) = (group.read(out, self.want.len()), first.clone());
            assert_eq!(bits(got), bits(first), "{case}: rank {rank}");
        }
    }
}

fn check<E: Stored + Half>(world: usize, (algorithm, width): (Algorithm, usize), seed: u64) {
    let mut group = Group::new(workspace(world, (NUM_ROWS + 1) * width));
    let calls: Vec<Call<E>> = (0..NUM_CALLS)
        .map(|number| call(&mut group, (algorithm, width), seed + number as u64))
        .collect();
    let case = format!("{algorithm:?} of {world} ranks, {NUM_ROWS} x {width}, seed {seed}");
    group.run(seed).unwrap_or_else(|fault| panic!("{case}: {fault}"));
    calls.iter().for_each(|call| call.assert_right(&group, &case));
}

#[test]
fn all_reduce_one_shot_matches_oracle() {
    for seed in SEEDS {
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
    for seed in SEEDS {
        // Ranks without a part, parts of vectors; more vectors than a block's threads load at once.
        for width in [1, 3, 8, 11] {
            check::<f16>(2, (Algorithm::TwoShot, width), seed);
        }
        check::<bf16>(2, (Algorithm::TwoShot, 2000), seed);
        check::<bf16>(4, (Algorithm::TwoShot, 37), seed);
        check::<f16>(8, (Algorithm::TwoShot, 43), seed);
    }
}

/// A call of other kernels, of another size, and one shot with other blocks, come between.
#[test]
fn all_reduce_calls_of_all_kinds_follow_each_other() {
    use Algorithm::{OneShot, TwoShot};
    for seed in SEEDS {
        let mut group = Group::new(workspace(2, 4 * 600));
        let shapes = [(OneShot, 9), (TwoShot, 9), (OneShot, 600), (OneShot, 5), (TwoShot, 600)];
        let calls: Vec<Call<f16>> = shapes
            .iter()
            .chain(&shapes)
            .enumerate()
            .map(|(number, &shape)| call(&mut group, shape, number as u64))
            .collect();
        group.run(seed).unwrap_or_else(|fault| panic!("seed {seed}: {fault}"));
        calls.iter().for_each(|call| call.assert_right(&group, &format!("seed {seed}")));
    }
}

/// The epochs of one shot pass their largest number.
#[test]
fn all_reduce_epochs_start_again() {
    for seed in SEEDS {
        let mut group = Group::new(workspace(2, 36));
        group.start_at(u32::MAX - 1, 1);
        let calls: Vec<Call<f16>> = (0..NUM_CALLS)
            .map(|number| call(&mut group, (Algorithm::OneShot, 9), number as u64))
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
        for number in 0..calls {
            call::<f16>(&mut group, (algorithm, 9), number);
        }
        group.leave(2);
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
        call::<f16>(&mut group, (algorithm, 9), 0);
        let fault = group.run(0).unwrap_err();
        assert!(matches!(fault.kind, FaultKind::Uninitialised(_)), "{fault}");
    }
}

/// Two shots access the peers' tensors: a launch that writes one without having waited for the call
/// is found.
#[test]
fn all_reduce_by_two_shots_waits_for_its_peers() {
    for seed in SEEDS {
        let mut group = Group::new(workspace(2, 36));
        let first = call::<f16>(&mut group, (Algorithm::TwoShot, 9), 0);
        // The first call's tensors again, by one shot: only one rank takes part in both.
        let num_rows = group.count("num_rows", NUM_ROWS);
        let op = AllReduce { max_rows: NUM_ROWS, width: 9 };
        for rank in 0..2 {
            let ranks = group.ranks[rank].clone();
            group.push(rank, op.one_shot(&ranks, num_rows, first.x[rank], first.x[rank]));
        }
        group.run(seed).unwrap_or_else(|fault| panic!("seed {seed}: {fault}"));
        let doubled: Vec<f64> = first.want.iter().map(|value| 2.0 * value).collect();
        assert_stored::<f16>("again", &group.read(first.x[1], doubled.len()), &doubled, 1e-3);
    }
}
