//! Thread and block indices, enumerated.

use conformance_kernels::registers::{NUM_VALUES, registers_u32};
use cuda_std::launch::Geometry;

use crate::{Buffer, Case, Want};

const GEOMETRY: Geometry = Geometry { grid: [3, 2, 4], block: [64, 1, 1], shared_bytes: 0 };

/// Every thread of a three-dimensional grid.
pub fn case() -> Case {
    let Geometry { grid: [x, y, z], block: [num_threads, ..], .. } = GEOMETRY;
    let mut wanted = Vec::new();
    for block_z in 0..z {
        for block_y in 0..y {
            for block_x in 0..x {
                for thread in 0..num_threads {
                    let values: [u32; NUM_VALUES as usize] =
                        [thread, num_threads, block_x, block_y, block_z, x, y];
                    wanted.extend(values);
                }
            }
        }
    }
    Case::new("registers", vec![Buffer::Out(Want::Words(wanted))], |p| {
        registers_u32::Args { out: p.at(0) }.launch(GEOMETRY)
    })
}
