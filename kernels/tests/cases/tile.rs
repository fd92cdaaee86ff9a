//! The building blocks of tiled kernels, each by itself.

use crate::harness::random;
use cuda_std::bulk::CacheHint;
use cuda_std::launch::{DevicePtr, Geometry};
use cuda_std::prelude::*;
use cuda_std::tensor_map::{Element, L2Promotion, Swizzle, TensorMapSpec};
use cuda_std::wgmma::{Accumulator, column};
use half::f16;
use kernels::tile::smem::{SmemTile, tile_bytes};
use kernels::tile::softmax::OnlineSoftmax;
use simt::{Init, Memory};

const ROWS: u32 = 24;
const COLUMNS: u32 = 128;
const BOX_BYTES: u32 = tile_bytes(ROWS, 64);

/// Loads a tile by TMA, zeroes rows `first_zero ..`, and writes it out by its vectors.
#[kernel(launch_bounds(32), target(sm_90a))]
unsafe fn copy_tile(out: GlobalMut<f16>, first_zero: u32, map: TensorMap) {
    // SAFETY: the launch gives the tile and a barrier; one thread initialises it, and all wait for
    // it and for the copies.
    unsafe {
        let smem = dynamic_shared_mem::<u8>();
        let tile = SmemTile::<f16>::new(smem.cast(), ROWS);
        let landed = Mbarrier::new(smem.offset(2 * BOX_BYTES).cast());
        if thread::thread_idx_x() == 0 {
            landed.init(1);
            fence::mbarrier_init();
            landed.arrive_expect_tx(2 * BOX_BYTES);
            for panel in 0..2 {
                let coords = [panel as i32 * 64, 0];
                bulk::tensor_load(
                    tile.panel(panel, 0),
                    map,
                    coords,
                    landed,
                    CacheHint::EvictNormal,
                );
            }
        }
        thread::sync_threads();
        landed.wait(0);
        tile.zero_rows(first_zero, COLUMNS);
        thread::sync_threads();
        for row in 0..ROWS {
            let (panel, vec_idx) = (thread::thread_idx_x() / 8 % 2, thread::thread_idx_x() % 8);
            let values: [u32; 4] = tile.vec_at(panel, row, vec_idx).cast().get_vec(0);
            if thread::thread_idx_x() < 16 {
                let at = row * COLUMNS + panel * 64 + vec_idx * 8;
                out.cast::<u32>().set_vec(at as usize / 2, values);
            }
        }
    }
}

/// A tile's vectors are where TMA writes them with the 128-byte swizzle.
#[test]
fn a_tile_is_read_as_tma_writes_it() {
    let values: Vec<f16> =
        random((ROWS * COLUMNS) as usize, 5).into_iter().map(f16::from_f32).collect();
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    for first_zero in [0, 11, ROWS] {
        let mut memory = Memory::new();
        let from = memory.alloc("tensor", Init::Bytes(&bytes));
        let out = memory.alloc("out", Init::Poisoned(bytes.len()));
        let spec = TensorMapSpec {
            address: from,
            element: Element::F16,
            dims: vec![COLUMNS.into(), ROWS.into()],
            strides_bytes: vec![u64::from(COLUMNS) * 2],
            box_dims: vec![64, ROWS],
            swizzle: Swizzle::B128,
            l2_promotion: L2Promotion::B128,
        };
        let shared_bytes = 2 * BOX_BYTES + 8;
        let geometry = Geometry { grid: [1; 3], block: [32, 1, 1], shared_bytes };
        let launch = copy_tile::Args { out: DevicePtr::new(out), first_zero, map: spec.emulated() }
            .launch(geometry);
        launch.emulate(&mut memory, 3).unwrap();
        let mut got = vec![0; bytes.len()];
        memory.read(out, &mut got).unwrap();
        let kept = (first_zero * COLUMNS * 2) as usize;
        assert_eq!(got[..kept], bytes[..kept]);
        assert!(got[kept..].iter().all(|&byte| byte == 0));
    }
}

/// Rows of a warp, and keys of a block.
const QUERIES: usize = 16;
const KEYS: usize = 16;
const BLOCKS: usize = 3;

