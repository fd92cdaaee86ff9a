//! MXFP4 of safetensors: a byte holds two neighbours, the lower nibble the first of them.
//!
//! GGUF's block is the scale, then bytes of which the lower nibbles are the first half of the block.
//! Source: `convert_moe_packed_tensors` of transformers, `block_mxfp4` of ggml.

use crate::plan::Dtype;

/// Elements of a block.
pub const BLOCK_ELEMS: usize = 32;
/// Bytes of a block's nibbles.
pub const NIBBLE_BYTES: usize = BLOCK_ELEMS / 2;

/// Blocks as they are stored.
#[derive(Clone, Copy, Debug)]
pub struct Blocks<'a> {
    pub nibbles: &'a [u8],
    /// E8M0, one a block.
    pub scales: &'a [u8],
}

impl Blocks<'_> {
    /// Blocks `first .. first + count` as GGUF has them.
    pub fn repacked(&self, first: usize, count: usize) -> Vec<u8> {
        let (nibbles, _) = self.nibbles.as_chunks::<NIBBLE_BYTES>();
        let blocks = nibbles[first..][..count].iter().zip(&self.scales[first..]);
        let mut out = Vec::with_capacity(count * Dtype::MXFP4.block_bytes());
        for (nibbles, &scale) in blocks {
            let code = |elem: usize| nibbles[elem / 2] >> (elem % 2 * 4) & 15;
            out.push(scale);
            out.extend((0..NIBBLE_BYTES).map(|i| code(i) | code(i + NIBBLE_BYTES) << 4));
        }
        out
    }
}
