//! The real binary: what it prints, how it fails, and what it leaves behind.

#[path = "cli/bad_input.rs"]
mod bad_input;
#[path = "cli/interrupts.rs"]
mod interrupts;
#[path = "cli/output.rs"]
mod output;
#[path = "cli/support.rs"]
mod support;
