//! Two settings of a model compared on one device: speed, memory, logits, the values of every
//! layer, and a haiku.
//!
//! ```no_run
//! use halfwarp::validate::{Options, validate};
//! # let model = std::sync::Arc::new(halfwarp::Model::open("model.gguf")?);
//! let report = validate(&model, &Options::default(), &mut |stage| eprintln!("{stage}"))?;
//! for breach in report.breaches() {
//!     println!("{breach}"); // such as "layer 12, gate_up: inf in f16, where f32 has values up to 91776"
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod haiku;
mod inputs;
pub mod layers;
pub mod limits;
pub mod logits;
pub mod report;
mod run;
mod settings;

pub use inputs::{Sizes, Text};
pub use limits::{Breach, Limits};
pub use report::{Conditions, Plot};
pub use settings::{Settings, UnknownSettings};

use crate::plan::Precision;
use crate::{EngineError, EngineOptions, Model, TextError};
use haiku::HaikuTest;
use inputs::Inputs;
use layers::Difference;
use logits::LogitComparison;
use report::median;
use run::Runner;
use std::sync::Arc;

/// What is compared, and where.
#[derive(Clone, Debug)]
pub struct Options {
    /// What the candidate is held to.
    pub reference: Settings,
    /// What is validated.
    pub candidate: Settings,
    /// What both have in common; context and sequences are the validation's own.
    pub engine: EngineOptions,
    /// Draws the word of the haiku, and its tokens.
    pub seed: u64,
    /// What the differences may be.
    pub limits: Limits,
}

impl Default for Options {
    /// f16 beside f32.
    fn default() -> Self {
        Options {
            reference: Precision::F32.into(),
            candidate: Precision::F16.into(),
            engine: EngineOptions::default(),
            seed: 0,
            limits: Limits::default(),
        }
    }
}

/// Speed and memory of one setting.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Milliseconds from a prompt to its first token, of each repetition; none on the emulator, and
    /// where the logits are not finite.
    pub first_token_ms: Vec<f64>,
    /// Tokens a second after the first one, of each repetition; none where there is no time to the
    /// first token.
    pub tokens_per_s: Vec<f64>,
    /// What the plan says that it needs: parts, and their bytes.
    pub planned_bytes: Vec<(&'static str, usize)>,
    /// Bytes that it took: by the count of the GPU's driver, elsewhere of the executor.
    pub measured_bytes: usize,
    /// Bytes of them that the process's CUDA context takes, whatever it runs; 0 on the CPU.
    pub context_bytes: usize,
}

impl Run {
    /// The sum of [`Run::planned_bytes`].
    pub fn total_planned_bytes(&self) -> usize {
        self.planned_bytes.iter().map(|(_, bytes)| bytes).sum()
    }

    /// The middle of [`Run::first_token_ms`].
    pub fn median_first_token_ms(&self) -> Option<f64> {
        median(&self.first_token_ms)
    }

    /// The middle of [`Run::tokens_per_s`].
    pub fn median_tokens_per_s(&self) -> Option<f64> {
        median(&self.tokens_per_s)
    }
}

/// What a validation found.
#[derive(Clone, Debug)]
pub struct Report {
    /// Reference and candidate.
    pub settings: [Settings; 2],
    /// Where both ran, in one line.
    pub device: String,
    /// What was run.
    pub sizes: Sizes,
    /// What the logits are of.
    pub text: Text,
    /// Speed and memory of reference and candidate.
    pub runs: [Run; 2],
    /// On the text.
    pub logits: LogitComparison,
    /// Differences of each operation's values, in order, at the beginning of the text.
    pub layers: Vec<Difference>,
    /// The haiku test, or why there is none.
    pub haiku: Result<HaikuTest, String>,
    /// What the differences may be.
    pub limits: Limits,
}

impl Report {
    /// What reference and candidate are called.
    pub fn names(&self) -> [String; 2] {
        self.settings.map(|settings| settings.to_string())
    }
}

/// Why nothing could be compared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ValidateError {
    /// A setting does not run.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The tokenizer or the chat template refused the text.
    #[error(transparent)]
    Text(#[from] TextError),
}

/// Runs both settings, one after the other, so that one is in memory at a time. `stage` is told
/// what is being done.
///
/// # Errors
/// [`ValidateError`].
pub fn validate(
    model: &Arc<Model>,
    options: &Options,
    stage: &mut dyn FnMut(&str),
) -> Result<Report, ValidateError> {
    let sizes = Sizes::new(options.engine.device, model.config().max_position_embeddings);
    let inputs = Inputs::new(model, sizes, options.seed)?;
    let windows: Vec<&[u32]> = inputs.windows().collect();
    let runner = Runner { model, options, inputs: &inputs };

    let mut logits_of_windows = Vec::new();
    let keep = |logits| logits_of_windows.push(logits);
    let reference = runner.run(options.reference, None, stage, keep)?;

    let mut logits = LogitComparison::default();
    let vocab_size = model.config().vocab_size;
    let mut pairs = logits_of_windows.into_iter().zip(&windows);
    let haiku = reference.haiku.as_ref();
    let candidate = runner.run(options.candidate, haiku, stage, |candidate| {
        let (reference, window) = pairs.next().expect("both settings run the same windows");
        logits.push(&reference, &candidate, vocab_size, &window[1..]);
    })?;

    let haiku = match (&inputs.haiku, reference.haiku, candidate.haiku) {
        (Ok(haiku), Some(of_reference), Some(of_candidate)) => {
            let mut forced = LogitComparison::default();
            let chosen = &of_reference.tokens;
            forced.push(&reference.forced, &candidate.forced, vocab_size, chosen);
            let haikus = [of_reference, of_candidate];
            let (word, prompt) = (haiku.word, haiku.text.clone());
            Ok(HaikuTest { word, seed: options.seed, prompt, haikus, forced })
        }
        (Err(why), ..) => Err(why.clone()),
        _ => unreachable!("both settings run the haiku that there is"),
    };
    Ok(Report {
        settings: [options.reference, options.candidate],
        device: candidate.device,
        sizes,
        text: inputs.source,
        runs: [reference.run, candidate.run],
        logits,
        layers: layers::compare(&reference.stored, &candidate.stored),
        haiku,
        limits: options.limits,
    })
}

/// Date and time in UTC, for [`Conditions::date`].
pub fn now() -> String {
    crate::text::strftime_utc("%F %T UTC", std::time::SystemTime::now()).unwrap_or_default()
}
