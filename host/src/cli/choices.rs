//! Options whose values are those of a type of the library: how each is called, and its help.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use halfwarp::{
    Accumulate, AttentionForm, CacheType, Collectives, Gemm, Precision, PrecisionChoice, Target,
    quantize::Mix,
};

/// A parser of one of `values`: its name, perhaps with others after `|`, its help, and what it stands for.
pub fn one_of<T: Clone + Send + Sync + 'static, const N: usize>(
    values: [(&'static str, &'static str, T); N],
) -> impl TypedValueParser<Value = T> {
    let values = values.map(|(name, help, value)| {
        let mut names = name.split('|');
        let possible = PossibleValue::new(names.next().unwrap_or_default()).aliases(names);
        (if help.is_empty() { possible } else { possible.help(help) }, value)
    });
    PossibleValuesParser::new(values.clone().map(|(possible, _)| possible)).map(move |name| {
        let named = values.iter().find(|(possible, _)| possible.matches(&name, false));
        named.expect("one of the possible values").1.clone()
    })
}

/// Which kernels add over GPUs.
pub fn collectives() -> impl TypedValueParser<Value = Collectives> {
    let auto = "Kernels of this program for f16 or bf16 on 2, 4 or 8 GPUs with access to each other; else NCCL";
    one_of([
        ("auto", auto, Collectives::Auto),
        ("halfwarp", "The kernels of this program", Collectives::Halfwarp),
        ("nccl", "NVIDIA's NCCL, where it is installed", Collectives::Nccl),
    ])
}

/// Which GEMM kernels run the linear layers.
pub fn gemm() -> impl TypedValueParser<Value = Gemm> {
    let f16 = "cuBLAS with f16 accumulators, for f16 operands only";
    one_of([
        ("halfwarp", "The kernels of this program", Gemm::Halfwarp),
        ("cublas", "NVIDIA's cuBLAS, where it is installed", Gemm::Cublas),
        ("cublas-f16", f16, Gemm::CublasF16),
    ])
}

/// Type of the accumulators.
pub fn accumulate() -> impl TypedValueParser<Value = Accumulate> {
    let f16 = "11 significant bits, values up to 65504: faster, less exact";
    one_of([
        ("f32", "Exact products, 24 significant bits", Accumulate::F32),
        ("f16", f16, Accumulate::F16),
    ])
}

/// How keys or values are stored.
pub fn cache_type() -> impl TypedValueParser<Value = CacheType> {
    one_of([
        ("f32", "Exact", CacheType::F32),
        ("f16", "11 significant bits, up to 65504", CacheType::F16),
        ("bf16", "8 significant bits, the range of f32", CacheType::BF16),
        ("q8_0", "8 bits, a scale for 32 elements", CacheType::Q8_0),
        ("fp8|fp8_e4m3", "E4M3, a scale for a head of a position", CacheType::Fp8),
        ("q4_0", "4 bits, a scale for 32 elements", CacheType::Q4_0),
    ])
}

/// How attention is computed.
pub fn attention() -> impl TypedValueParser<Value = AttentionForm> {
    let materialized = "In three kernels that store scores and probabilities, to compare with";
    one_of([
        ("flash", "In one kernel that stores no score", AttentionForm::Flash),
        ("materialized", materialized, AttentionForm::Materialized),
    ])
}

/// A target of the GPU kernels.
pub fn target() -> impl TypedValueParser<Value = Target> {
    one_of([
        ("sm_80", "Compute capability 8.0 and newer", Target::Sm80),
        ("sm_90a", "Compute capability 9.0: H100, H200", Target::Sm90a),
    ])
}

/// A type of operands.
pub fn precision() -> impl TypedValueParser<Value = Precision> {
    one_of([
        ("f32", "", Precision::F32),
        ("f16", "", Precision::F16),
        ("bf16", "", Precision::BF16),
    ])
}

/// A type to compute in.
pub fn dtype() -> impl TypedValueParser<Value = PrecisionChoice> {
    let auto = "The fastest type that keeps the model's accuracy on the device; quantised weights stay so on the CPU";
    let bf16 = "Half of the memory; the range of f32, 8 significant bits";
    let fp8 = "Linear layers' weights in E4M3 with a scale a row, all else in f16; on Hopper prompts are multiplied in \
               E4M3 too";
    one_of([
        ("auto", auto, PrecisionChoice::Auto),
        ("f32", "The reference", Precision::F32.into()),
        ("f16", "Half of the memory; weights up to 65504", Precision::F16.into()),
        ("bf16", bf16, Precision::BF16.into()),
        ("fp8|fp8_e4m3", fp8, PrecisionChoice::Fp8),
    ])
}

/// A mix of types of weights, by llama.cpp's names.
pub fn mix() -> impl TypedValueParser<Value = Mix> {
    one_of([
        ("q2_k", "3.0 bits a weight: Q2_K and Q3_K", Mix::Q2_K),
        ("q2_k_s", "2.8 bits a weight: Q2_K; needs --imatrix", Mix::Q2_K_S),
        ("q3_k_s", "3.5 bits a weight: Q3_K", Mix::Q3_K_S),
        ("q3_k_m|q3_k", "3.9 bits a weight: Q3_K, with Q4_K where it matters most", Mix::Q3_K_M),
        ("q3_k_l", "4.3 bits a weight: Q3_K, with Q5_K where it matters most", Mix::Q3_K_L),
        ("iq4_xs", "4.3 bits a weight, better than q4_0", Mix::IQ4_XS),
        ("iq4_nl", "4.6 bits a weight, better than q4_0; for rows of any 32", Mix::IQ4_NL),
        ("q4_0", "4.5 bits a weight, less exact than q4_k_m", Mix::Q4_0),
        ("q4_1", "5.0 bits a weight", Mix::Q4_1),
        ("q4_k_s", "4.6 bits a weight: Q4_K", Mix::Q4_K_S),
        ("q4_k_m|q4_k", "4.8 bits a weight: Q4_K, with Q6_K where it matters most", Mix::Q4_K_M),
        ("q5_0", "5.5 bits a weight", Mix::Q5_0),
        ("q5_1", "6.0 bits a weight", Mix::Q5_1),
        ("q5_k_s", "5.5 bits a weight: Q5_K", Mix::Q5_K_S),
        ("q5_k_m|q5_k", "5.7 bits a weight: Q5_K, with Q6_K where it matters most", Mix::Q5_K_M),
        ("q6_k", "6.6 bits a weight", Mix::Q6_K),
        ("q8_0", "8.5 bits a weight", Mix::Q8_0),
        ("mxfp4_moe", "4.3 bits a weight of an expert, 8.5 of all else", Mix::MXFP4_MOE),
        ("f16", "16 bits a weight", Mix::F16),
    ])
}
