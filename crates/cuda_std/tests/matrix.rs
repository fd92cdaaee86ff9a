//! `ldmatrix`, `stmatrix` and `movmatrix` on the emulator, element by element, against the ISA's figures.

use cuda_std::launch::{DevicePtr, Geometry, Launch};
use cuda_std::prelude::*;
use cuda_std::{matrix, warp::WARP_SIZE};
use half::f16;
use simt::{Fault, FaultKind, Init, Memory};

/// Rows of four matrices, in a different order from their lanes, with gaps of 16 bytes.
const ROWS: u32 = 32;

/// Elements from row to row.
const STRIDE: u32 = 16;

const SHARED_BYTES: u32 = 2 * ROWS * STRIDE;

/// Address of the row of lane `lane`, in elements.
fn row_of(lane: u32) -> u32 {
    (lane * 5 + 3) % ROWS * STRIDE
}

/// Runs a launch of one warp with several seeds; returns the words of the output.
fn run(
    words: usize,
    launch: impl Fn(Geometry, DevicePtr<u32>) -> Launch,
) -> Result<Vec<u32>, Fault> {
    let geometry = Geometry { grid: [1; 3], block: [WARP_SIZE, 1, 1], shared_bytes: SHARED_BYTES };
    let run = |seed| {
        let mut memory = Memory::new();
        let out = memory.alloc("out", Init::Poisoned(4 * words));
        launch(geometry, DevicePtr::new(out)).emulate(&mut memory, seed)?;
        let mut bytes = vec![0; 4 * words];
        memory.read(out, &mut bytes).unwrap();
        Ok(bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect())
    };
    let first = run(0)?;
    (1..20).try_for_each(|seed| run(seed).map(|other| assert_eq!(other, first, "seed {seed}")))?;
    Ok(first)
}

/// Element `column` of the row of lane `lane`: all are different.
fn element(lane: u32, column: u32) -> u32 {
    0x8000 | lane << 8 | column
}

/// Loads `COUNT` matrices and writes the words of each lane. Lanes whose addresses are ignored pass
/// one that is out of bounds and misaligned.
#[kernel(
    launch_bounds(WARP_SIZE),
    instances(
        load_1 = <1, false>, load_2 = <2, false>, load_4 = <4, false>,
        load_1_trans = <1, true>, load_2_trans = <2, true>, load_4_trans = <4, true>
    )
)]
unsafe fn load<const COUNT: usize, const TRANS: bool>(out: GlobalMut<u32>) {
    let lane_id = warp::lane_id();
    // SAFETY: 32 rows of eight elements, 32 bytes apart.
    unsafe {
        let smem = dynamic_shared_mem::<u32>();
        if lane_id < 8 * COUNT as u32 {
            for pair in 0..4 {
                let [low, high] = [2 * pair, 2 * pair + 1].map(|column| element(lane_id, column));
                smem.set(row_of(lane_id) / 2 + pair, low | high << 16);
            }
        }
        warp::sync_warp();
        let row = if lane_id < 8 * COUNT as u32 {
            dynamic_shared_mem::<f16>().offset(row_of(lane_id))
        } else {
            Shared::from_address(3)
        };
        let [a, b, c, d] = match (COUNT, TRANS) {
            (1, false) => [matrix::load_x1(row)[0], 0, 0, 0],
            (1, true) => [matrix::load_x1_trans(row)[0], 0, 0, 0],
            (2, trans) => {
                let load = if trans { matrix::load_x2_trans } else { matrix::load_x2 };
                let [a, b] = load(row);
                [a, b, 0, 0]
            }
            (_, false) => matrix::load_x4(row),
            (_, true) => matrix::load_x4_trans(row),
        };
        for (at, word) in [a, b, c, d].into_iter().enumerate() {
            out.set(4 * lane_id as usize + at, word);
        }
    }
}

#[test]
fn a_lane_gets_its_elements() {
    for &instance in load::Instance::ALL {
        let got =
            run(4 * 32, |geometry, out| load::Args { out }.launch(instance, geometry)).unwrap();
        for thread in 0..32 {
            for matrix in 0..instance.count() as u32 {
                // Row `thread / 4` is distributed over four threads, from left to right.
                let elements = [0, 1].map(|i| {
                    let (row, column) = (thread / 4, thread % 4 * 2 + i);
                    let (row, column) =
                        if instance.trans() { (column, row) } else { (row, column) };
                    element(8 * matrix + row, column)
                });
                let want = elements[0] | elements[1] << 16;
                let got = got[(4 * thread + matrix) as usize];
                assert_eq!(got, want, "{instance:?}: thread {thread}, matrix {matrix}");
            }
        }
    }
}

