//! What decoders of real shapes launch, against `tests/snapshots/launches.txt`: a refactoring changes no line of it.
//!
//! A plan has a line: its decoder, target, step, weights, cache and numerics, a hash of all of its launches (symbol, grid,
//! block, shared memory, arguments), the bytes that it needs, and the kernels in their order. `HALFWARP_WRITE=1` writes the
//! file anew.

use super::{Addresses, Libraries, counter_bytes, fused, lower, workspace_bytes};
use crate::exec::{Gemm, Target};
use crate::plan::testing::Decoder;
use crate::plan::{
    Bounds, CacheType, Dtype, Fusion, KvStorage, Numerics, Plan, Precision, Weight, WeightLayout,
    WeightPart, WeightStorage,
};
use cuda_std::launch::{Geometry, Launch};
use kernels::gemm::Gpu;
use sha2::{Digest, Sha256};
use std::{env, fmt::Write, fs, path::Path};

/// Head sizes 64, 96, 128 (with QK-norm) and 256; from 14 query heads on 2 to as many as there are for keys.
const DECODERS: [(&str, Decoder); 4] = [
    ("qwen2.5-0.5b", Decoder::REAL[0]),
    ("phi-3-mini", Decoder::REAL[1]),
    (
        "qwen3-8b",
        Decoder {
            precision: Precision::F16,
            hidden_size: 4096,
            num_heads: 32,
            num_kv_heads: 8,
            head_dim: 128,
            intermediate_size: 12288,
            vocab_size: 151_936,
            qk_norm: true,
        },
    ),
    (
        "gemma-2b",
        Decoder {
            precision: Precision::F16,
            hidden_size: 2048,
            num_heads: 8,
            num_kv_heads: 1,
            head_dim: 256,
            intermediate_size: 16384,
            vocab_size: 256_000,
            qk_norm: false,
        },
    ),
];

const CONTEXT: usize = 4096;

/// Steps: new tokens, those of one sequence, and whether others decode beside it.
const STEPS: [(&str, usize, usize, bool); 8] = [
    ("decode-1", 1, 1, false),
    ("decode-8", 8, 1, false),
    ("decode-16", 16, 1, false),
    ("decode-64", 64, 1, false),
    ("decode-256", 256, 1, false),
    ("prompt-128", 128, 128, false),
    ("prompt-4096", 4096, 4096, false),
    ("mixed-512", 512, 448, true),
];

/// How the weights of linear layers are stored.
#[derive(Clone, Copy)]
enum WeightType {
    Dense(Precision),
    /// E4M3 or blocks, with operands in f16; where rows are no whole blocks, the second type.
    Quantised(Dtype, Dtype),
    /// Q4_K (else Q5_0) with operands in f16, and Q6_K in the last part of a matrix of several.
    Mixed,
}

const WEIGHT_TYPES: [(&str, WeightType); 8] = [
    ("f32", WeightType::Dense(Precision::F32)),
    ("f16", F16),
    ("bf16", WeightType::Dense(Precision::BF16)),
    ("e4m3", WeightType::Quantised(Dtype::F8_E4M3, Dtype::F8_E4M3)),
    ("q4_k", WeightType::Quantised(Dtype::Q4_K, Dtype::Q5_0)),
    ("q8_0", WeightType::Quantised(Dtype::Q8_0, Dtype::Q8_0)),
    ("mxfp4", WeightType::Quantised(Dtype::MXFP4, Dtype::MXFP4)),
    ("mixed", WeightType::Mixed),
];
const F16: WeightType = WeightType::Dense(Precision::F16);

#[derive(Clone, Copy)]
enum Form {
    Fused,
    Unfused,
    BatchInvariant,
}

/// Names of weights, cache and form, and what they are.
fn settings() -> Vec<(String, WeightType, KvStorage, Form)> {
    let forms = [("fused", Form::Fused), ("invariant", Form::BatchInvariant)];
    let mut all = Vec::new();
    for (form_name, form) in forms {
        for (name, weight_type) in WEIGHT_TYPES {
            let name = format!("{name} kv=auto {form_name}");
            all.push((name, weight_type, KvStorage::default(), form));
        }
        for cache in [CacheType::Q8_0, CacheType::Fp8, CacheType::Q4_0] {
            all.push((format!("f16 kv={cache} {form_name}"), F16, cache.into(), form));
        }
    }
    all.push(("f16 kv=auto unfused".to_owned(), F16, KvStorage::default(), Form::Unfused));
    all
}

fn plan(
    decoder: Decoder,
    (max_tokens, max_q_len, mixed): (usize, usize, bool),
    (weight_type, storage, form): (WeightType, KvStorage, Form),
) -> Plan {
    let precision = match weight_type {
        WeightType::Dense(precision) => precision,
        WeightType::Quantised(..) | WeightType::Mixed => Precision::F16,
    };
    let mut plan = Decoder { precision, ..decoder }.plan(max_tokens, max_q_len);
    let Bounds { max_seqs, max_logit_rows, .. } = plan.bounds;
    let decoding = if mixed { max_tokens - max_q_len } else { 0 };
    plan.bounds = Bounds {
        max_seqs: max_seqs.max(decoding + 1),
        max_logit_rows: max_logit_rows.max(decoding + 1),
        max_kv_len: CONTEXT,
        mixed,
        ..plan.bounds
    };
    plan.kv.num_pages = plan.bounds.max_seqs * plan.bounds.max_pages_per_seq();
    plan.kv.storage = storage;
    plan.set_numerics(|numerics| {
        *numerics = Numerics {
            weights: match weight_type {
                WeightType::Dense(_) => WeightStorage::Dense,
                WeightType::Quantised(dtype, _) if dtype.is_fp8() => WeightStorage::Fp8,
                WeightType::Quantised(..) | WeightType::Mixed => WeightStorage::Tiles,
            },
            batch_invariant: matches!(form, Form::BatchInvariant),
            fusion: if matches!(form, Form::Unfused) { Fusion::NONE } else { Fusion::ALL },
            kv: storage,
            ..*numerics
        }
    });
    if matches!(form, Form::Unfused) {
        plan.unfuse_residuals();
    }
    plan.weights.iter_mut().for_each(|weight| store(weight, weight_type));
    plan
}

