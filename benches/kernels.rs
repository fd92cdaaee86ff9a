//! The kernels on a GPU: linear layers, attention, the append to the KV cache.
//!
//! `cargo bench --bench kernels [-- FILTER]`. A time is by CUDA events, as
//! `halfwarp::bench::kernels` says; an output is verified before anything is timed. Throughput is
//! operations, or bytes that are moved.

use criterion::{Criterion, Throughput};
use halfwarp::bench::kernels::{BenchError, Calls};
use halfwarp::bench::{attention, gemm};
use halfwarp::exec::{cuda, default_cubin_dir};
use halfwarp::plan::{Dtype, Precision};
use halfwarp::{Accumulate, Gemm};
use std::time::Duration;

/// The first GPU.
const GPU: usize = 0;
/// `m`, `n` and `k`: a square, the gate and up of Qwen2.5-0.5B for a prompt, those of Phi-3 Mini
/// for one token.
const GEMMS: [[usize; 3]; 3] = [[4096, 4096, 4096], [512, 9728, 896], [1, 16384, 3072]];

fn main() {
    if let Err(error) = cuda::free_memory(GPU) {
        return println!("kernels: skipped, {error}");
    }
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    for precision in [Precision::F16, Precision::F32] {
        gemms(&mut criterion, precision);
        attentions(&mut criterion, precision);
    }
    criterion.final_summary();
}

fn gemms(criterion: &mut Criterion, precision: Precision) {
    let config = gemm::Config {
        gpu: GPU,
        gemm: Gemm::Halfwarp,
        accumulate: Accumulate::F32,
        target: None,
        precision,
        cubin_dir: default_cubin_dir(),
    };
    for [m, n, k] in GEMMS {
        let shape = gemm::Shape { m, n, k };
        let work = Throughput::ElementsAndBytes {
            elements: shape.flops() as u64,
            bytes: shape.bytes(precision.operand()) as u64,
        };
        let name = format!("gemm/{precision}/{m}x{n}x{k}");
        time(criterion, &name, work, || gemm::open(&config, shape));
    }
}

fn attentions(criterion: &mut Criterion, precision: Precision) {
    use attention::{Shape, Step, Timed};
    let config =
        attention::Config { gpu: GPU, target: None, precision, cubin_dir: default_cubin_dir() };
    let qwen = |step| Shape { batch: 1, num_heads: 14, num_kv_heads: 2, head_dim: 64, step };
    let prefill = qwen(Step::Prefill { seq_len: 4096, causal: true });
    let decode = qwen(Step::Decode { kv_len: 8192 });
    let llama = Shape { num_heads: 32, num_kv_heads: 32, head_dim: 128, ..prefill };
    // K and V of f32 are read, those of the cache are written.
    let moved = 2 * llama.kv_len() * llama.num_kv_heads * llama.head_dim;
    let appended = moved * (Dtype::F32.block_bytes() + precision.cache().block_bytes());
    let of_attention = |shape: &Shape| Throughput::ElementsAndBytes {
        elements: shape.flops() as u64,
        bytes: shape.bytes(precision.operand()) as u64,
    };
    for (name, shape, timed, work) in [
        ("attention_prefill", prefill, Timed::Attention, of_attention(&prefill)),
        ("attention_decode", decode, Timed::Attention, of_attention(&decode)),
        ("kv_append", llama, Timed::KvAppend, Throughput::Bytes(appended as u64)),
    ] {
        let name = format!("{name}/{precision}/{shape}");
        time(criterion, &name, work, || attention::open(&config, shape, timed));
    }
}

/// Times calls, which are made where no filter leaves them out.
fn time(
    criterion: &mut Criterion,
    name: &str,
    work: Throughput,
    open: impl Fn() -> Result<Calls, BenchError>,
) {
    let mut calls = None;
    let mut group = criterion.benchmark_group(name);
    group.throughput(work).bench_function("call", |bencher| {
        let calls =
            calls.get_or_insert_with(|| open().unwrap_or_else(|error| panic!("{name}: {error}")));
        bencher.iter_custom(|count| calls.time(count).expect("a graph that has run"));
    });
}
