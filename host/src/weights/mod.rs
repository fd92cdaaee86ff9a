//! Checkpoints on disk: Hugging Face directories (safetensors) and GGUF files, memory-mapped.

pub mod gguf;