/// Softmax of `[QUERIES, BLOCKS * KEYS]` scores, a block at a time: the normalised weights, and
/// `[QUERIES]` logarithms of the sums.
#[kernel(launch_bounds(32))]
unsafe fn softmax_of_blocks(
    scores: Global<f32>,
    scale: f32,
    out: GlobalMut<f32>,
    lse: GlobalMut<f32>,
) {
    let lane = warp::lane_id();
    let at = |row: usize, block: usize, i: usize| {
        let query = lane as usize / 4 + 8 * row;
        query * BLOCKS * KEYS + block * KEYS + column(lane, i as u32) as usize
    };
    let mut softmax = OnlineSoftmax::new(scale);
    let mut weights = [(); BLOCKS].map(|()| Accumulator::<8>::zero());
    for block in 0..BLOCKS {
        // SAFETY: inside the scores.
        weights[block].for_each(|i, score| *score = unsafe { scores.get(at(i / 2 % 2, block, i)) });
        let corrections = softmax.update(&mut weights[block]);
        for earlier in &mut weights[..block] {
            earlier.scale_rows(corrections);
        }
    }
    let sums = softmax.finish(f32::NEG_INFINITY);
    for (block, weights) in weights.iter_mut().enumerate() {
        weights.for_each(|i, weight| {
            let row = i / 2 % 2;
            // SAFETY: inside the output, each element one thread's.
            unsafe { out.set(at(row, block, i), *weight * sums[row].inverse) };
        });
    }
    for (row, sum) in sums.iter().enumerate() {
        if lane.is_multiple_of(4) {
            // SAFETY: as above.
            unsafe { lse.set(lane as usize / 4 + 8 * row, sum.lse) };
        }
    }
}

/// Rows with masked keys, with a masked first block, without any key, and with large scores.
#[test]
fn softmax_in_blocks_is_that_of_all_keys() {
    let width = BLOCKS * KEYS;
    let mut scores = random(QUERIES * width, 7);
    scores[width..width + 20].fill(f32::NEG_INFINITY);
    scores[2 * width..3 * width].fill(f32::NEG_INFINITY);
    scores[3 * width..4 * width].iter_mut().for_each(|score| *score *= 6e4);
    let bytes: Vec<u8> = scores.iter().flat_map(|score| score.to_le_bytes()).collect();
    let mut memory = Memory::new();
    let from = memory.alloc("scores", Init::Bytes(&bytes));
    let [out, lse] = ["out", "lse"].map(|name| memory.alloc(name, Init::Poisoned(bytes.len())));
    let geometry = Geometry { grid: [1; 3], block: [32, 1, 1], shared_bytes: 0 };
    let scale = std::f32::consts::LOG2_E;
    let args = softmax_of_blocks::Args {
        scores: DevicePtr::new(from),
        scale,
        out: DevicePtr::new(out),
        lse: DevicePtr::new(lse),
    };
    args.launch(geometry).emulate(&mut memory, 1).unwrap();
    let read = |address, len: usize| -> Vec<f64> {
        let mut bytes = vec![0; 4 * len];
        memory.read(address, &mut bytes).unwrap();
        bytes.as_chunks::<4>().0.iter().map(|&word| f64::from(f32::from_le_bytes(word))).collect()
    };
    let (got, got_lse) = (read(out, QUERIES * width), read(lse, QUERIES));
    for (query, scores) in scores.chunks(width).enumerate() {
        let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weight = |&score: &f32| (f64::from(score) - f64::from(max)).exp();
        let total: f64 = if max.is_finite() { scores.iter().map(weight).sum() } else { 0.0 };
        for (key, score) in scores.iter().enumerate() {
            let want = if total > 0.0 { weight(score) / total } else { 0.0 };
            let got = got[query * width + key];
            assert!((got - want).abs() < 1e-4, "query {query}, key {key}: {got}, not {want}");
        }
        let want = f64::from(max) + total.ln();
        let is_close = (got_lse[query] - want).abs() < 1e-5 * (1.0 + want.abs());
        assert!(is_close || got_lse[query] == want, "lse {query}: {}, not {want}", got_lse[query]);
    }
}
