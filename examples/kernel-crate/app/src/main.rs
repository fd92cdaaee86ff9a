//! `y = a * x + y` and the sum of `y`, on the first GPU.

mod gpu;

use std::error::Error;

use gpu::Gpu;
use my_kernels::{block_sum, saxpy};

/// The PTX that `build.rs` made of a kernel.
macro_rules! ptx {
    ($symbol:literal) => {
        include_str!(concat!(env!("OUT_DIR"), "/", $symbol, ".ptx"))
    };
}

const SAXPY: &str = ptx!("saxpy_f32");
const BLOCK_SUM: &str = ptx!("block_sum_f32");

const LEN: usize = 1 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let Some(gpu) = Gpu::open()? else {
        println!("no NVIDIA GPU here; `cargo test` runs the kernels on the emulator");
        return Ok(());
    };
    let x = gpu.upload(&vec![0.5; LEN])?;
    let y = gpu.upload(&vec![1.0; LEN])?;
    let sums = gpu.upload(&vec![0.0; block_sum::num_blocks(LEN)])?;
    if let Some(launch) = saxpy::launch(LEN, 2.0, gpu::pointer(&x), gpu::pointer(&y))? {
        // SAFETY: x and y hold LEN elements each.
        unsafe { gpu.launch(SAXPY, &launch) }?;
    }
    if let Some(launch) = block_sum::launch(LEN, gpu::pointer(&y), gpu::pointer(&sums))? {
        // SAFETY: y holds LEN elements, `sums` one for each block.
        unsafe { gpu.launch(BLOCK_SUM, &launch) }?;
    }
    let sum: f64 = gpu.download(&sums)?.into_iter().map(f64::from).sum();
    println!("sum of y: {sum}, expected {}", 2 * LEN);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_are_compiled_for_sm_80() {
        for (symbol, text) in [("saxpy_f32", SAXPY), ("block_sum_f32", BLOCK_SUM)] {
            assert!(text.contains(".target sm_80"), "{symbol}");
            assert!(text.contains(&format!(".entry {symbol}(")), "{symbol}");
            assert!(text.contains(".maxntid 256"), "{symbol}");
        }
        assert!(SAXPY.contains("fma.rn.f32"));
        assert!(BLOCK_SUM.contains("bar.sync") || BLOCK_SUM.contains("barrier.sync"));
    }
}
