//! Large language models on NVIDIA GPUs, with every GPU kernel written in Rust.
//!
//! ```text
//! prompt -> text (tokenizer, chat template) -> engine (batch, KV cache, sampling) -> plan -> executor
//!        -> logits -> engine -> token -> text -> stream
//! ```
//!
//! A model is turned into a [`Plan`] once, and everything else reads the plan.
//!
//! ```no_run
//! use halfwarp::{Engine, EngineOptions, Model, Request, TextStream};
//! use std::sync::Arc;
//!
//! let model = Arc::new(Model::open("SmolLM2-135M-Instruct.Q4_1.gguf")?);
//! let text = model.text().expect("this file has a tokenizer");
//! let prompt = text.tokenizer.encode("The capital of France is", true)?;
//! // With the model's own sampling values and stop tokens.
//! let request = Request { max_new_tokens: Some(16), ..model.request(prompt) };
//!
//! let mut engine = Engine::new(Arc::clone(&model), EngineOptions::default())?;
//! let mut stream = TextStream::new(&text.tokenizer).until(["\n\n"]);
//! engine.generate(request, |token| {
//!     print!("{}", stream.push(token));
//!     stream.flow()
//! })?;
//! println!("{}", stream.finish());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! `examples/` of this crate holds three programs: streaming, logits, and two requests at once.

pub mod engine;
pub mod exec;
mod files;
mod generation;
mod loaded;
pub mod model;
pub mod models;
pub mod plan;
pub mod profile;
pub mod ptx;
pub mod text;
pub mod weights;

pub use engine::{
    Engine, EngineError, EngineOptions, Event, EventKind, FinishReason, Generation,
    PrecisionChoice, PromptProgress, Request, RequestId, Sampling, SamplingError,
};
pub use exec::{Device, ExecError, Gemm, Target};
pub use generation::GenerationConfig;
pub use loaded::{Model, OpenError};
pub use model::{Config, Decoder, ModelError};
pub use plan::{Accumulate, Numerics, Plan, PlanError, Precision};
pub use text::{ChatTemplate, Message, StopStrings, Text, TextError, TextStream, Tokenizer};
pub use weights::{Checkpoint, WeightsError};
