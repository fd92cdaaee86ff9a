//! A pipeline of stages that TMA fills: one warp loads tiles by a tensor map, another adds them.

use cuda_std::bulk::CacheHint;
use cuda_std::prelude::*;
use cuda_std::tensor_map::{Element, L2Promotion, Swizzle, TensorMapSpec};
use simt::FaultKind;

use super::NO_FAULT;
use super::planted::{Run, assert_found, assert_right, geometry, is_deadlock, is_invalid, run};

/// A tile is 8 rows of 32 floats, of 128 bytes.
const ROWS: u32 = 8;
const COLUMNS: u32 = 32;
const TILE: u32 = ROWS * COLUMNS;
const TILE_BYTES: u32 = 4 * TILE;

const NUM_TILES: u32 = 6;
const NUM_STAGES: u32 = 2;

const CONSUMER_PARITY: u32 = 1;
const PRODUCER_PARITY: u32 = 2;
const NO_EXPECT: u32 = 3;
const TOO_MANY_BYTES: u32 = 4;
const TOO_FEW_BYTES: u32 = 5;
const NO_EMPTY_WAIT: u32 = 6;
const NEVER_RELEASED: u32 = 7;
const NEXT_TILE: u32 = 8;
const OTHER_SWIZZLE: u32 = 9;

/// The stages' buffers and barriers.
#[derive(Clone, Copy)]
struct Stages {
    tiles: Shared<f32>,
    full: Mbarrier,
    empty: Mbarrier,
}

impl Stages {
    /// Stage of tile `tile`: the buffer, its barriers, and the parity that the consumer waits for.
    fn of(self, tile: u32) -> (Shared<f32>, Mbarrier, Mbarrier, u32) {
        let stage = tile % NUM_STAGES;
        let (full, empty) = (self.full.offset(stage), self.empty.offset(stage));
        (self.tiles.offset(TILE * stage), full, empty, tile / NUM_STAGES % 2)
    }
}

unsafe fn load_tiles<const FAULT: u32>(map: TensorMap, stages: Stages) {
    for tile in 0..NUM_TILES {
        let (buffer, full, empty, parity) = stages.of(tile);
        match FAULT {
            NO_EMPTY_WAIT => (),
            PRODUCER_PARITY => empty.wait(parity),
            _ => empty.wait(parity ^ 1),
        }
        match FAULT {
            NO_EXPECT => full.arrive(),
            TOO_MANY_BYTES => full.arrive_expect_tx(TILE_BYTES + 16),
            TOO_FEW_BYTES => full.arrive_expect_tx(TILE_BYTES - 16),
            _ => full.arrive_expect_tx(TILE_BYTES),
        }
        let row = (ROWS * tile + u32::from(FAULT == NEXT_TILE)) as i32;
        // SAFETY: a box of eight rows, and a buffer that is free.
        unsafe { bulk::tensor_load(buffer, map, [0, row], full, CacheHint::EvictNormal) };
    }
}

unsafe fn sum_columns<const FAULT: u32>(stages: Stages) -> f32 {
    let lane = warp::lane_id();
    let mut sum = 0.0;
    for tile in 0..NUM_TILES {
        let (buffer, full, empty, parity) = stages.of(tile);
        full.wait(if FAULT == CONSUMER_PARITY { parity ^ 1 } else { parity });
        for row in 0..ROWS {
            // How the 128-byte swizzle permutes the chunks of such a row, or that of 64 bytes.
            let permuted = if FAULT == OTHER_SWIZZLE { row % 4 } else { row };
            let column = ((lane / 4) ^ permuted) * 4 + lane % 4;
            // SAFETY: an element of the tile.
            sum += unsafe { buffer.get(COLUMNS * row + column) };
        }
        if FAULT != NEVER_RELEASED || lane != 5 {
            empty.arrive();
        }
    }
    sum
}

/// Adds the columns of all tiles.
#[kernel(
    launch_bounds(64),
    target(sm_90a),
    instances(
        pipeline = <NO_FAULT>,
        pipeline_consumer_parity = <CONSUMER_PARITY>,
        pipeline_producer_parity = <PRODUCER_PARITY>,
        pipeline_without_expect = <NO_EXPECT>,
        pipeline_too_many_bytes = <TOO_MANY_BYTES>,
        pipeline_too_few_bytes = <TOO_FEW_BYTES>,
        pipeline_reused_too_early = <NO_EMPTY_WAIT>,
        pipeline_never_released = <NEVER_RELEASED>,
        pipeline_next_tile = <NEXT_TILE>,
        pipeline_other_swizzle = <OTHER_SWIZZLE>
    )
)]
unsafe fn sum_tiles<const FAULT: u32>(map: TensorMap, out: GlobalMut<f32>) {
    // SAFETY: a tile and two barriers for each stage, 32 outputs.
    unsafe {
        let stages = Stages {
            tiles: dynamic_shared_mem(),
            full: Mbarrier::new(shared_array![u64; NUM_STAGES as usize]),
            empty: Mbarrier::new(shared_array![u64; NUM_STAGES as usize]),
        };
        if thread::thread_idx_x() == 0 {
            for stage in 0..NUM_STAGES {
                stages.full.offset(stage).init(1);
                stages.empty.offset(stage).init(32);
            }
            fence::mbarrier_init();
        }
        thread::sync_threads();
        if warp::warp_idx() == 1 {
            out.set(warp::lane_id() as usize, sum_columns::<FAULT>(stages));
        } else if warp::lane_id() == 0 {
            load_tiles::<FAULT>(map, stages);
        }
    }
}

