//! Configurations of model families, and the one decoder that turns a configuration into a plan.
//!
//! A family is a [`Config`] (read from config.json or from GGUF metadata, with the defaults of
//! transformers) and a table of tensor names. `docs/add-a-model.md` says how to add one.

mod config;
mod decoder;
mod error;
mod names;
mod pooler;
mod rope;
mod shares;

pub use config::{
    Config, ConfigError, DeltaNet, Encoder, ExpertScores, Experts, Family, KvSource, LayerConfig,
    LearnedPositions, NormPlacement, PerLayerInputs, QkNorm,
};
pub use error::ModelError;
use names::ExpertForm;
pub(crate) use names::Names;
pub use pooler::{Pooler, Pooling};
pub(crate) use rope::yarn_attention_factor;
pub use rope::{QueryScaling, Rope, RopeScaling};

use crate::plan::{
    Bounds, CacheSize, Constant, Dtype, Numerics, Plan, PlanOutput, Precision, Rank, Weight,
    WeightLayout, WeightPart,
};
use crate::weights::{Checkpoint, Origin, WeightsError};
use shares::Shares;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// A decoder on disk, ready to be planned: configuration and weights.
#[derive(Debug)]
pub struct Decoder {
    config: Config,
    names: &'static Names,
    checkpoint: Checkpoint,
    pooler: Pooler,
    /// Learned positions of each type of token, of an encoder that has them.
    positions: Option<Constant>,
    /// The last tables that were made: the plans of one engine share them.
    rope_tables: Mutex<Option<RopeTables>>,
}

