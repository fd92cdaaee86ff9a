//! Configurations as real models have them, and every way to spoil one.

mod gguf;
mod hf;
