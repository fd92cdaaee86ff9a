//! The kernels of encoders: LayerNorm, GELU by the error function, learned positions, mean pooling.

use crate::harness::*;
use cuda_std::launch::DevicePtr;
use half::{bf16, f16};
use kernels::encoder::add_table::AddTable;
use kernels::encoder::gelu_rows::GeluRows;
use kernels::encoder::layer_norm::LayerNorm;
use kernels::encoder::mean_rows::{MeanRows, MeanSeqs};
use oracle::{Approx, Matrix, gelu, layer_norm, mean};

/// How many rows there are, and as many as a launch has room for.
const ROWS: [usize; 2] = [11, 17];

/// Less than a vector, a segment of a warp and one to each side, several.
const WIDTHS: [usize; 6] = [7, 64, 255, 256, 257, 1032];

/// Elements from a row to the next, and rows: vectors are loaded of widths that are multiples of 8.
fn place(width: usize) -> (usize, usize) {
    (if width.is_multiple_of(8) { width + 8 } else { width + 3 }, ROWS[1])
}

fn floats(row: &[f64]) -> Vec<f32> {
    row.iter().map(|&x| x as f32).collect()
}

/// Rows whose mean is far from 0 beside their variance.
fn shifted(width: usize, seed: u64) -> Matrix {
    let x = Matrix::random::<f32>(ROWS[0], width, seed);
    Matrix { values: x.values.iter().map(|x| f64::from((x + 3.0) as f32)).collect(), ..x }
}

#[test]
fn layer_norm_matches_oracle() {
    fn check<Y: HostElement>(width: usize, has_bias: bool, keeps: bool, seed: u64) {
        let mut device = Device::default();
        let x = shifted(width, seed);
        let (weight, bias) = (random(width, seed + 1), random(width, seed + 2));
        let num_rows = device.u32s("num_rows", &[ROWS[0] as u32]);
        let weight_ptr = device.f32s("weight", &weight);
        let bias_ptr = match has_bias {
            true => device.f32s("bias", &bias),
            false => DevicePtr::null(),
        };
        let rows = device.matrix::<f32>("x", &x, place(width));
        let out = device.out::<Y>("out", place(width));
        // As large as a third of the variance: a norm without it is off.
        let norm = LayerNorm { max_rows: ROWS[1], width, eps: 0.1, keeps };
        device.run(norm.launch(num_rows, rows, [weight_ptr, bias_ptr], out), seed);
        let bias = has_bias.then_some(&bias[..]);
        let values = floats(&x.values);
        let want: Vec<Approx> =
            values.chunks(width).flat_map(|row| layer_norm(row, &weight, bias, 0.1)).collect();
        let case = format!("{width} columns, bias {has_bias}, keeps {keeps}");
        let got = device.read_rows(out, ROWS, width);
        assert_right(&case, &got, &stored::<Y>(want.clone()));
        let x_after = device.read_rows(rows, ROWS, width);
        match keeps {
            true => assert_right(&case, &x_after, &want),
            false => assert_eq!(bits(&x_after), bits(&values), "{case}"),
        }
    }
    for seed in simt::seeds() {
        for width in WIDTHS {
            check::<f32>(width, true, true, seed);
            check::<f16>(width, false, true, seed);
            check::<bf16>(width, true, false, seed);
        }
    }
}

#[test]
fn layer_norm_in_place_matches_oracle() {
    for width in WIDTHS {
        let mut device = Device::default();
        let x = shifted(width, 5);
        let weight = random(width, 6);
        let num_rows = device.u32s("num_rows", &[ROWS[0] as u32]);
        let vectors = [device.f32s("weight", &weight), DevicePtr::null()];
        let rows = device.matrix::<f32>("x", &x, place(width));
        let norm = LayerNorm { max_rows: ROWS[1], width, eps: 1e-12, keeps: false };
        device.run(norm.launch(num_rows, rows, vectors, rows), 0);
        let values = floats(&x.values);
        let want: Vec<Approx> =
            values.chunks(width).flat_map(|row| layer_norm(row, &weight, None, 1e-12)).collect();
        assert_right(&format!("{width} columns"), &device.read_rows(rows, ROWS, width), &want);
    }
}

#[test]
fn gelu_matches_oracle() {
    fn check<E: HostElement>(width: usize, has_up: bool, seed: u64) {
        let mut device = Device::default();
        let mut x = Matrix::random::<E>(ROWS[0], width, seed);
        // Both tails, and where they end.
        x.values.iter_mut().enumerate().for_each(|(i, x)| *x *= [1.0, 4.0, 16.0][i % 3]);
        x.values[..4].copy_from_slice(&[0.0, -200.0, 200.0, -6.0]);
        let up = Matrix::random::<E>(ROWS[0], width, seed + 9);
        let num_rows = device.u32s("num_rows", &[ROWS[0] as u32]);
        let rows = device.matrix::<E>("x", &x, place(width));
        let up_rows = has_up.then(|| device.matrix::<E>("up", &up, place(width)));
        let out = device.out::<E>("out", place(width));
        let launcher = GeluRows { max_rows: ROWS[1], width };
        device.run(launcher.launch(num_rows, rows, up_rows, out), seed);
        let pairs = x.values.iter().zip(&up.values);
        let want = pairs.map(|(&x, &up)| gelu(x, if has_up { up } else { 1.0 })).collect();
        let got = device.read_rows(out, ROWS, width);
        assert_right(&format!("{width} columns, up {has_up}"), &got, &stored::<E>(want));
    }
    for seed in simt::seeds() {
        for (width, has_up) in [(7, true), (64, false), (1023, false), (1032, true)] {
            check::<f32>(width, has_up, seed);
            check::<f16>(width, has_up, seed);
            check::<bf16>(width, has_up, seed);
        }
    }
}