impl Decoder {
    /// Opens a Hugging Face directory or a `.gguf` file, and checks that every weight of the model
    /// is there and has the right shape. Weights are read when an executor loads them.
    ///
    /// # Errors
    /// [`ModelError::Weights`] for a damaged or incomplete checkpoint, [`ModelError::Config`] for a
    /// configuration that is no model's or not supported.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ModelError> {
        let mut checkpoint = Checkpoint::open(path)?;
        let at_path = |source| ModelError::config(checkpoint.path(), source);
        let (config, names) = match checkpoint.origin() {
            Origin::HuggingFace { config: json, .. } => {
                let mut config = Config::from_hf(json).map_err(at_path)?;
                let has = |name: &str| checkpoint.tensor(name).is_some();
                let names = Names::hugging_face(&config, has);
                config.tie_word_embeddings &= !has_own_head(&checkpoint, names);
                (config, names)
            }
            Origin::Gguf { metadata } => {
                let config = Config::from_gguf(metadata, &checkpoint).map_err(at_path)?;
                let has = |name: &str| checkpoint.tensor(name).is_some();
                let names = Names::gguf_of(config.family, has);
                (config, names)
            }
        };
        let pooler = Pooler::open(&config, names, &mut checkpoint)?;
        let positions = positions(&config, names, &checkpoint)?;
        let rope_tables = Mutex::new(None);
        let decoder = Decoder { config, names, checkpoint, pooler, positions, rope_tables };
        let bounds = Bounds::one_sequence(1);
        for weight in &decoder.plan(&Numerics::default(), bounds, 1)?.weights {
            decoder.checkpoint.check(weight)?;
        }
        Ok(decoder)
    }

    /// The model's sizes and switches.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What it makes of a text.
    pub fn pooler(&self) -> &Pooler {
        &self.pooler
    }

    /// Each tensor's name in GGUF, after its names in the checkpoint: one, or one of each expert.
    /// Experts whose gate and up are one tensor in the checkpoint are left out.
    pub(crate) fn gguf_names(&self) -> impl Iterator<Item = (Vec<String>, String)> {
        let is_each = matches!(self.names.experts.form, ExpertForm::Each(_));
        let is_left_out = |name: &str| self.has_joined_experts() && is_of_experts(name);
        let of = |names: &Names| {
            let tensors = names.tensors(&self.config).into_iter();
            tensors.filter(|(name, _)| !is_left_out(name)).collect::<Vec<_>>()
        };
        let mut sources = of(self.names).into_iter().map(|(name, _)| name);
        let gguf = of(Names::gguf(self.config.family)).into_iter();
        gguf.map(move |(name, shape)| {
            let count = match shape[..] {
                [num_experts, _, _] if is_each => num_experts,
                _ => 1,
            };
            (sources.by_ref().take(count).collect(), name)
        })
    }

    /// The tensors of GGUF, with their shapes, that [`Decoder::gguf_names`] leaves out.
    pub(crate) fn joined_gguf_names(&self) -> Vec<(String, Vec<usize>)> {
        let mut tensors = Names::gguf(self.config.family).tensors(&self.config);
        tensors.retain(|(name, _)| self.has_joined_experts() && is_of_experts(name));
        tensors
    }

    /// What is added to the weights of norms.
    pub(crate) fn norm_offset(&self) -> f32 {
        self.names.norm_offset
    }

    /// Whether gate and up of all experts are one tensor of the checkpoint.
    pub(crate) fn has_joined_experts(&self) -> bool {
        let form = self.names.experts.form;
        self.config.experts.is_some() && !matches!(form, ExpertForm::Each(_) | ExpertForm::Stacks)
    }

    /// The weights.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// The model as operations, computed as `numerics` says, for steps of at most `bounds`, over a
    /// cache of this size. Weights and constants are the same for all plans of one
    /// precision and `bounds.max_kv_len`.
    ///
    /// # Errors
    /// [`ModelError::Context`] for no position, or more than the model takes;
    /// [`ModelError::Unaligned`] for a model whose rows cannot be aligned in 16 bits;
    /// [`ModelError::Plan`] for numerics whose parts do not fit each other.
    pub fn plan(
        &self,
        numerics: &Numerics,
        bounds: Bounds,
        cache: impl Into<CacheSize>,
    ) -> Result<Plan, ModelError> {
        self.plan_of(Rank::ALONE, PlanOutput::Logits, numerics, bounds, cache)
    }

    /// As [`Decoder::plan`], for one of several devices and with another output.
    ///
    /// # Errors
    /// As [`Decoder::plan`]; [`ModelError::NotShared`] for what cannot be divided among so many.
    pub fn plan_of(
        &self,
        rank: Rank,
        output: PlanOutput,
        numerics: &Numerics,
        bounds: Bounds,
        cache: impl Into<CacheSize>,
    ) -> Result<Plan, ModelError> {
        self.plan_with(Decoder::rope_tables, rank, numerics, output, bounds, cache)
    }

    /// As [`Decoder::plan`], without the data of its tables, for what reads sizes alone: the
    /// context may be too long for the memory.
    pub(crate) fn outline(
        &self,
        rank: Rank,
        numerics: &Numerics,
        bounds: Bounds,
        cache: impl Into<CacheSize>,
    ) -> Result<Plan, ModelError> {
        let empty = |decoder: &Decoder, rows| RopeTables::new(&decoder.config, rows, |_| [].into());
        self.plan_with(empty, rank, numerics, PlanOutput::Logits, bounds, cache)
    }

    fn plan_with(
        &self,
        rope_tables: impl FnOnce(&Decoder, usize) -> RopeTables,
        rank: Rank,
        numerics: &Numerics,
        output: PlanOutput,
        bounds: Bounds,
        cache: impl Into<CacheSize>,
    ) -> Result<Plan, ModelError> {
        self.check(numerics, bounds)?;
        let shares = Shares::new(self, numerics, rank)?;
        let tables = rope_tables(self, bounds.max_kv_len);
        let cache = cache.into();
        Ok(decoder::plan(self, &shares, tables, numerics, output, bounds, cache)?)
    }

    /// Whether there can be such a plan of this model.
    fn check(&self, numerics: &Numerics, bounds: Bounds) -> Result<(), ModelError> {
        numerics.check()?;
        self.check_context(bounds.max_kv_len)?;
        self.check_alignment(numerics.precision)
    }

    fn check_context(&self, asked: usize) -> Result<(), ModelError> {
        let max = self.config.max_position_embeddings;
        if (1..=max).contains(&asked) { Ok(()) } else { Err(ModelError::Context { asked, max }) }
    }

    /// Whether the rows of every operand, and every head in it, start at multiples of 16 bytes.
    fn check_alignment(&self, precision: Precision) -> Result<(), ModelError> {
        let multiple = precision.operand().row_multiple();
        let Config { hidden_size, experts, delta, .. } = self.config;
        let inputs = self.config.per_layer_inputs.map_or(0, |inputs| inputs.width);
        let of_layers = (0..self.config.num_layers()).flat_map(|layer| {
            let head_dim = self.config.heads(layer).head_dim;
            let intermediate_size = self.config.intermediate_size_of(layer);
            [("intermediate size", intermediate_size), ("head size", head_dim)]
        });
        let of_experts = experts.into_iter().flat_map(|experts| {
            [Some(experts.intermediate_size), experts.shared_intermediate_size]
        });
        let of_experts = of_experts.flatten().map(|size| ("intermediate size of experts", size));
        let sizes = [
            ("hidden size", hidden_size),
            ("size of the inputs of a layer", inputs),
            ("size of keys of a layer of Gated DeltaNet", delta.map_or(0, |delta| delta.k_width())),
            (
                "size of values of a layer of Gated DeltaNet",
                delta.map_or(0, |delta| delta.v_width()),
            ),
            (
                "number of gates of a layer of Gated DeltaNet",
                delta.map_or(0, |delta| 2 * delta.num_v_heads),
            ),
        ];
        match sizes
            .into_iter()
            .chain(of_layers)
            .chain(of_experts)
            .find(|(_, size)| !size.is_multiple_of(multiple))
        {
            Some((what, size)) => Err(ModelError::Unaligned { what, size, precision, multiple }),
            None => Ok(()),
        }
    }

    fn rope_tables(&self, max_kv_len: usize) -> RopeTables {
        let mut last = self.rope_tables.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        match &*last {
            Some(tables) if tables.max_kv_len == max_kv_len => tables.clone(),
            _ => {
                let data = |(rope, scaling): RopeOf| rope.table(max_kv_len, scaling).into();
                last.insert(RopeTables::new(&self.config, max_kv_len, data)).clone()
            }
        }
    }
}

