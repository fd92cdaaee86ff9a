//! Configurations of model families, and the one decoder that turns a configuration into a plan.
//!
//! A family is a [`Config`] (read from config.json or from GGUF metadata, with the defaults of transformers) and a
//! table of tensor names. `docs/add-a-model.md` says how to add one.

mod config;
mod decoder;
mod error;
mod names;
mod rope;

pub use config::{Config, ConfigError, Family};
pub use error::ModelError;
pub use rope::{Rope, RopeScaling};

use crate::plan::{Bounds, Constant, MemoryBudget, Plan, Precision, StepLayout};
use crate::text::{self, Text};
use crate::weights::{Checkpoint, Origin};
use names::Names;
use std::path::Path;
use std::sync::Mutex;

/// A model on disk, ready to be planned: configuration, weights, tokenizer.
#[derive(Debug)]
pub struct Model {
    config: Config,
    names: &'static Names,
    checkpoint: Checkpoint,
    text: Option<Text>,
    stop_tokens: Vec<u32>,
    /// The last table that was made: the plans of one engine share it.
    rope_table: Mutex<Option<Constant>>,
}

impl Model {
    /// Opens a Hugging Face directory or a `.gguf` file, and checks that every weight of the model is there and has
    /// the right shape. Weights are read when an executor asks for them.
    ///
    /// # Errors
    /// [`ModelError::Weights`] for a damaged or incomplete checkpoint, [`ModelError::Config`] for a configuration that
    /// is no model's or not supported, [`ModelError::Text`] for a tokenizer that cannot be used.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ModelError> {
        let checkpoint = Checkpoint::open(path)?;
        let at_path = |source| ModelError::config(checkpoint.path(), source);
        let (config, names, text, stop_tokens) = match checkpoint.origin() {
            Origin::HuggingFace { dir, config: json } => {
                let mut config = Config::from_hf(json).map_err(at_path)?;
                let names = Names::hugging_face(config.family, &checkpoint);
                config.tie_word_embeddings &= !has_own_head(&checkpoint, names);
                (config, names, Text::from_dir(dir)?, text::stop_tokens_from_dir(dir)?)
            }
            Origin::Gguf { metadata } => {
                let config = Config::from_gguf(metadata, &checkpoint).map_err(at_path)?;
                let names = Names::gguf(config.family);
                (config, names, Text::from_gguf(metadata)?, text::stop_tokens_from_gguf(metadata)?)
            }
        };
        // The chat template may know of one more: the end of its turns.
        let stop_tokens = text.as_ref().map_or(stop_tokens, |text| text.stop_tokens.clone());
        let rope_table = Mutex::new(None);
        let model = Model { config, names, checkpoint, text, stop_tokens, rope_table };
        let bounds =
            Bounds { max_tokens: 1, max_seqs: 1, max_q_len: 1, max_logit_rows: 1, max_kv_len: 1 };
        for weight in &model.plan(Precision::F32, bounds, 1)?.weights {
            model.checkpoint.check(weight)?;
        }
        Ok(model)
    }

    /// What the decoder knows of the model.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The weights.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// The tokenizer and chat template, if the model comes with them.
    pub fn text(&self) -> Option<&Text> {
        self.text.as_ref()
    }

    /// Tokens that end a generation; known for most models without a tokenizer too.
    pub fn stop_tokens(&self) -> &[u32] {
        &self.stop_tokens
    }

    /// The model as operations in `precision` for steps of at most `bounds`, over a cache of `num_pages` pages. Weights
    /// and constants are the same for all plans of one precision and `bounds.max_kv_len`.
    ///
    /// # Errors
    /// [`ModelError::Context`] for no position, or more than the model takes; [`ModelError::Unaligned`] for a model
    /// whose rows have no place in 16 bits.
    pub fn plan(
        &self,
        precision: Precision,
        bounds: Bounds,
        num_pages: usize,
    ) -> Result<Plan, ModelError> {
        self.check_context(bounds.max_kv_len)?;
        self.check_alignment(precision)?;
        let rope = self.rope_table(bounds.max_kv_len);
        Ok(decoder::plan(&self.config, self.names, rope, precision, bounds, num_pages))
    }

    /// `self.plan(precision, bounds, num_pages)?.memory()`, without the table of a context that may be too long for the
    /// memory.
    ///
    /// # Errors
    /// As [`Model::plan`].
    pub fn memory(
        &self,
        precision: Precision,
        bounds: Bounds,
        num_pages: usize,
    ) -> Result<MemoryBudget, ModelError> {
        self.check_context(bounds.max_kv_len)?;
        let rope_len = bounds.max_kv_len * self.config.rope.rotary_dim;
        Ok(MemoryBudget {
            buffer_bytes: 4 * (rope_len + StepLayout::new(&bounds).len),
            max_kv_len: bounds.max_kv_len,
            ..self.plan(precision, Bounds { max_kv_len: 1, ..bounds }, num_pages)?.memory()
        })
    }

    fn check_context(&self, asked: usize) -> Result<(), ModelError> {
        let max = self.config.max_position_embeddings;
        if (1..=max).contains(&asked) { Ok(()) } else { Err(ModelError::Context { asked, max }) }
    }

    /// Whether the rows of every operand, and every head in it, start at multiples of 16 bytes.
    fn check_alignment(&self, precision: Precision) -> Result<(), ModelError> {
        let multiple = precision.operand().row_multiple();
        let Config { hidden_size, intermediate_size, head_dim, .. } = self.config;
        let sizes = [
            ("hidden size", hidden_size),
            ("intermediate size", intermediate_size),
            ("head size", head_dim),
        ];
        match sizes.into_iter().find(|(_, size)| !size.is_multiple_of(multiple)) {
            Some((what, size)) => Err(ModelError::Unaligned { what, size, precision, multiple }),
            None => Ok(()),
        }
    }

    /// `[max_kv_len, rotary_dim]` cosines and sines.
    fn rope_table(&self, max_kv_len: usize) -> Constant {
        let mut last = self.rope_table.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        match &*last {
            Some(table) if table.rows == max_kv_len => table.clone(),
            _ => {
                let rope = &self.config.rope;
                let data = rope.table(max_kv_len).into();
                let (rows, cols) = (max_kv_len, rope.rotary_dim);
                last.insert(Constant { name: "rope".into(), rows, cols, data }).clone()
            }
        }
    }
}

/// Whether the checkpoint has an output projection that is not the embedding: transformers does not tie the two then,
/// whatever config.json says.
fn has_own_head(checkpoint: &Checkpoint, names: &Names) -> bool {
    let tensor = |stem: &str| checkpoint.tensor(&format!("{stem}.weight"));
    match (tensor(names.embedding), tensor(names.lm_head)) {
        (Some(embedding), Some(head)) => {
            (embedding.dtype, embedding.bytes) != (head.dtype, head.bytes)
        }
        _ => false,
    }
}
