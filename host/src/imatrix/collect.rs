//! Sums over the inputs of linear layers, while a model reads a text.

use super::{Entry, Imatrix};
use crate::exec::Activations;
use crate::plan::{ExpertLinear, Linear, Op, Plan, Weight, WeightSlice};
use crate::{Engine, EngineError, ExecError, Model};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Sums the squares of what each linear layer of a model reads. The output projection is left out, as llama.cpp does.
pub struct Collector {
    /// GGUF name of each tensor of the checkpoint.
    names: HashMap<String, String>,
    entries: BTreeMap<String, Entry>,
}

impl Collector {
    /// Nothing has been read yet.
    pub fn new(model: &Model) -> Self {
        let names = model.decoder().gguf_names().flat_map(|(sources, name)| {
            sources.into_iter().map(move |source| (source, name.clone()))
        });
        Collector { names: names.collect(), entries: BTreeMap::new() }
    }

    /// Runs `tokens` as a prompt, in one step, and adds the inputs of all positions.
    ///
    /// # Errors
    /// Errors of [`Engine::observe_prompt`]; [`ExecError::Unsupported`] where an input is not stored, because the layer
    /// is fused with what comes before it, or where a rank has some of its columns alone, and for one that is not finite.
    pub fn read(&mut self, engine: &mut Engine, tokens: &[u32]) -> Result<(), EngineError> {
        engine.observe_prompt(tokens, &mut |plan, index, activations| {
            let op = &plan.ops[index];
            if plan.op_layer(op).is_none() {
                return Ok(());
            }
            let (weight, addend) = match op {
                Op::Linear(linear) => {
                    (plan.weight(linear.weight), linear_entry(plan, linear, activations)?)
                }
                // What a router reads is stored.
                Op::Route(route) => match route.router_ops().last() {
                    Some(Op::Linear(router)) => {
                        (plan.weight(router.weight), linear_entry(plan, &router, activations)?)
                    }
                    _ => return Ok(()),
                },
                Op::ExpertLinear(layer) => {
                    let weight = plan.weight(layer.weight);
                    if !weight.parts.iter().all(|part| self.names.contains_key(&part.source)) {
                        let why = "gate and up of its experts are one tensor; take a GGUF file";
                        return Err(fault(weight, why));
                    }
                    (weight, expert_entry(plan, layer, activations)?)
                }
                _ => return Ok(()),
            };
            self.add(weight, &addend)
        })
    }

    /// Adds `addend` to each tensor that `weight` is made of: all have its columns.
    fn add(&mut self, weight: &Weight, addend: &Entry) -> Result<(), ExecError> {
        if weight.parts.iter().any(|part| matches!(part.slice, WeightSlice::Cols { .. })) {
            return Err(fault(weight, "its columns are divided between ranks"));
        }
        if addend.sums.iter().any(|sum| !sum.is_finite()) {
            return Err(fault(weight, "its input is not finite"));
        }
        let name = |source| self.names.get(source).unwrap_or(source);
        // Many parts are of one stack of experts.
        let names: BTreeSet<&String> = weight.parts.iter().map(|part| name(&part.source)).collect();
        for name in names {
            self.entries.entry(name.clone()).or_default().add(addend, 1);
        }
        Ok(())
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

fn fault(weight: &Weight, why: &str) -> ExecError {
    ExecError::Unsupported { op: weight.name.clone(), why: why.to_owned() }
}

/// What a linear layer reads in a step.
fn linear_entry(
    plan: &Plan,
    linear: &Linear,
    activations: &dyn Activations,
) -> Result<Entry, ExecError> {
    let weight = plan.weight(linear.weight);
    if let Linear { norm: Some(_), .. } | Linear { gate_before: Some(_), .. } = linear {
        return Err(fault(weight, "its input is not stored, but computed by a fused kernel"));
    }
    let mut entry = Entry { sums: vec![0.0; weight.cols], counts: vec![0] };
    for row in activations.rows(linear.x)?.chunks_exact(weight.cols) {
        entry.add_row(row, 0);
    }
    Ok(entry)
}

/// What each expert of a layer reads in a step: a token's row, or the row of the token that is for
/// this choice.
fn expert_entry(
    plan: &Plan,
    layer: &ExpertLinear,
    activations: &dyn Activations,
) -> Result<Entry, ExecError> {
    let ExpertLinear { x, experts, num_experts, .. } = *layer;
    let (columns, top_k) = (plan.weight(layer.weight).cols, experts.width);
    let mut entry = Entry { sums: vec![0.0; num_experts * columns], counts: vec![0; num_experts] };
    let (rows, chosen) = (activations.rows(x)?, activations.indices(experts)?);
    for (row, chosen) in rows.chunks_exact(x.width).zip(chosen.chunks_exact(top_k)) {
        // One row for all choices, or a row of each.
        let own = row.chunks_exact(columns).cycle();
        for (row, &expert) in own.zip(chosen) {
            entry.add_row(row, expert as usize);
        }
    }
    Ok(entry)
}