/// Stores `COUNT` matrices of fragments, and writes their rows.
#[kernel(
    launch_bounds(WARP_SIZE),
    instances(
        store_1 = <1, false>, store_2 = <2, false>, store_4 = <4, false>,
        store_1_trans = <1, true>, store_2_trans = <2, true>, store_4_trans = <4, true>
    )
)]
unsafe fn store<const COUNT: usize, const TRANS: bool>(out: GlobalMut<u32>) {
    let lane_id = warp::lane_id();
    let [a, b, c, d] = [0, 1, 2, 3].map(|matrix| {
        let [low, high] = [0, 1].map(|half| element(lane_id, 2 * matrix + half));
        low | high << 16
    });
    // SAFETY: 32 rows of eight elements, 32 bytes apart.
    unsafe {
        let smem = dynamic_shared_mem::<u32>();
        let row = if lane_id < 8 * COUNT as u32 {
            dynamic_shared_mem::<f16>().offset(row_of(lane_id))
        } else {
            Shared::from_address(3)
        };
        match (COUNT, TRANS) {
            (1, false) => matrix::store_x1(row, [a]),
            (1, true) => matrix::store_x1_trans(row, [a]),
            (2, false) => matrix::store_x2(row, [a, b]),
            (2, true) => matrix::store_x2_trans(row, [a, b]),
            (_, false) => matrix::store_x4(row, [a, b, c, d]),
            (_, true) => matrix::store_x4_trans(row, [a, b, c, d]),
        }
        warp::sync_warp();
        if lane_id < 8 * COUNT as u32 {
            // The row of another lane.
            let lane = 8 * COUNT as u32 - 1 - lane_id;
            for pair in 0..4 {
                let word = smem.get(row_of(lane) / 2 + pair);
                out.set((4 * lane + pair) as usize, word);
            }
        } else {
            (0..4).for_each(|pair| out.set((4 * lane_id + pair) as usize, 0));
        }
    }
}

#[test]
fn a_row_gets_its_elements() {
    for &instance in store::Instance::ALL {
        let got =
            run(4 * 32, |geometry, out| store::Args { out }.launch(instance, geometry)).unwrap();
        for lane in 0..8 * instance.count() as u32 {
            for column in 0..8 {
                let row = lane % 8;
                let (row, pair) = if instance.trans() { (column, row) } else { (row, column) };
                let thread = 4 * row + pair / 2;
                let want = element(thread, 2 * (lane / 8) + pair % 2);
                let got = got[(4 * lane + column / 2) as usize] >> (16 * (column % 2)) & 0xffff;
                assert_eq!(got, want, "{instance:?}: row of lane {lane}, column {column}");
            }
        }
    }
}

/// Transposes a matrix, of which a lane holds elements of row `lane_id / 4`.
#[kernel(launch_bounds(WARP_SIZE))]
unsafe fn transpose(out: GlobalMut<u32>) {
    let lane_id = warp::lane_id();
    let [low, high] = [0, 1].map(|half| element(lane_id / 4, 2 * (lane_id % 4) + half));
    let word = matrix::transpose(low | high << 16);
    // SAFETY: a word for each lane.
    unsafe { out.set(lane_id as usize, word) };
}

#[test]
fn a_transposed_row_is_a_column() {
    let got = run(32, |geometry, out| transpose::Args { out }.launch(geometry)).unwrap();
    for lane in 0..32 {
        let [low, high] = [0, 1].map(|half| element(2 * (lane % 4) + half, lane / 4));
        assert_eq!(got[lane as usize], low | high << 16, "lane {lane}");
    }
}

/// Misuses of a load of one matrix.
#[kernel(
    launch_bounds(WARP_SIZE),
    instances(
        right = <0>, misaligned = <1>, not_written = <2>, not_ordered = <3>, half_a_warp = <4>
    )
)]
unsafe fn misuse<const WHAT: u32>(out: GlobalMut<u32>) {
    let lane_id = warp::lane_id();
    // SAFETY: 8 rows of eight elements, 16 bytes apart, and 16 bytes more.
    unsafe {
        let smem = dynamic_shared_mem::<u32>();
        if WHAT != 2 || lane_id != 30 {
            smem.set(lane_id, lane_id);
        }
        smem.set(32 + lane_id, 0);
        if WHAT != 3 {
            warp::sync_warp();
        }
        let row = smem.offset(4 * (lane_id % 8) + if WHAT == 1 { 2 } else { 0 });
        let mut word = 0;
        if WHAT != 4 || lane_id < 16 {
            [word] = matrix::load_x1(row);
        }
        out.set(lane_id as usize, word);
    }
}

#[test]
fn misuses_are_found_where_the_kernel_is() {
    use misuse::Instance;
    let run = |instance| run(32, |geometry, out| misuse::Args { out }.launch(instance, geometry));
    assert_eq!(run(Instance::right).unwrap(), (0..32).collect::<Vec<_>>());
    let line = |fault: &Fault| fault.by.as_ref().unwrap().location.clone();
    for instance in [Instance::misaligned, Instance::not_written, Instance::not_ordered] {
        let fault = run(instance).unwrap_err();
        let found = match (instance, &fault.kind) {
            (Instance::misaligned, FaultKind::Misaligned { align: 16, .. }) => true,
            (Instance::not_written, FaultKind::Uninitialised(access)) => access.bytes == 16,
            (Instance::not_ordered, FaultKind::Race { .. } | FaultKind::Uninitialised(_)) => true,
            _ => false,
        };
        assert!(found, "{instance:?}: {fault}");
        assert!(line(&fault).contains("tests/matrix.rs:"), "{instance:?}: {fault}");
    }
    let fault = run(Instance::half_a_warp).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::Deadlock(_)), "{fault}");
    let report = fault.to_string();
    assert!(
        report.contains("ldmatrix.sync.aligned.m8n8.x1.shared.b16 for lanes 16 (ended), 17"),
        "{report}"
    );
}
