//! `cargo xtask random-model`: a checkpoint with the shapes of a real model and random weights.
//!
//! For measuring speed and memory on a machine that cannot fetch the real weights. Matrices and
//! biases are normal with standard deviation 0.02 (transformers' `initializer_range`), norm weights
//! 1; the same bytes on every machine. A GGUF file holds blocks of the same deviation.

mod gguf;
mod shapes;

use crate::{process, random::SplitMix64};
use anyhow::{Context, Result, bail};
use half::f16;
use shapes::{MODELS, Shapes};
use std::{
    fmt::Write as _,
    fs::{self, File},
    os::unix::fs::FileExt,
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

const STD: f32 = 0.02;
const BLOCK_BYTES: usize = 8 << 20;

/// The models that [`run`] knows.
pub fn names() -> String {
    let gguf = gguf::MODELS.iter().map(|model| model.name);
    MODELS.iter().map(|shapes| shapes.name).chain(gguf).collect::<Vec<_>>().join(", ")
}

/// Writes the checkpoint called `name` to the directory `out`.
pub fn run(name: &str, out: &Path) -> Result<()> {
    let shapes = MODELS.iter().find(|shapes| shapes.name == name);
    let (file, (header, blocks)) = match (shapes, gguf::MODELS.iter().find(|m| m.name == name)) {
        (Some(shapes), _) => ("model.safetensors", parts(shapes)),
        (None, Some(model)) => ("model.gguf", gguf::parts(model)),
        (None, None) => bail!("no shapes for {name}\n  known: {}", names()),
    };
    fs::create_dir_all(out).with_context(|| format!("cannot create {}", out.display()))?;
    let partial = out.join(format!("{file}.partial"));
    let bytes = header.len() + blocks.iter().map(|block| block.bytes).sum::<usize>();
    eprintln!("{name}: {} MB", bytes / 1_000_000);
    if let Err(error) = write_file(&header, &blocks, &partial) {
        // The first error is reported; removing the partial file is best effort.
        let _ = fs::remove_file(&partial);
        return Err(error.context(format!("cannot write {}", partial.display())));
    }
    fs::rename(&partial, out.join(file))?;
    if let Some(shapes) = shapes {
        fs::write(out.join("config.json"), shapes.config)?;
    }
    Ok(())
}

/// A contiguous range of one tensor's elements.
struct Block {
    file_offset: u64,
    bytes: usize,
    fill: Fill,
}

/// What a block is filled with.
#[derive(Clone, Copy)]
enum Fill {
    /// Ones in f16.
    Ones,
    /// Normal numbers in f16.
    Normal,
    /// A format of GGUF.
    Gguf(gguf::Format),
}

/// The header of the safetensors file, and the blocks that come after it.
fn parts(shapes: &Shapes) -> (Vec<u8>, Vec<Block>) {
    let tensors = shapes.tensors();
    let header = header(&tensors);
    let mut end = 8 + header.len();
    let mut blocks = Vec::new();
    for (name, shape) in &tensors {
        let fill = if name.ends_with("norm.weight") { Fill::Ones } else { Fill::Normal };
        let tensor_end = end + 2 * shape.iter().product::<usize>();
        while end < tensor_end {
            let bytes = BLOCK_BYTES.min(tensor_end - end);
            blocks.push(Block { file_offset: end as u64, bytes, fill });
            end += bytes;
        }
    }
    let len = (header.len() as u64).to_le_bytes();
    ([&len, header.as_bytes()].concat(), blocks)
}

fn write_file(header: &[u8], blocks: &[Block], path: &Path) -> Result<()> {
    let file = File::create(path)?;
    file.write_all_at(header, 0)?;
    let next = AtomicUsize::new(0);
    let normals = normals();
    thread::scope(|scope| {
        let num_threads = thread::available_parallelism().map_or(1, |count| count.get());
        let threads: Vec<_> = (0..num_threads)
            .map(|_| scope.spawn(|| write_blocks(&file, blocks, &next, &normals)))
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no writer panics"))
    })?;
    Ok(())
}

/// The safetensors header, padded to a multiple of eight bytes.
fn header(tensors: &[(String, Vec<usize>)]) -> String {
    let mut json = String::from(r#"{"__metadata__":{"format":"pt"}"#);
    let mut start = 0;
    for (name, shape) in tensors {
        let end = start + 2 * shape.iter().product::<usize>();
        write!(
            json,
            r#","{name}":{{"dtype":"F16","shape":{shape:?},"data_offsets":[{start},{end}]}}"#
        )
        .expect("writing to a String does not fail");
        start = end;
    }
    json.push('}');
    let padding = json.len().next_multiple_of(8) - json.len();
    json + &" ".repeat(padding)
}

fn write_blocks(
    file: &File,
    blocks: &[Block],
    next: &AtomicUsize,
    normals: &[[u8; 2]],
) -> Result<()> {
    let mut buffer = vec![0; BLOCK_BYTES];
    while let Some(block) = blocks.get(next.fetch_add(1, Ordering::Relaxed)) {
        process::check_interrupt()?;
        let buffer = &mut buffer[..block.bytes];
        match block.fill {
            Fill::Ones => buffer.as_chunks_mut().0.fill(f16::ONE.to_le_bytes()),
            Fill::Normal => fill(buffer, block.file_offset, normals),
            Fill::Gguf(format) => {
                fill_bytes(buffer, &mut SplitMix64(block.file_offset));
                format.shape(buffer);
            }
        }
        file.write_all_at(buffer, block.file_offset)?;
    }
    Ok(())
}

/// Fills a block: each element is one of the 65,536 `normals`, four drawn from one random number.
fn fill(buffer: &mut [u8], seed: u64, normals: &[[u8; 2]]) {
    let mut random = SplitMix64(seed);
    for four in buffer.chunks_mut(8) {
        let mut bits = random.next();
        for element in four.as_chunks_mut().0 {
            *element = normals[bits as usize & 0xffff];
            bits >>= 16;
        }
    }
}

/// Fills a block with random bytes.
fn fill_bytes(buffer: &mut [u8], random: &mut SplitMix64) {
    for eight in buffer.chunks_mut(8) {
        eight.copy_from_slice(&random.next().to_le_bytes()[..eight.len()]);
    }
}

/// A sample of 65,536 values, normal with standard deviation [`STD`], as f16 (Box-Muller).
fn normals() -> Vec<[u8; 2]> {
    let mut random = SplitMix64(0);
    let mut uniform = || ((random.next() >> 40) + 1) as f32 / (1u64 << 24) as f32;
    (0..1 << 16)
        .map(|_| {
            let radius = (-2.0 * uniform().ln()).sqrt();
            let angle = std::f32::consts::TAU * uniform();
            f16::from_f32(STD * radius * angle.cos()).to_le_bytes()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_normal_with_the_right_spread() {
        let mut buffer = vec![0; 1 << 20];
        fill(&mut buffer, 7, &normals());
        let values: Vec<f64> =
            buffer.as_chunks().0.iter().map(|&bytes| f16::from_le_bytes(bytes).into()).collect();
        let len = values.len() as f64;
        let mean = values.iter().sum::<f64>() / len;
        let std = (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / len).sqrt();
        let within_one_std = values.iter().filter(|v| v.abs() < 0.02).count() as f64 / len;
        assert!(mean.abs() < 2e-4 && (std - 0.02).abs() < 2e-4, "mean {mean}, std {std}");
        assert!((within_one_std - 0.6827).abs() < 5e-3, "{within_one_std}");
    }

    #[test]
    fn the_header_is_padded_and_covers_the_data() {
        // More bytes than a width of `format!` can be.
        let large = Shapes::tensors(&MODELS[5]);
        assert!(header(&large).len() > 65_536);
        let header = header(&[("a".to_owned(), vec![2, 3]), ("b".to_owned(), vec![1])]);
        assert_eq!(header.len() % 8, 0);
        assert!(header.contains(r#""a":{"dtype":"F16","shape":[2, 3],"data_offsets":[0,12]}"#));
        assert!(header.contains(r#""b":{"dtype":"F16","shape":[1],"data_offsets":[12,14]}"#));
    }
}
