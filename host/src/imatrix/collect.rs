//! Sums over the inputs of linear layers, while a model reads a text.

use super::{Entry, Imatrix};
use crate::plan::{Linear, Op, WeightSlice};
use crate::{Engine, EngineError, ExecError, Model};
use std::collections::{BTreeMap, HashMap};

/// Sums the squares of what each linear layer of a model reads. The output projection is left out, as llama.cpp does.
pub struct Collector {
    /// GGUF name of each tensor of the checkpoint.
    names: HashMap<String, String>,
    entries: BTreeMap<String, Entry>,
}

impl Collector {
    /// Nothing has been read yet.
    pub fn new(model: &Model) -> Self {
        Collector { names: model.decoder().gguf_names().collect(), entries: BTreeMap::new() }
    }

    /// Runs `tokens` as a prompt, in one step, and adds the inputs of all positions.
    ///
    /// # Errors
    /// Errors of [`Engine::observe_prompt`]; [`ExecError::Unsupported`] where an input is not stored, because the layer
    /// is fused with what comes before it, or where a rank has some of its columns alone, and for one that is not finite.
    pub fn read(&mut self, engine: &mut Engine, tokens: &[u32]) -> Result<(), EngineError> {
        engine.observe_prompt(tokens, &mut |plan, index, activations| {
            let op = &plan.ops[index];
            if let Op::ExpertLinear(_) = op {
                let why = "the inputs of single experts are not collected yet".to_owned();
                return Err(ExecError::Unsupported { op: op.name().to_owned(), why });
            }
            let (Op::Linear(linear), Some(_)) = (op, plan.op_layer(op)) else { return Ok(()) };
            let weight = plan.weight(linear.weight);
            let fault =
                |why: &str| ExecError::Unsupported { op: weight.name.clone(), why: why.to_owned() };
            if let Linear { norm: Some(_), .. } | Linear { gate_before: Some(_), .. } = linear {
                return Err(fault("its input is not stored, but computed by a fused kernel"));
            }
            let is_divided = |slice| matches!(slice, WeightSlice::Cols { .. });
            if weight.parts.iter().any(|part| is_divided(part.slice)) {
                return Err(fault("its columns are divided between ranks"));
            }
            let (squares, num_rows) = sum_squares(&activations.rows(linear.x)?, weight.cols);
            if squares.iter().any(|sum| !sum.is_finite()) {
                return Err(fault("its input is not finite"));
            }
            let addend = Entry { sums: squares, counts: vec![num_rows] };
            for part in &weight.parts {
                let name = self.names.get(&part.source).unwrap_or(&part.source);
                // All parts have the columns of the weight.
                self.entries.entry(name.clone()).or_default().add(&addend, 1);
            }
            Ok(())
        })
    }

    /// What was summed, in chunks of `chunk_size` tokens of the text called `dataset`.
    pub fn finish(self, dataset: String, chunk_size: usize) -> Imatrix {
        Imatrix {
            entries: self.entries,
            datasets: vec![dataset],
            chunk_size: Some(chunk_size),
            num_chunks: None,
        }
    }
}

/// The sum of the squares of each column of `rows`, `[num_rows, columns]`, and the number of rows.
fn sum_squares(rows: &[f32], columns: usize) -> (Vec<f64>, u64) {
    let mut sums = vec![0.0; columns];
    let mut num_rows = 0;
    for row in rows.chunks_exact(columns) {
        for (sum, &x) in sums.iter_mut().zip(row) {
            *sum += f64::from(x) * f64::from(x);
        }
        num_rows += 1;
    }
    (sums, num_rows)
}