#[test]
fn add_table_matches_oracle() {
    for (width, seed) in WIDTHS.into_iter().flat_map(|width| simt::seeds().map(move |s| (width, s)))
    {
        let mut device = Device::default();
        let x = Matrix::random::<f32>(ROWS[0], width, seed);
        let table = random(5 * width, seed + 1);
        let positions: Vec<u32> = (0..ROWS[0] as u32).map(|row| row * 3 % 5).collect();
        let num_rows = device.u32s("num_rows", &[ROWS[0] as u32]);
        let indices = device.u32s("positions", &positions);
        let table_ptr = device.f32s("table", &table);
        let rows = device.matrix::<f32>("x", &x, place(width));
        let add = AddTable { max_rows: ROWS[1], width };
        device.run(add.launch(num_rows, indices, table_ptr, rows), seed);
        let want = floats(&x.values)
            .into_iter()
            .enumerate()
            .map(|(i, x)| x + table[positions[i / width] as usize * width + i % width]);
        let want: Vec<f32> = want.collect();
        assert_eq!(device.read_rows(rows, ROWS, width), want, "{width} columns");
    }
}

#[test]
fn mean_rows_matches_oracle() {
    // Lengths around the warps of a block; the third sequence has no row.
    let lens = [1, 7, 30, 8, 9, 130];
    let ends: Vec<u32> = lens
        .iter()
        .scan(0, |end, len| Some(std::mem::replace(end, *end + len)))
        .chain([lens.iter().sum()])
        .collect();
    let num_tokens = *ends.last().unwrap() as usize;
    let seq_ids: Vec<u32> =
        (0..).zip(lens).flat_map(|(seq, len)| std::iter::repeat_n(seq, len as usize)).collect();
    // Of a sequence any token stands for it.
    let pooled = [[0, 0], [1, 6], [3, 0], [4, 8], [5, 17]];
    let rows: Vec<u32> = pooled.iter().map(|&[seq, token]| ends[seq as usize] + token).collect();
    for (width, seed) in WIDTHS.into_iter().flat_map(|width| simt::seeds().map(move |s| (width, s)))
    {
        let mut device = Device::default();
        let x = Matrix::random::<f32>(num_tokens, width, seed);
        let seqs = MeanSeqs {
            num_rows: device.u32s("num_rows", &[rows.len() as u32]),
            rows: device.u32s("rows", &rows),
            seq_ids: device.u32s("seq_ids", &seq_ids),
            cu_seqlens_q: device.u32s("cu_seqlens_q", &ends),
        };
        let x_rows = device.matrix::<f32>("x", &x, (place(width).0, num_tokens));
        let out = device.out::<f32>("out", (place(width).0, 8));
        let launcher = MeanRows { max_rows: 8, width };
        device.run(launcher.launch(&seqs, x_rows, out), seed);
        let values = floats(&x.values);
        let want: Vec<Approx> = pooled
            .iter()
            .flat_map(|&[seq, _]| {
                let tokens = ends[seq as usize] as usize..ends[seq as usize + 1] as usize;
                mean(&values[tokens.start * width..tokens.end * width], width)
            })
            .collect();
        let got = device.read_rows(out, [rows.len(), 8], width);
        assert_right(&format!("{width} columns"), &got, &want);
    }
}

#[test]
fn launches_cover_rows_and_columns() {
    let norm = |max_rows, width| {
        let norm = LayerNorm { max_rows, width, eps: 1e-5, keeps: true };
        norm.launch(ptr(9), rows::<f32>(4096), [ptr(2), ptr(3)], rows::<f16>(4096))
    };
    assert_eq!(of(norm(9, 384)), ("layer_norm_f32_f16", [2, 1, 1], 256, 0));
    assert!([norm(0, 384), norm(9, 0)].into_iter().all(is_nothing));
    let gelu = |max_rows, width, stride| {
        GeluRows { max_rows, width }.launch(ptr(9), rows::<bf16>(stride), None, rows(4096))
    };
    assert_eq!(of(gelu(5, 1536, 1536)), ("gelu_rows_bf16", [5, 2, 1], 128, 0));
    assert!([gelu(0, 8, 8), gelu(5, 0, 8)].into_iter().all(is_nothing));
    assert_eq!(refused(gelu(5, 8, 1 << 32)).0, "row stride");
    let add =
        |max_rows, width| AddTable { max_rows, width }.launch(ptr(9), ptr(8), ptr(2), rows(width));
    assert_eq!(of(add(5, 1025)), ("add_table_f32", [5, 2, 1], 128, 0));
    assert!([add(0, 8), add(5, 0)].into_iter().all(is_nothing));
    let seqs = MeanSeqs { num_rows: ptr(9), rows: ptr(8), seq_ids: ptr(7), cu_seqlens_q: ptr(6) };
    let mean =
        |max_rows, width| MeanRows { max_rows, width }.launch(&seqs, rows(width), rows(width));
    assert_eq!(of(mean(5, 257)), ("mean_rows_f32", [5, 2, 1], 256, 0));
    assert!([mean(0, 8), mean(5, 0)].into_iter().all(is_nothing));
}
