//! halfwarp as a worker of [NVIDIA Dynamo](https://github.com/ai-dynamo/dynamo).
//!
//! Dynamo's frontend has the HTTP API, the tokenizer and the router; a worker has a model on a device. The frontend sends
//! token ids, and gets token ids back. What the router has to know of a worker's KV cache, a [`Backend`] tells it page by
//! page: so a prompt goes to the worker that has its beginning.
//!
//! ```text
//! HTTP -> frontend (chat template, tokenizer) -> router -> Backend (one EngineService) -> token ids -> frontend -> text
//! ```

mod args;
mod backend;
mod error;
mod kv_events;
mod metrics;
mod request;
mod stream;

pub use args::{Args, ArgsError};
pub use backend::{Backend, BackendOptions};
