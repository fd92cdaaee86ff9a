//! Large language models on NVIDIA GPUs, with every GPU kernel written in Rust; on the CPU where there is no GPU.
//!
//! A [`Model`] is opened, an [`Engine`] holds it on a device and runs [`Request`]s, and a [`TextStream`] turns tokens
//! into text. Nothing but this crate is needed at run time: the kernels are inside, and the driver is looked for when
//! the first engine is made.
//!
//! # Load a model and stream an answer
//! ```no_run
//! use halfwarp::{Engine, EngineOptions, Message, Model, Request, TextStream};
//! use std::sync::Arc;
//!
//! // A Hugging Face directory, a .gguf file, a directory that holds one, or the name of a fetched model.
//! let model = Arc::new(Model::open("smollm2-135m-instruct")?);
//! let text = model.text().ok_or("the model has no tokenizer")?;
//! let template = text.chat_template.as_ref().ok_or("a base model: encode the prompt as it is")?;
//! let prompt = template.render(&[Message::new("user", "Why is the sky blue?")], true)?;
//! // With the model's own sampling parameters and stop tokens.
//! let request = model.request(text.tokenizer.encode(&prompt, false)?);
//! let request = Request { max_new_tokens: Some(200), ..request };
//!
//! // The first GPU, or the CPU: `EngineOptions::device` says otherwise.
//! let mut engine = Engine::new(Arc::clone(&model), EngineOptions::default())?;
//! let mut stream = TextStream::new(&text.tokenizer);
//! engine.generate(request, |token| {
//!     print!("{}", stream.push(token));
//!     stream.flow()
//! })?;
//! println!("{}", stream.finish());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Logits
//! ```no_run
//! # let model = std::sync::Arc::new(halfwarp::Model::open("model.gguf")?);
//! # let mut engine = halfwarp::Engine::new(model.clone(), halfwarp::EngineOptions::default())?;
//! let tokens = [1, 2, 3, 4];
//! let logits = engine.logits(&tokens)?; // [num_tokens, vocab_size]
//! let next = &logits[(tokens.len() - 1) * model.config().vocab_size..];
//! # let _ = next;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Several requests at once
//! Requests share each step, and join and leave at any step. With [`EngineOptions::batch_invariant`] each has the
//! logits, bit for bit, that it would have alone.
//! ```no_run
//! # use halfwarp::{Engine, EngineOptions, EventKind, Model, Request};
//! # let model = std::sync::Arc::new(Model::open("model.gguf")?);
//! let options = EngineOptions { max_seqs: 8, ..EngineOptions::default() };
//! let mut engine = Engine::new(model, options)?;
//! for prompt in [vec![1, 2, 3], vec![9, 8, 7, 6]] {
//!     engine.add_request(Request { prompt, max_new_tokens: Some(8), ..Request::default() })?;
//! }
//! while engine.has_work() {
//!     for event in engine.step()? {
//!         if let EventKind::Token(token) = event.kind {
//!             println!("{:?}: {token}", event.request);
//!         }
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # In your `Cargo.toml`
//! ```toml
//! [dependencies]
//! halfwarp = { git = "https://github.com/halfwarp/halfwarp", default-features = false }
//!
//! # cust looks for a CUDA toolkit when it is built; this stand-in needs none.
//! [patch.crates-io]
//! find_cuda_helper = { git = "https://github.com/halfwarp/halfwarp" }
//!
//! # Without these two lines `cargo run` without `--release` computes 25 times as long.
//! [profile.dev.package."*"]
//! opt-level = 3
//! ```
//! A dependency can set neither for you: Cargo takes patches and profiles from the top-level workspace alone.
//! `docs/embed.md` in the repository says what else a build needs.
//!
//! # Features
//! - `cli` (default): the binary `halfwarp`. A library has no use for it.
//! - `server` (default): `server`, the OpenAI-compatible HTTP server.
//! - `emulator`: [`Device::Emulated`], the GPU's kernels run and checked on the CPU.
//!
//! # How it works
//! ```text
//! prompt -> text (tokenizer, chat template) -> engine (batch, KV cache, sampling) -> plan -> executor
//!        -> logits -> engine -> token -> text -> stream
//! ```
//! A model is turned into a [`Plan`] once, and everything else reads the plan: executors, the memory budget, profiles.

#[cfg(feature = "cli")]
pub mod bench;
pub mod engine;
pub mod exec;
mod files;
mod generation;
#[cfg(feature = "grammar")]
mod grammar;
pub mod imatrix;
mod loaded;
pub mod model;
pub mod models;
#[cfg(feature = "cli")]
pub mod perplexity;
pub use plan;
#[cfg(feature = "cli")]
pub mod profile;
pub use ptx;
pub mod quantize;
#[cfg(feature = "grammar")]
mod schema;
#[cfg(feature = "server")]
pub mod server;
pub mod text;
#[cfg(feature = "cli")]
pub mod validate;
pub mod weights;

pub use engine::{
    Constraint, ConstraintState, Engine, EngineError, EngineHandle, EngineOptions, EngineService,
    Event, EventKind, FinishReason, Generation, PrecisionChoice, PromptProgress, Request,
    RequestEvent, RequestId, RequestStream, Sampling, SamplingError, ServiceOptions,
};
pub use exec::{Collectives, CudaSet, Device, ExecError, Gemm, Target};
pub use generation::GenerationConfig;
#[cfg(feature = "grammar")]
pub use grammar::{
    AfterReasoning, Grammar, GrammarCompiler, GrammarError, LazyGrammar, ReasoningLimits, Triggers,
};
pub use loaded::{Model, ModelOverrides, OpenError};
pub use model::{Config, Decoder, KvSource, LayerConfig, ModelError, NormPlacement, QkNorm};
pub use plan::{
    Accumulate, AttentionForm, CacheType, Fusion, KvStorage, Numerics, Plan, PlanError, Precision,
};
pub use text::{
    ChatTemplate, Content, Message, RenderOptions, StopStrings, Text, TextError, TextStream,
    Tokenizer,
};
pub use weights::{Checkpoint, WeightsError};
