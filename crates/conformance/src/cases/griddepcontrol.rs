//! A launch without dependencies.

use conformance_kernels::griddepcontrol::{NUM_THREADS, griddepcontrol_u32};

use crate::inputs::blocks;
use crate::{Buffer, Case, Want};

/// Neither instruction hangs.
pub fn case() -> Case {
    const NUM_BLOCKS: u32 = 3;
    let x: Vec<u32> = (0..NUM_BLOCKS * NUM_THREADS).map(|i| 7 * i).collect();
    let wanted = x.iter().map(|x| x + 1).collect();
    let buffers = vec![Buffer::words(&x), Buffer::Out(Want::Words(wanted))];
    Case::new("griddepcontrol", buffers, |p| {
        griddepcontrol_u32::Args { x: p.at(0), out: p.at(1) }
            .launch(blocks(NUM_BLOCKS, NUM_THREADS))
    })
}
