//! Configurations as real models have them, and every way to spoil one.

mod delta;
mod encoders;
mod experts;
mod families;
mod gemma;
mod gemma4;
mod gguf;
mod hf;

/// A real config.json.
macro_rules! real {
    ($name:literal) => {
        serde_json::from_str::<serde_json::Value>(include_str!(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/src/cli/random_model/",
            $name,
            ".json"
        )))
        .unwrap()
    };
}
use real;

/// The window of each layer.
fn windows_of(config: &super::Config) -> Vec<Option<usize>> {
    config.layers.iter().map(|layer| layer.window).collect()
}
