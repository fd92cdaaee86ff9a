//! All-reduce with residual addition and RMSNorm, against an oracle and against the kernel
//! `rms_norm`, which gives the same bits.

use cuda_std::launch::DevicePtr;
use half::{bf16, f16};
use kernels::Rows;
use kernels::all_reduce::{AllReduceNorm, NormOperands, Workspace};
use kernels::element::{Half, NarrowedFrom};
use kernels::rms_norm::RmsNorm;

use super::group::Group;
use crate::device::{Device, SEEDS, Stored, assert_close, assert_stored, random, random_of};

const NUM_ROWS: usize = 2;
const NUM_CALLS: usize = 3;
const EPS: f32 = 0.25;

/// The rows of `rms_norm` of a residual.
fn normed<E: Stored + NarrowedFrom<f32>>(residual: &[f32], weight: &[f32], seed: u64) -> Vec<f32> {
    let (mut device, hidden_size) = (Device::default(), weight.len());
    let num_rows = device.u32s("num_rows", &[NUM_ROWS as u32]);
    let x = Rows::new(device.f32s("x", residual), hidden_size);
    let weight = device.f32s("weight", weight);
    let out = Rows::new(device.poisoned::<E>("out", residual.len()), hidden_size);
    let norm = RmsNorm { max_rows: NUM_ROWS, num_groups: 1, group_size: hidden_size, eps: EPS };
    device.run(norm.launch(num_rows, x, weight, out), seed);
    device.read(out.ptr, residual.len())
}

fn check<E: Stored + Half>(num_calls: usize, (world, hidden_size): (usize, usize), seed: u64) {
    let shape = (NUM_ROWS + 1, hidden_size);
    let mut group = Group::new(Workspace::new(world, 0, shape).expect("a right workspace"));
    let len = NUM_ROWS * hidden_size;
    let (start, weight) = (random(len, seed + 7), random(hidden_size, seed + 8));
    let residuals: Vec<DevicePtr<f32>> =
        (0..world).map(|rank| group.numbers("residual", rank, &start)).collect();
    let weights: Vec<DevicePtr<f32>> =
        (0..world).map(|rank| group.numbers("weight", rank, &weight)).collect();
    let num_rows = group.count("num_rows", NUM_ROWS);
    let mut want: Vec<f64> = start.iter().copied().map(f64::from).collect();
    let mut outs: Vec<DevicePtr<E>> = Vec::new();
    for call in 0..num_calls {
        outs.clear();
        let mut sum = vec![0.0; len];
        for rank in 0..world {
            let x = random_of::<E>(len, seed + (100 * call + rank) as u64);
            sum.iter_mut().zip(&x).for_each(|(sum, x)| *sum += x);
            let x = group.numbers("x", rank, &x);
            // In place, every other time.
            let out = if call == 1 { x } else { group.poisoned("out", rank, len) };
            outs.push(out);
            let op = AllReduceNorm { max_rows: NUM_ROWS + 1, hidden_size, eps: EPS };
            let (residual, weight) = (residuals[rank], weights[rank]);
            let operands = NormOperands { x, residual, weight, out };
            let ranks = group.ranks[rank].clone();
            group.push(rank, op.launch(&ranks, num_rows, &operands));
        }
        // As stored by an all-reduce.
        let sum = sum.into_iter().map(|x| f64::from(E::of(x).value()));
        want.iter_mut().zip(sum).for_each(|(want, x)| *want += x);
    }
    let case = format!("{world} ranks, hidden_size {hidden_size}, seed {seed}");
    group.run(seed).unwrap_or_else(|fault| panic!("{case}: {fault}"));

    let residual = group.read(residuals[0], len);
    assert_close(&case, &residual, &want, 1e-6);
    let oracle: Vec<f64> = (0..len)
        .map(|i| {
            let row = &want[i / hidden_size * hidden_size..][..hidden_size];
            let mean = row.iter().map(|x| x * x).sum::<f64>() / hidden_size as f64;
            want[i] / (mean + f64::from(EPS)).sqrt() * f64::from(weight[i % hidden_size])
        })
        .collect();
    let expected = normed::<E>(&residual, &weight, seed);
    for rank in 0..world {
        let got = group.read(outs[rank], len);
        assert_stored::<E>(&case, &got, &oracle, 1e-5);
        assert_eq!(got, expected, "{case}: rank {rank}, and rms_norm");
        assert_eq!(group.read(residuals[rank], len), residual, "{case}: rank {rank}");
    }
}

#[test]
fn all_reduce_norm_matches_oracle() {
    for seed in SEEDS {
        // A vector; parts of a segment; two segments and a part.
        for hidden_size in [8, 136, 520] {
            check::<f16>(NUM_CALLS, (2, hidden_size), seed);
        }
        check::<bf16>(NUM_CALLS, (4, 264), seed);
        check::<f16>(NUM_CALLS, (8, 24), seed);
    }
}

/// Several vectors a thread; with eight ranks, those of four at a time.
#[test]
fn all_reduce_norm_of_long_rows() {
    check::<bf16>(2, (2, 4104), 0);
    check::<f16>(1, (2, 8200), 1);
    check::<f16>(1, (8, 4104), 2);
}