/// A rotary embedding, and what Q is scaled by as well.
type RopeOf<'a> = (&'a Rope, Option<&'a QueryScaling>);

/// `[max_kv_len, rotary_dim]` cosines and sines of a model.
#[derive(Clone, Debug)]
struct RopeTables {
    max_kv_len: usize,
    /// Tables of K and, unless Q is scaled, of Q, by the index of the [`Rope`].
    of_keys: Vec<Constant>,
    /// Tables of a Q that is scaled, likewise; none where it is not.
    of_queries: Vec<Constant>,
}

impl RopeTables {
    fn new(config: &Config, max_kv_len: usize, data: impl Fn(RopeOf) -> Arc<[f32]>) -> Self {
        // Within the first step Q keeps its length.
        let scaling = config.query_scaling.as_ref();
        let scaling =
            scaling.filter(|scaling| max_kv_len > scaling.original_max_position_embeddings);
        let table = |name: String, of: RopeOf| Constant {
            name,
            rows: max_kv_len,
            cols: of.0.rotary_dim,
            data: data(of),
        };
        let ropes = || config.ropes.iter().enumerate();
        let name = |what: &str, index| match index {
            0 => what.to_owned(),
            _ => format!("{what}.{index}"),
        };
        RopeTables {
            max_kv_len,
            of_keys: ropes().map(|(i, rope)| table(name("rope", i), (rope, None))).collect(),
            of_queries: match scaling {
                Some(scaling) => ropes()
                    .map(|(i, rope)| table(name("scaled_rope", i), (rope, Some(scaling))))
                    .collect(),
                None => Vec::new(),
            },
        }
    }
}

/// The row of each position and type of token, which is added to the embedding: those of the first
/// type, then those of the next.
fn positions(
    config: &Config,
    names: &Names,
    checkpoint: &Checkpoint,
) -> Result<Option<Constant>, WeightsError> {
    let Some(LearnedPositions { first, num_types }) =
        config.encoder.and_then(|encoder| encoder.positions)
    else {
        return Ok(None);
    };
    let (rows, cols) = (config.max_position_embeddings, config.hidden_size);
    let table = |stem: &str, rows: usize| {
        let whole = WeightPart::new(format!("{stem}.weight"), rows, Dtype::F32);
        let (name, parts) = (stem.to_owned(), vec![whole]);
        let layout = WeightLayout::Rows;
        checkpoint.check(&Weight { name, rows, cols, layout, parts })?;
        checkpoint.read_f32(&format!("{stem}.weight"))
    };
    let positions = table(names.encoder.positions, first + rows)?;
    let types = match num_types {
        0 => vec![0.0; cols],
        _ => table(names.encoder.token_types, num_types)?,
    };
    let row = |(of_type, position): (&[f32], usize)| -> Vec<f32> {
        let of_position = &positions[(first + position) * cols..][..cols];
        of_position.iter().zip(of_type).map(|(a, b)| a + b).collect()
    };
    let of_types = types.chunks_exact(cols);
    let pairs = of_types.flat_map(|of_type| (0..rows).map(move |position| (of_type, position)));
    let data: Vec<f32> = pairs.flat_map(row).collect();
    let rows = data.len() / cols;
    Ok(Some(Constant { name: "positions".to_owned(), rows, cols, data: data.into() }))
}

/// Whether the checkpoint has an output projection that is not the embedding: transformers does not
/// tie the two then, whatever config.json says.
fn has_own_head(checkpoint: &Checkpoint, names: &Names) -> bool {
    let tensor = |stem: &str| checkpoint.tensor(&format!("{stem}.weight"));
    match (tensor(names.embedding), tensor(names.lm_head)) {
        (Some(embedding), Some(head)) => {
            (embedding.dtype, embedding.bytes) != (head.dtype, head.bytes)
        }
        _ => false,
    }
}
/// Whether a tensor holds a matrix of experts.
fn is_of_experts(name: &str) -> bool {
    [".experts.", "_exps.", "_moe.input_", "_moe.output_"].iter().any(|part| name.contains(part))
}
