//! Large language models on NVIDIA GPUs, with every GPU kernel written in Rust.
//!
//! ```text
//! prompt -> text (tokenizer, chat template) -> engine (batch, KV cache, sampling) -> plan -> executor
//!        -> logits -> engine -> token -> text -> stream
//! ```
//!
//! A model is turned into a [`plan::Plan`] once, and everything else reads the plan.

pub mod engine;
pub mod exec;
pub mod model;
pub mod plan;
pub mod ptx;
pub mod text;
pub mod weights;
