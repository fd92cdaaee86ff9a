//! Dynamic shared memory by kernel.

use crate::{attention, gemm};

/// Dynamic shared memory of a block of the kernel `symbol`, in bytes, where the kernel alone
/// decides it: `None` where it depends on shapes too, or where there is none.
pub fn dynamic_shared_bytes(symbol: &str) -> Option<usize> {
    attention::dynamic_shared_bytes(symbol).or_else(|| gemm::dynamic_shared_bytes(symbol))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_decides_where_its_tile_does() {
        for (symbol, want) in [
            // Four stages of 64 + 64 rows of 16 words.
            ("gemm_f32_64x64_unaligned", Some(4 * 128 * 16 * 4)),
            // Four stages of 64 + 64 rows of 64 halves, of 128 + 128 of 32.
            ("gemm_sm80_f16_f32_64x64", Some(4 * 128 * 64 * 2)),
            ("gemm_sm80_f16_f16_128x128_in_f16", Some(4 * 256 * 32 * 2)),
            // By the rows and columns of the input.
            ("gemv_f16", None),
            ("gemm_f16_swapped_m8", None),
            // None at all.
            ("sample_draw_f32", None),
            ("gemm_f32_small_m1", None),
            ("", None),
        ] {
            assert_eq!(dynamic_shared_bytes(symbol), want, "{symbol}");
        }
    }

    /// Shared memory of a block on sm_90, and on every device from sm_80 on.
    #[test]
    fn what_a_tile_needs_fits() {
        for symbol in [
            "attention_prefill_f16_sm90_d64_m128",
            "attention_prefill_cluster_bf16_d64",
            "attention_prefill_bf16_d256",
            "attention_decode_f32_r16_d128",
            "gemm_bf16_sm90_128x128_split4_f32",
        ] {
            let limit = if symbol.contains("sm90") { 227 << 10 } else { 164 << 10 };
            let bytes = dynamic_shared_bytes(symbol);
            assert!(
                bytes.is_some_and(|bytes| (16 << 10..=limit).contains(&bytes)),
                "{symbol}: {bytes:?}"
            );
        }
    }
}