fn sums(instance: sum_tiles::Instance) -> Vec<Run> {
    run(move |device| {
        let (rows, row_bytes) = (u64::from(ROWS * NUM_TILES), u64::from(4 * COLUMNS));
        let spec = TensorMapSpec {
            address: device.numbers("x", (NUM_TILES * TILE) as usize).0,
            element: Element::F32,
            dims: vec![COLUMNS.into(), rows],
            strides_bytes: vec![row_bytes],
            box_dims: vec![COLUMNS, ROWS],
            swizzle: Swizzle::B128,
            l2_promotion: L2Promotion::default(),
        };
        let map = device.map(&spec);
        sum_tiles::Args { map, out: device.out(32) }.launch(instance, geometry(1, 64))
    })
}

/// The sum of column `column`.
fn want(column: usize) -> f32 {
    (0..ROWS * NUM_TILES).map(|row| (COLUMNS * row) as f32 + column as f32).sum()
}

/// No check fails, and the numbers are wrong under every seed.
#[track_caller]
fn assert_wrong_numbers(runs: &[Run]) {
    for (seed, run) in runs.iter().enumerate() {
        let got = run.as_ref().unwrap_or_else(|fault| panic!("seed {seed}: {fault}"));
        assert!((0..32).any(|i| got[i] != want(i)), "seed {seed}");
    }
}

fn is_too_early(kind: &FaultKind) -> bool {
    matches!(kind, FaultKind::NotWaitedFor { .. } | FaultKind::Race { .. })
}

#[test]
fn a_wrong_parity() {
    use sum_tiles::Instance;
    assert_right(&sums(Instance::pipeline), want);
    let consumer = sums(Instance::pipeline_consumer_parity);
    let lines = ["buffer.get(", "bulk::tensor_load(", ".wait("];
    // The stage is read before or while it is filled; or one phase too late.
    assert_found(&consumer, "pipeline_consumer_parity", &lines, |kind| {
        is_too_early(kind) || is_deadlock(kind) || matches!(kind, FaultKind::Uninitialised(_))
    });
    let producer = sums(Instance::pipeline_producer_parity);
    let waits = ["empty.wait(parity)", "full.wait("];
    let report = assert_found(&producer, "pipeline_producer_parity", &waits, is_deadlock);
    assert!(report.contains("it is in phase 0 (parity 0), with 32 of 32 arrivals"), "{report}");
}

#[test]
fn wrong_bytes() {
    use sum_tiles::Instance;
    let without = sums(Instance::pipeline_without_expect);
    let lines = ["buffer.get(", "bulk::tensor_load(", "full."];
    assert_found(&without, "pipeline_without_expect", &lines, |kind| {
        is_too_early(kind) || is_invalid("whose bytes it does not expect")(kind)
    });
    for (instance, symbol, missing) in [
        (Instance::pipeline_too_many_bytes, "pipeline_too_many_bytes", "16 bytes missing"),
        (Instance::pipeline_too_few_bytes, "pipeline_too_few_bytes", "-16 bytes missing"),
    ] {
        let report = assert_found(&sums(instance), symbol, &[".wait("], is_deadlock);
        assert!(report.contains(&format!("with 0 of 1 arrivals and {missing}")), "{report}");
    }
}

#[test]
fn a_stage_that_is_reused_too_early_or_never() {
    use sum_tiles::Instance;
    let early = sums(Instance::pipeline_reused_too_early);
    let lines = ["buffer.get(", "bulk::tensor_load(", "full."];
    // Or a second tile is expected in the phase of the first.
    assert_found(&early, "pipeline_reused_too_early", &lines, |kind| {
        is_too_early(kind) || is_invalid("1 arrivals at the mbarrier at `shared array ")(kind)
    });
    let never = sums(Instance::pipeline_never_released);
    let report = assert_found(&never, "pipeline_never_released", &[".wait("], is_deadlock);
    let missing = "it is in phase 0 (parity 0), with 1 of 32 arrivals and 0 bytes missing";
    assert!(report.contains(missing), "{report}");
}

#[test]
fn another_tile_or_another_swizzle_gives_wrong_numbers() {
    use sum_tiles::Instance;
    // The box of the last tile exceeds the tensor, and TMA fills it with zeros.
    assert_wrong_numbers(&sums(Instance::pipeline_next_tile));
    assert_wrong_numbers(&sums(Instance::pipeline_other_swizzle));
}

/// Adds the columns of all tiles by plain loads, each one row further down if `NEXT`.
#[kernel(launch_bounds(32), instances(tiles_by_loads = <false>, next_tile_by_loads = <true>))]
unsafe fn sum_tiles_by_loads<const NEXT: bool>(x: Global<f32>, out: GlobalMut<f32>) {
    let lane = warp::lane_id();
    let mut sum = 0.0;
    for row in 0..ROWS * NUM_TILES {
        let row = row + u32::from(NEXT);
        // SAFETY: an element of the tensor.
        sum += unsafe { x.get((COLUMNS * row + lane) as usize) };
    }
    // SAFETY: 32 outputs.
    unsafe { out.set(lane as usize, sum) };
}

#[test]
fn another_tile_is_out_of_bounds_of_a_pointer() {
    use sum_tiles_by_loads::Instance;
    let sums = |instance| {
        run(move |device| {
            let (x, out) = (device.numbers("x", (NUM_TILES * TILE) as usize), device.out(32));
            sum_tiles_by_loads::Args { x, out }.launch(instance, geometry(1, 32))
        })
    };
    assert_right(&sums(Instance::tiles_by_loads), want);
    let next = sums(Instance::next_tile_by_loads);
    let is_out_of_bounds = |kind: &FaultKind| matches!(kind, FaultKind::OutOfBounds(_));
    let report = assert_found(&next, "next_tile_by_loads", &["x.get("], is_out_of_bounds);
    assert!(report.contains("(of 6144)"), "{report}");
}
