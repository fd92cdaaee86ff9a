//! The real binary: what it prints, how it fails, and what it leaves behind.

#[path = "cli/arguments.rs"]
mod arguments;
#[path = "cli/bad_input.rs"]
mod bad_input;
#[path = "cli/bench.rs"]
mod bench;
#[path = "cli/chat.rs"]
mod chat;
#[path = "cli/hub.rs"]
mod hub;
#[allow(dead_code)]
#[path = "../crates/hub/tests/pull/server.rs"]
mod hub_server;
#[path = "cli/interrupts.rs"]
mod interrupts;
#[path = "cli/llama_cpp.rs"]
mod llama_cpp;
#[path = "cli/output.rs"]
mod output;
#[path = "cli/profile.rs"]
mod profile;
#[path = "cli/ptx.rs"]
mod ptx;
#[path = "cli/quantize.rs"]
mod quantize;
#[path = "cli/random_model.rs"]
mod random_model;
#[path = "cli/support.rs"]
mod support;
#[path = "cli/validate.rs"]
mod validate;