/// Keeps the matrix of a linear layer as `weight_type`; the embedding stays dense.
fn store(weight: &mut Weight, weight_type: WeightType) {
    if weight.is_vector() || weight.name == "embedding" {
        return;
    }
    let dtype_of = |dtype: Dtype, other: Dtype| match dtype.block_elems() {
        elems if weight.cols.is_multiple_of(elems) => dtype,
        _ => other,
    };
    let (cols, rows) = (weight.cols, weight.rows);
    match weight_type {
        WeightType::Dense(_) => {}
        WeightType::Quantised(dtype, other) => {
            weight.parts[0].storage = dtype_of(dtype, other);
            weight.layout = if dtype.is_fp8() { WeightLayout::Rows } else { WeightLayout::Tiles };
        }
        WeightType::Mixed => {
            let is_stacked = weight.name == "qkv" && cols.is_multiple_of(256);
            let last = if is_stacked { rows / 8 / 16 * 16 } else { 0 };
            let part = |rows, dtype| WeightPart::new(weight.name.clone(), rows, dtype);
            let first = part(rows - last, dtype_of(Dtype::Q4_K, Dtype::Q5_0));
            let parts = [first, part(last, Dtype::Q6_K)];
            weight.parts = parts.into_iter().filter(|part| part.rows > 0).collect();
            weight.layout = WeightLayout::Tiles;
        }
    }
}

/// A plan's line, without its name, and its launches in full.
fn line(plan: &Plan, target: Target) -> (String, String) {
    let gpu = match target {
        Target::Sm90a => Gpu::HOPPER,
        Target::Sm80 => Gpu { target, num_sms: 108, overlaps: false },
    };
    let plan = fused(plan, Libraries::default(), gpu);
    let launches = lower(&plan, &Addresses::placeholder(&plan), gpu, |spec| Ok(spec.emulated()));
    let launches = match launches {
        Ok(launches) => launches.into_iter().flatten().collect::<Vec<_>>(),
        Err(error) => {
            return (format!("error: {}", error.to_string().replace('\n', " ")), String::new());
        }
    };
    let full: String = launches.iter().map(launch_line).collect();
    let hash: String =
        Sha256::digest(&full)[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    let symbols: Vec<&str> = launches.iter().map(|launch| launch.symbol).collect();
    let (workspace, counters) = (workspace_bytes(&plan, Gemm::Halfwarp), counter_bytes(&plan));
    (format!("{hash} {workspace}+{counters} {}", symbols.join(" ")), full)
}

/// All of a launch, its arguments in hex.
fn launch_line(launch: &Launch) -> String {
    let Launch { symbol, geometry, max_threads, cluster, overlaps, .. } = launch;
    let Geometry { grid, block, shared_bytes } = geometry;
    let mut line = format!(
        "{symbol} grid {grid:?} block {block:?} of {max_threads} shared {shared_bytes} cluster {cluster:?} \
         overlaps {overlaps}"
    );
    for (i, byte) in launch.args.iter().enumerate() {
        let starts = launch.arg_offsets.contains(&(i as u32));
        let _ = write!(line, "{}{byte:02x}", if starts { " " } else { "" });
    }
    line + "\n"
}

/// Every plan: its name, and what makes its line.
fn plans() -> Vec<(String, Plan, Target)> {
    let mut all = Vec::new();
    for (decoder_name, decoder) in DECODERS {
        for (name, weight_type, storage, form) in settings() {
            for (step, max_tokens, max_q_len, mixed) in STEPS {
                let plan =
                    plan(decoder, (max_tokens, max_q_len, mixed), (weight_type, storage, form));
                for target in [Target::Sm80, Target::Sm90a] {
                    let name = format!("{decoder_name} {} {step} {name}", target.name());
                    all.push((name, plan.clone(), target));
                }
            }
        }
    }
    all
}

#[test]
fn launches_are_those_of_the_snapshot() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/snapshots/launches.txt");
    let plans = plans();
    let lines: Vec<_> = plans.iter().map(|(_, plan, target)| line(plan, *target)).collect();
    let named = plans.iter().zip(&lines);
    let text: String = named.map(|((name, ..), (line, _))| format!("{name}: {line}\n")).collect();
    if env::var_os("HALFWARP_WRITE").is_some() {
        return fs::write(path, text).unwrap();
    }
    let recorded = fs::read_to_string(path).unwrap();
    let mut pairs = text.lines().zip(recorded.lines()).zip(&lines);
    if let Some(((now, before), (_, full))) = pairs.find(|((now, before), _)| now != before) {
        panic!("launches differ; HALFWARP_WRITE=1 writes\nbefore {before}\nnow    {now}\n{full}");
    }
    assert_eq!(text.lines().count(), recorded.lines().count());
}
