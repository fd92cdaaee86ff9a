//! Checkpoints: every format against an independent reading, every hostile file a typed error.

mod blocks;
mod files;
mod gguf;
mod goldens;
mod models;
mod pack;
mod packed;
mod quantize;
mod safetensors;
mod split;
