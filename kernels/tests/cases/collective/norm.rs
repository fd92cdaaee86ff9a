//! All-reduce with residual addition and RMSNorm, against an oracle and against the kernel
//! `rms_norm`, which gives the same bits.

use super::group::Group;
use super::shared;
use crate::harness::*;
use cuda_std::launch::DevicePtr;
use half::{bf16, f16};
use kernels::Rows;
use kernels::all_reduce::{Algorithm, AllReduceAdd, AllReduceNorm, NormOperands, Workspace};
use kernels::element::{Half, NarrowedFrom};
use kernels::rms_norm::RmsNorm;
use oracle::rms_norm;

const NUM_CALLS: usize = 3;
const EPS: f32 = 0.25;

/// The rows of `rms_norm` of a residual.
fn normed<E: HostElement + NarrowedFrom<f32>>(
    residual: &[f32],
    weight: &[f32],
    seed: u64,
) -> Vec<f32> {
    let (mut device, hidden_size) = (Device::default(), weight.len());
    let max_rows = residual.len() / hidden_size;
    let num_rows = device.u32s("num_rows", &[max_rows as u32]);
    let x = Rows::new(device.f32s("x", residual), hidden_size);
    let weight = device.f32s("weight", weight);
    let out = Rows::new(device.poisoned::<E>("out", residual.len()), hidden_size);
    let norm = RmsNorm { max_rows, num_groups: 1, group_size: hidden_size, eps: EPS };
    device.run(norm.launch(num_rows, x, weight, out), seed);
    device.read(out.ptr, residual.len())
}

/// The ranks' residuals, all alike.
struct Residuals {
    /// What they are to be, to the bit.
    values: Vec<f32>,
    rank_ptrs: Vec<DevicePtr<f32>>,
}

impl Residuals {
    /// Summands of all ranks, which are added.
    fn add<E: HostElement>(&mut self, seed: u64) -> Vec<Vec<f32>> {
        let (len, world) = (self.values.len(), self.rank_ptrs.len() as u64);
        let x: Vec<Vec<f32>> = (0..world).map(|rank| random_of::<E>(len, seed + rank)).collect();
        for (i, value) in self.values.iter_mut().enumerate() {
            // As stored by an all-reduce.
            *value += E::rounded(x.iter().map(|x| x[i]).sum());
        }
        x
    }
}

fn check<E: HostElement + Half>(
    algorithm: Algorithm,
    num_calls: usize,
    (world, hidden_size): (usize, usize),
    seed: u64,
) {
    // By two shots all ranks but the last have a row or two, in one block or in several.
    let rows = if algorithm == Algorithm::OneShot { 2 } else { world + 1 };
    let max_blocks = if seed.is_multiple_of(2) { 128 } else { 1 };
    let (max_rows, len) = (rows + 1, rows * hidden_size);
    let shape = (max_rows, hidden_size);
    let mut group = Group::new(Workspace::new(world, 0, shape).expect("a right workspace"));
    let (start, weight) = (random(len, seed + 7), random(hidden_size, seed + 8));
    let rank_ptrs = (0..world).map(|rank| group.numbers("residual", rank, &start)).collect();
    let mut residuals = Residuals { values: start, rank_ptrs };
    let weights: Vec<DevicePtr<f32>> =
        (0..world).map(|rank| group.numbers("weight", rank, &weight)).collect();
    let num_rows = group.count("num_rows", rows);
    let [shared_x, shared_out] = [(); 2].map(|()| shared::<E>(&mut group, len));
    let op = AllReduceNorm { max_rows, hidden_size, eps: EPS };
    let mut outs: Vec<DevicePtr<E>> = Vec::new();
    for call in 0..num_calls {
        outs.clear();
        let x = residuals.add::<E>(seed + 100 * call as u64);
        let x: Vec<_> = (0..world).map(|rank| group.numbers("x", rank, &x[rank])).collect();
        for rank in 0..world {
            let (residual, weight) = (residuals.rank_ptrs[rank], weights[rank]);
            let ranks = group.ranks[rank].clone();
            // In place, every other time.
            let is_in_place = call == 1;
            let out = group.poisoned("out", rank, len);
            match algorithm {
                Algorithm::OneShot => {
                    let mut out_of_ranks = x.clone();
                    if !is_in_place {
                        out_of_ranks[rank] = out;
                    }
                    outs.push(out_of_ranks[rank]);
                    let operands = NormOperands { x: &x, residual, weight, out: &out_of_ranks };
                    group.push(rank, op.one_shot(&ranks, num_rows, &operands));
                }
                // Peers access the tensors: one launch writes the rank's own, another reads it.
                Algorithm::TwoShot => {
                    let normed = if is_in_place { &shared_x } else { &shared_out };
                    group.copy(rank, len, x[rank], shared_x[rank]);
                    let operands = NormOperands { x: &shared_x, residual, weight, out: normed };
                    group.push(rank, op.two_shot_in(max_blocks, &ranks, num_rows, &operands));
                    group.copy(rank, len, normed[rank], out);
                    outs.push(out);
                }
            }
        }
    }
    let last = residuals.values.clone();
    if algorithm == Algorithm::TwoShot {
        let x = residuals.add::<E>(seed + 900);
        let op = AllReduceAdd { max_rows, hidden_size };
        for (rank, x) in x.iter().enumerate() {
            let (x, ranks) = (group.numbers("x", rank, x), group.ranks[rank].clone());
            group.copy(rank, len, x, shared_x[rank]);
            group.push(rank, op.launch(&ranks, num_rows, &shared_x, &residuals.rank_ptrs));
        }
    }
    let case = format!("{algorithm:?}, {world} ranks, hidden_size {hidden_size}, seed {seed}");
    group.run(seed).unwrap_or_else(|fault| panic!("{case}: {fault}"));

    let rows = last.chunks(hidden_size);
    let oracle = stored::<E>(rows.flat_map(|row| rms_norm(row, &weight, EPS)).collect());
    let expected = normed::<E>(&last, &weight, seed);
    for (rank, (&out, &residual)) in outs.iter().zip(&residuals.rank_ptrs).enumerate() {
        let got = group.read(out, len);
        assert_right(&case, &got, &oracle);
        assert_eq!(got, expected, "{case}: rank {rank}, and rms_norm");
        let residual = group.read(residual, len);
        assert_eq!(residual, residuals.values, "{case}: residual of rank {rank}");
    }
}

#[test]
fn all_reduce_norm_matches_oracle() {
    for algorithm in [Algorithm::OneShot, Algorithm::TwoShot] {
        for seed in simt::seeds() {
            // A vector; parts of a segment; two segments and a part.
            for hidden_size in [8, 136, 520] {
                check::<f16>(algorithm, NUM_CALLS, (2, hidden_size), seed);
            }
            check::<bf16>(algorithm, NUM_CALLS, (4, 264), seed);
            check::<f16>(algorithm, NUM_CALLS, (8, 24), seed);
        }
    }
}

/// Several vectors a thread; with eight ranks, those of four at a time.
#[test]
fn all_reduce_norm_of_long_rows() {
    check::<bf16>(Algorithm::OneShot, 2, (2, 4104), 0);
    check::<f16>(Algorithm::OneShot, 1, (2, 8200), 1);
    check::<f16>(Algorithm::OneShot, 1, (8, 4104), 2);
    check::<f16>(Algorithm::TwoShot, 1, (2, 8200), 1);
}
