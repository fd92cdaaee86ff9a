//! GGUF v2 and v3.

mod metadata;

pub use metadata::{Metadata, Value};
