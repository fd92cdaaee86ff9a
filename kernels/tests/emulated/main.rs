//! Every kernel on the emulator, through its launcher, against a naive oracle in f64: at small and
//! odd shapes, under a few seeds each, which draw the order of what is concurrent.

mod all_reduce;
mod append_fp8;
mod attention;
mod attention_fp8;
mod attention_sm90;
mod device;
mod fp8_small;
mod gemm;
mod gemm16_fused;
mod gemm16_sm80;
mod gemm16_sm90;
mod gemm16_small_m;
mod gemm16_streamed;
mod gemm16_swapped;
mod gemm_epilogue;
mod gemm_fp8;
mod gemv16;
mod kv_cache;
mod kv_quantised;
mod prefill_cluster;
mod quantise_rows;
mod quantised;
mod recorded;
mod rope_append;
mod rows;
mod sampling;
mod tile;
