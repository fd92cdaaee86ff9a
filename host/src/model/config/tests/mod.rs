//! Configurations as real models have them, and every way to spoil one.

mod families;
mod gguf;
mod hf;

/// The window of each layer.
fn windows_of(config: &super::Config) -> Vec<Option<usize>> {
    config.layers.iter().map(|layer| layer.window).collect()
}
