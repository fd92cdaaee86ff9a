//! What encoders compute that decoders do not.

pub mod add_table;
pub mod gelu_rows;
pub mod layer_norm;
pub mod mean_rows;
