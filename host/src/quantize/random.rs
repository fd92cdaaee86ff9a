//! Checkpoints of random weights in the shapes of a configuration, to measure speed and memory
//! where the real ones are not.
//!
//! Matrices and biases are normal with standard deviation 0.02 (transformers' `initializer_range`),
//! norms are 1, rates of a decay -1; the same on every machine. Tensors are made of random runs of
//! one pool of values: nothing else is encoded, so that gigabytes take seconds.

use std::io::Write;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use super::choose::{self, Candidate, Facts};
use super::{Mix, QuantizeError, from_hf, put_mix};
use crate::model::{Config, Names};
use crate::plan::Dtype;
use crate::weights::gguf::{Metadata, TensorDescription, Value, Writer};
use crate::weights::{EncodeError, encode_rows, safetensors};

const STD: f32 = 0.02;
/// Values that all tensors are made of.
const POOL_ELEMS: usize = 1 << 18;
/// Elements that are drawn at once: whole blocks of every format.
const RUN_ELEMS: usize = 256;
/// Runs of one parallel task.
const TASK_RUNS: usize = 1 << 12;

/// The tensors of a model of `config`: of a GGUF file with the types of `mix`, or of a Hugging Face
/// checkpoint in f16.
pub fn random_tensors(config: &Config, mix: Option<Mix>) -> Vec<TensorDescription> {
    let names = match mix {
        Some(_) => Names::gguf(config.family),
        None => Names::hugging_face(config, |_| false),
    };
    let tensors = names.tensors(config);
    let dtypes = match mix {
        Some(mix) => {
            let candidates: Vec<Candidate> = tensors.iter().map(Candidate::from).collect();
            // Random values stand for what was quantised by an importance matrix, too.
            let facts = Facts::new(config, &Metadata::default(), true);
            choose::dtypes(&candidates, mix, &[], facts).expect("nothing is missing")
        }
        None => vec![Dtype::F16; tensors.len()],
    };
    let describe = |((name, shape), dtype)| TensorDescription { name, shape, dtype };
    tensors.into_iter().zip(dtypes).map(describe).collect()
}

/// Writes the [tensors](random_tensors) with random values to `out`: a GGUF file called `name` with
/// the types of `mix`, or a safetensors file.
///
/// # Errors
/// [`QuantizeError::NoKey`] for a model that GGUF cannot describe, [`QuantizeError::Write`] if `out` fails.
pub fn random_checkpoint(
    config: &Config,
    name: &str,
    mix: Option<Mix>,
    mut out: impl Write,
) -> Result<(), QuantizeError> {
    let tensors = random_tensors(config, mix);
    let mut pool = Pool::new();
    let Some(mix) = mix else {
        let infos = tensors.iter().map(|tensor| (&*tensor.name, "F16", &*tensor.shape));
        out.write_all(&safetensors::header(
            infos.zip(tensors.iter().map(TensorDescription::bytes)),
        ))?;
        for (seed, tensor) in tensors.iter().enumerate() {
            out.write_all(&pool.tensor(tensor, seed)?)?;
        }
        return Ok(out.flush()?);
    };
    let mut metadata = Metadata(from_hf::keys(config)?.into_iter().collect());
    put_mix(&mut metadata, mix);
    for (key, text) in [("general.name", name), ("tokenizer.ggml.model", "no_vocab")] {
        metadata.0.insert(key.to_owned(), Value::String(text.to_owned()));
    }
    let mut writer = Writer::new(out, &metadata, &tensors)?;
    for (seed, tensor) in tensors.iter().enumerate() {
        writer.tensor(&pool.tensor(tensor, seed)?)?;
    }
    Ok(writer.finish()?)
}

/// The values, and as they are stored in each type that was asked for.
struct Pool {
    values: Vec<f32>,
    encoded: Vec<(Dtype, Vec<u8>)>,
}

impl Pool {
    /// Normal numbers, by Box and Muller.
    fn new() -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(0);
        let mut normal = || {
            let radius = (-2.0 * (1.0 - random.random::<f32>()).ln()).sqrt();
            STD * radius * (std::f32::consts::TAU * random.random::<f32>()).cos()
        };
        Pool { values: (0..POOL_ELEMS).map(|_| normal()).collect(), encoded: Vec::new() }
    }

    /// The elements of a tensor, as its type stores them.
    fn tensor(&mut self, tensor: &TensorDescription, seed: usize) -> Result<Vec<u8>, EncodeError> {
        let TensorDescription { name, dtype, .. } = tensor;
        let is_norm = name.to_lowercase().contains("norm") && !name.ends_with("bias");
        // A norm of ones; the rate of a decay in GGUF is below 0.
        let constant = match name.ends_with(".ssm_a") {
            true => Some(-1.0),
            false => is_norm.then_some(1.0),
        };
        if let Some(value) = constant {
            let values = vec![value; tensor.shape.iter().product()];
            return encode_rows(name, &values, values.len(), None, *dtype);
        }
        let known = self.encoded.iter().position(|(encoded, _)| encoded == dtype);
        let index = known.unwrap_or(self.encoded.len());
        if known.is_none() {
            self.encoded
                .push((*dtype, encode_rows("random", &self.values, RUN_ELEMS, None, *dtype)?));
        }
        let pool = &self.encoded[index].1;
        let run_bytes = pool.len() / (POOL_ELEMS / RUN_ELEMS);
        let mut out = vec![0; tensor.bytes()];
        out.par_chunks_mut(TASK_RUNS * run_bytes).enumerate().for_each(|(task, out)| {
            let mut random = ChaCha8Rng::seed_from_u64(seed as u64);
            random.set_stream(task as u64);
            for run in out.chunks_mut(run_bytes) {
                let start = random.random_range(0..POOL_ELEMS / RUN_ELEMS) * run_bytes;
                run.copy_from_slice(&pool[start..][..run.len()]);
            }
        });
        Ok(out)
    }
}
