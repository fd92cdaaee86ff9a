//! Thread and block indices, enumerated.

use conformance_kernels::registers::{MAX_THREADS, NUM_VALUES, registers_u32};
use cuda_std::launch::Geometry;

use crate::{Buffer, Case, Want};

/// Every thread of three-dimensional blocks and grids, and of three warpgroups in a line.
pub fn cases() -> [Case; 2] {
    let case = |name, grid, block| {
        let geometry = Geometry { grid, block, shared_bytes: 0 };
        let mut wanted = Vec::new();
        for block_idx in places(grid) {
            wanted.extend(places(block).flat_map(|thread| values(geometry, block_idx, thread)));
        }
        Case::new(name, vec![Buffer::Out(Want::Words(wanted))], move |p| {
            registers_u32::Args { out: p.at(0) }.launch(geometry)
        })
    };
    [
        case("registers", [3, 2, 4], [64, 2, 3]),
        case("registers_line", [2, 1, 1], [MAX_THREADS, 1, 1]),
    ]
}

/// All places of a grid or block, x first.
fn places([x, y, z]: [u32; 3]) -> impl Iterator<Item = [u32; 3]> {
    (0..x * y * z).map(move |i| [i % x, i / x % y, i / x / y])
}

/// The words of a thread.
fn values(geometry: Geometry, block: [u32; 3], thread: [u32; 3]) -> [u32; NUM_VALUES as usize] {
    let ([i, ..], [block_x, ..]) = (thread, geometry.block);
    let mut values = [0; NUM_VALUES as usize];
    values[..12].copy_from_slice(&[thread, geometry.block, block, geometry.grid].concat());
    values[12..].copy_from_slice(&[block[0] * block_x + i, i % 32, i / 32, i / 128]);
    values
}
