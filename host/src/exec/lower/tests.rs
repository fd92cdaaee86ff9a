//! That each operation reaches its kernel, with the addresses, strides and counts of its views.

use super::*;
use crate::exec::Target;
use crate::plan::testing::{self, Decoder, silu_mul};
use crate::plan::{
    Bounds, Constant, ConstantId, Fusion, KvHeads, KvLayout, KvStorage, Linear, Norm, Numerics,
    Precision, RopeAppend, Tensor, TensorId, Weight,
};
use kernels::gemm::MAX_FUSED_ROWS;

const WIDTH: usize = 8;
/// All addresses are above this, and all other arguments below.
const MEMORY: u64 = 1 << 40;
const STEP: u64 = MEMORY + 0x5000;
const TENSORS: [u64; 3] = [MEMORY + 0x10_0000, MEMORY + 0x20_0000, MEMORY + 0x30_0000];
const WEIGHTS: [u64; 2] = [MEMORY + 0x40_0000, MEMORY + 0x50_0000];
const WORKSPACE: u64 = MEMORY + 0x6000;
const COUNTERS: u64 = MEMORY + 0x7000;
const DRAWN: u64 = MEMORY + 0x7800;
const ROPE: u64 = MEMORY + 0x60_0000;
const POOLS: [KvPool; 2] = [
    KvPool { k: MEMORY + 0x70_0000, v: MEMORY + 0x71_0000 },
    KvPool { k: MEMORY + 0x72_0000, v: MEMORY + 0x73_0000 },
];

/// A plan of `op` alone: activation 0 and 1 have rows of tokens, 2 of logits; weight 0 is `[8, 8]`,
/// 1 a vector.
fn plan(op: Op) -> Plan {
    let tensor =
        |rows| Tensor { name: "t".to_owned(), layer: None, rows, width: WIDTH, dtype: Dtype::F32 };
    let weight = |rows| Weight::whole(format!("weight of {rows}"), rows, WIDTH, Dtype::F32);
    let rope = Constant { name: "rope".to_owned(), rows: 64, cols: 4, data: vec![0.0; 256].into() };
    let bounds = Bounds {
        max_tokens: 40,
        max_seqs: 2,
        max_q_len: 40,
        max_logit_rows: 3,
        max_kv_len: 64,
        mixed: false,
    };
    let kv = KvLayout {
        layers: vec![KvHeads { num_kv_heads: 1, head_dim: 4 }; 2],
        num_pages: 2,
        windows: None,
        dtype: Dtype::F32,
        storage: KvStorage::default(),
    };
    let mut plan = testing::empty(bounds, kv);
    plan.tensors = vec![tensor(Rows::Tokens), tensor(Rows::Tokens), tensor(Rows::Logits)];
    plan.weights = vec![weight(WIDTH), weight(1)];
    plan.constants = vec![rope];
    plan.ops = vec![op];
    (plan.output, plan.next_tokens) = (view(2), Some(view(2)));
    plan
}

fn view(tensor: usize) -> View {
    View { tensor: TensorId(tensor), start: 0, width: WIDTH }
}

fn addresses() -> Addresses {
    Addresses {
        weights: WEIGHTS.to_vec(),
        constants: vec![ROPE],
        kv_pools: POOLS.to_vec(),
        states: vec![],
        tensors: TENSORS.to_vec(),
        step: STEP,
        workspace: WORKSPACE,
        drawn: DRAWN,
        counters: COUNTERS,
        ranks: Vec::new(),
    }
}

/// The launches of `plan`; the GEMM of `sm_90a` alone takes tensor maps.
fn lowered(plan: &Plan) -> Result<Vec<Launch>, ExecError> {
    let launches = lower(plan, &addresses(), Gpu::HOPPER, |spec| Ok(spec.emulated()))?;
    let launches: Vec<Launch> = launches.into_iter().flatten().collect();
    for launch in &launches {
        let takes_maps = launch.args.windows(8).any(|bytes| bytes == b"simt-map");
        assert_eq!(takes_maps, launch.symbol.contains("_sm90"), "{}", launch.symbol);
    }
    Ok(launches)
}

fn launch(op: Op) -> Launch {
    let mut launches = lowered(&plan(op)).unwrap();
    assert_eq!(launches.len(), 1);
    launches.remove(0)
}

/// The arguments that are addresses.
fn pointers(launch: &Launch) -> Vec<u64> {
    let ends = launch.arg_offsets[1..].iter().copied().chain([launch.args.len() as u32]);
    let arguments = launch.arg_offsets.iter().copied().zip(ends);
    arguments
        .filter_map(|(start, end)| launch.args[start as usize..end as usize].first_chunk::<8>())
        .map(|bytes| u64::from_le_bytes(*bytes))
        .filter(|&value| value >= MEMORY)
        .collect()
}

fn input(index: usize) -> u64 {
    STEP + 4 * index as u64
}

const NUM_TOKENS: usize = StepLayout::NUM_TOKENS;
const NUM_LOGIT_ROWS: usize = StepLayout::NUM_LOGIT_ROWS;

#[test]
fn views_become_addresses() {
    let layout = plan(Op::GatherRows { x: view(0), out: view(2) }).step_layout();
    let half = |tensor, start| View { start, width: 4, ..view(tensor) };
    let (table, weight) = (WeightId(0), WeightId(1));
    let [a, b, c] = TENSORS;
    let cases = [
        (
            Op::Embedding { table, out: view(1), scale: 1.0 },
            vec![input(NUM_TOKENS), input(layout.token_ids), DRAWN, WEIGHTS[0], b],
        ),
        (
            Op::RmsNorm { x: view(0), weight, out: view(1), eps: 1e-5 },
            vec![input(NUM_TOKENS), a, WEIGHTS[1], b],
        ),
        (
            Op::RmsNorm { x: view(2), weight, out: view(2), eps: 1e-5 },
            vec![input(NUM_LOGIT_ROWS), c, WEIGHTS[1], c],
        ),
        (
            Op::Rope { x: half(0, 4), table: ConstantId(0), head_dim: 4 },
            vec![input(NUM_TOKENS), input(layout.positions), ROPE, a + 16],
        ),
        (
            Op::KvAppend { layer: 1, k: half(0, 0), v: half(0, 4) },
            vec![input(NUM_TOKENS), input(layout.slot_mapping), a, a + 16, POOLS[1].k, POOLS[1].v],
        ),
        (
            Op::RopeAppend(RopeAppend {
                layer: 1,
                norm: None,
                q: half(0, 4),
                k: half(1, 0),
                v: half(1, 4),
                table: ConstantId(0),
                head_dim: 4,
            }),
            vec![
                input(NUM_TOKENS),
                input(layout.positions),
                input(layout.slot_mapping),
                ROPE,
                a + 16,
                b,
                b + 16,
                POOLS[1].k,
                POOLS[1].v,
            ],
        ),
        (silu_mul(half(0, 0), half(0, 4), half(1, 4)), vec![input(NUM_TOKENS), a, a + 16, b + 16]),
        (
            Op::GatherRows { x: view(0), out: view(2) },
            vec![input(NUM_LOGIT_ROWS), input(layout.logit_rows), a, c],
        ),
    ];
    for (op, expected) in cases {
        let name = op.name();
        assert_eq!(pointers(&launch(op)), expected, "{name}");
    }
}

#[test]
fn sampling_takes_the_step_inputs_and_a_workspace() {
    let out = View { start: 3, ..view(2) };
    let plan = plan(Op::Sample { x: view(2), out });
    let launches = lowered(&plan).unwrap();
    let [_, _, c] = TENSORS;
    let Sample { max_rows, vocab_size } = sample(&plan, view(2));
    assert_eq!((max_rows, vocab_size), (plan.bounds.max_logit_rows, WIDTH));
    let (scratch, zeroed) = (workspace_bytes(&plan, Gemm::Halfwarp), counter_bytes(&plan));
    let draw = pointers(&launches[2]);
    let (rows, sampling) = (input(NUM_LOGIT_ROWS), input(plan.step_layout().sampling));
    assert_eq!((launches.len(), &draw[..3]), (3, &[rows, sampling, c][..]));
    let edits = input(StepBuffer::new(&plan, Gpu::HOPPER).edits);
    assert_eq!(pointers(&launches[0])[..4], [rows, sampling, edits, c]);
    assert_eq!(draw[9..], [DRAWN, c + 12]);
    let within = |addresses: &[u64], start: u64, bytes: usize| {
        addresses.iter().all(|address| (start..start + bytes as u64).contains(address))
    };
    // Maxima, undecided bins, bests and lists; lengths and counters.
    assert!(within(&draw[3..7], WORKSPACE, scratch) && within(&draw[7..9], COUNTERS, zeroed));
}

#[test]
fn a_linear_layer_takes_what_it_has() {
    let linear = |bias, residual| {
        Op::Linear(Linear { bias, residual, ..Linear::new(view(0), WeightId(0), view(1)) })
    };
    let [a, b, _] = TENSORS;
    let plain = pointers(&launch(linear(None, None)));
    assert_eq!(plain, [input(NUM_TOKENS), a, WEIGHTS[0], b]);
    let both = pointers(&launch(linear(Some(WeightId(1)), Some(view(1)))));
    assert_eq!(both, [input(NUM_TOKENS), a, WEIGHTS[0], WEIGHTS[1], b, b]);
}

const ATTENTION: Attention = Attention {
    layer: 1,
    q: View { tensor: TensorId(0), start: 0, width: WIDTH },
    out: View { tensor: TensorId(1), start: 0, width: WIDTH },
    num_heads: 2,
    num_kv_heads: 1,
    head_dim: 4,
    softmax_scale: 0.5,
    causal: true,
    window: None,
    sinks: None,
    softcap: None,
};

#[test]
fn attention_is_launched_for_prompts_for_decoding_or_for_both() {
    let [q, out, _] = TENSORS;
    let launches_of = |bounds: fn(&mut Bounds)| {
        let mut plan = plan(Op::Attention(ATTENTION));
        bounds(&mut plan.bounds);
        (lowered(&plan).unwrap(), plan)
    };
    let is_prefill = |launch: &Launch, plan: &Plan| {
        // The work list is after the inputs: the number of its items, and the items.
        let (layout, k, v) = (plan.step_layout(), POOLS[1].k, POOLS[1].v);
        let work = [layout.len, layout.len + 4].map(input);
        let expected = [&work[..], &[input(layout.block_table), q, k, v, out]].concat();
        assert_eq!((launch.symbol, pointers(launch)), ("attention_prefill_f32_d64", expected));
    };
    let is_decode = |launch: &Launch, plan: &Plan| {
        let (layout, pointers) = (plan.step_layout(), pointers(launch));
        assert_eq!(launch.symbol, "attention_decode_f32_r4_d64");
        assert_eq!(pointers[0], input(layout.len + 1));
        // After the items of prefill, if there may be any.
        assert!(pointers[1] >= input(layout.len + 4));
        assert_eq!(pointers[2..6], [input(layout.block_table), q, POOLS[1].k, POOLS[1].v]);
        // So short a context is not split: there are no partial results, and counters for prefill
        // alone.
        assert_eq!(pointers[6..], [WORKSPACE, WORKSPACE, COUNTERS, out]);
        assert_eq!(workspace_bytes(plan, Gemm::Halfwarp), 0);
        assert_eq!(counter_bytes(plan), attention::sm90::NUM_COUNTERS * size_of::<u32>());
    };

    let (launches, plan) = launches_of(|_| {});
    assert_eq!(launches.len(), 1);
    is_prefill(&launches[0], &plan);

    let (launches, plan) = launches_of(|bounds| bounds.mixed = true);
    assert_eq!(launches.len(), 2);
    is_prefill(&launches[0], &plan);
    is_decode(&launches[1], &plan);

    let (launches, plan) = launches_of(|bounds| (bounds.max_q_len, bounds.max_tokens) = (1, 2));
    assert_eq!(launches.len(), 1);
    is_decode(&launches[0], &plan);
}

#[test]
fn layers_that_see_the_same_keys_share_a_work_list() {
    let mut plan = plan(Op::Attention(ATTENTION));
    let windowed = Attention { window: Some(5), ..ATTENTION };
    let other_layer = Attention { layer: 0, ..windowed };
    plan.ops.extend([windowed, other_layer, ATTENTION].map(Op::Attention));
    let launches = lowered(&plan).unwrap();
    let lists: Vec<_> = launches.iter().map(|launch| pointers(launch)[0]).collect();
    assert_eq!((lists[0], lists[1]), (lists[3], lists[2]));
    assert!(lists[1] > lists[0]);
}

#[test]
fn attention_that_no_kernel_takes_is_an_error_that_names_the_value() {
    type Fault = (&'static str, fn(&mut Attention));
    let faults: [Fault; 5] = [
        ("window is 0", |op| op.window = Some(0)),
        ("num_kv_heads is 3", |op| op.num_kv_heads = 3),
        ("num_kv_heads is 0", |op| op.num_kv_heads = 0),
        ("head_dim is 0", |op| op.head_dim = 0),
        ("head_dim is 257", |op| op.head_dim = 257),
    ];
    for (start, spoil) in faults {
        for max_q_len in [1, 40] {
            let mut op = ATTENTION;
            spoil(&mut op);
            let mut plan = plan(Op::Attention(op));
            plan.bounds.max_q_len = max_q_len;
            let error = lowered(&plan).unwrap_err().to_string();
            assert!(error.starts_with(&format!("attention: {start}: expected")), "{error}");
        }
    }
}

/// Only the work list knows of a causal mask.
#[test]
fn full_attention_is_launched_as_causal() {
    for max_q_len in [1, 40] {
        let [causal, full] = [true, false].map(|causal| {
            let mut plan = plan(Op::Attention(Attention { causal, ..ATTENTION }));
            plan.bounds.max_q_len = max_q_len;
            lowered(&plan).unwrap()
        });
        assert_eq!(causal, full);
    }
}

#[test]
fn sixteen_bits_reach_their_kernels() {
    let symbols = |plan: &Plan| -> Vec<&str> {
        lowered(plan).unwrap().iter().map(|launch| launch.symbol).collect()
    };
    let mut embedding = plan(Op::Embedding { table: WeightId(0), out: view(1), scale: 1.0 });
    embedding.weights[0].parts[0].storage = Dtype::F16;
    assert_eq!(symbols(&embedding), ["gather_rows_f16_f32"]);

    let linear = || {
        let mut plan = plan(Op::Linear(Linear::new(view(0), WeightId(0), view(1))));
        plan.weights[0].parts[0].storage = Dtype::BF16;
        plan.tensors[0].dtype = Dtype::BF16;
        plan
    };
    assert!(symbols(&linear())[0].starts_with("gemm_bf16_small_m"));
    let mut prompt = linear();
    prompt.bounds.max_tokens = 512;
    assert!(
        symbols(&prompt)[0].starts_with("gemm_bf16_sm90") && symbols(&prompt)[0].ends_with("f32")
    );

    // Rows of f32 are rounded when they are appended; the cache's own type is not.
    let mut append = plan(Op::KvAppend { layer: 0, k: view(0), v: view(0) });
    append.kv.dtype = Dtype::F16;
    let from_f32 = symbols(&append)[0];
    append.tensors[0].dtype = Dtype::F16;
    assert_ne!(symbols(&append)[0], from_f32);
}

#[test]
fn types_that_no_kernel_takes_together_are_an_error_that_names_one() {
    let mut plan = plan(Op::Embedding { table: WeightId(0), out: view(1), scale: 1.0 });
    plan.tensors[1].dtype = Dtype::BF16;
    let error = lowered(&plan).unwrap_err().to_string();
    assert_eq!(error, "weight of 8: F32 storage; the kernel takes BF16");
}

#[test]
fn storage_in_blocks_is_an_error_that_names_the_weight() {
    let mut plan = plan(Op::Embedding { table: WeightId(0), out: view(1), scale: 1.0 });
    plan.weights[0].parts[0].storage = Dtype::Q8_0;
    let error = lowered(&plan).unwrap_err().to_string();
    assert_eq!(error, "weight of 8: Q8_0 storage; the kernel takes F32");
    let error = check_weights(&plan, Gemm::Halfwarp).unwrap_err().to_string();
    assert_eq!(error, "weight of 8: Q8_0 storage; the kernels take F32, F16 and BF16");
}

#[test]
fn a_shape_that_no_kernel_takes_names_the_operation() {
    let rope = || Op::Rope { x: view(0), table: ConstantId(0), head_dim: 2 };
    let error = lowered(&plan(rope())).unwrap_err().to_string();
    assert!(error.starts_with("rope: rotary_dim is 4"), "{error}");
}

#[test]
fn nothing_to_compute_is_no_launch() {
    let mut empty = plan(Op::GatherRows { x: view(0), out: view(2) });
    empty.bounds.max_logit_rows = 0;
    assert_eq!(lowered(&empty).unwrap(), []);
}

/// The symbols that a decoder's layer is launched by, in a plan of one of the buckets.
fn layer_symbols(plan: &Plan) -> Vec<&'static str> {
    let address = |index: usize| MEMORY + index as u64 * 0x1000_0000;
    let addresses = Addresses {
        weights: (0..plan.weights.len()).map(address).collect(),
        constants: vec![ROPE],
        kv_pools: POOLS[..1].to_vec(),
        states: vec![],
        tensors: (0..plan.tensors.len()).map(address).collect(),
        step: STEP,
        workspace: WORKSPACE,
        drawn: DRAWN,
        counters: COUNTERS,
        ranks: Vec::new(),
    };
    let launches = lower(plan, &addresses, Gpu::HOPPER, |spec| Ok(spec.emulated())).unwrap();
    let symbols = launches.iter().flatten().map(|launch| launch.symbol);
    // Between the embedding, and the gather before the logits.
    let is_gather = |symbol: &&str| symbol.starts_with("gather_rows");
    symbols.skip(1).take_while(|symbol| !is_gather(symbol)).collect()
}

#[test]
fn a_layer_of_a_decode_step_is_fused() {
    let [qwen, phi] = Decoder::REAL;
    let num_launches = |decoder: Decoder, max_seqs: usize| {
        let plan = decoder.plan(max_seqs, 1);
        [
            layer_symbols(&plan).len(),
            layer_symbols(&fused(&plan, Libraries::default(), Gpu::HOPPER)).len(),
        ]
    };
    for decoder in [qwen, phi] {
        for max_seqs in [1, MAX_FUSED_ROWS] {
            assert_eq!(num_launches(decoder, max_seqs), [10, 5], "{decoder:?}");
        }
    }
    // More rows than a norm is fused for, and f32.
    assert_eq!(num_launches(qwen, 32), [10, 7]);
    assert_eq!(num_launches(Decoder { precision: Precision::F32, ..qwen }, 1), [10, 8]);
}

/// A layer as the decoder makes it, with `fusion`.
fn with_fusion(decoder: Decoder, rows: usize, fusion: Fusion) -> Plan {
    let mut plan = decoder.plan(rows, 1);
    plan.set_fusion(fusion);
    plan.unfuse_residuals();
    plan
}

/// Each fusion is a choice of its own, and each that is off costs its launches.
#[test]
fn what_is_off_is_launched_by_itself() {
    let [qwen, _] = Decoder::REAL;
    let num_launches_of = |decoder, rows, fusion: &str| {
        let plan = with_fusion(decoder, rows, fusion.parse().unwrap());
        LoweredPlan::new(&plan, Target::Sm90a).unwrap().num_launches()
    };
    let num_launches = |rows, fusion: &str| num_launches_of(qwen, rows, fusion);
    // Embedding, a layer, gather, norm, logits, three for the tokens.
    for rows in [1, MAX_FUSED_ROWS] {
        assert_eq!(num_launches(rows, "on"), 1 + 5 + 6);
        assert_eq!(num_launches(rows, "off"), 1 + 12 + 6);
        assert_eq!(num_launches(rows, "norm_gemm"), 1 + 10 + 6);
        assert_eq!(num_launches(rows, "gemm_swiglu"), 1 + 11 + 6);
        assert_eq!(num_launches(rows, "rope_append"), 1 + 10 + 6);
        assert_eq!(num_launches(rows, "residual"), 1 + 10 + 6);
    }
    // More rows than a norm is fused for.
    assert_eq!(num_launches(32, "on"), 1 + 7 + 6);
    assert_eq!(num_launches(32, "off"), 1 + 12 + 6);
    // Two norms of heads; in a prompt too.
    let qwen3 = Decoder { qk_norm: true, ..qwen };
    let num_launches = |fusion: &str| num_launches_of(qwen3, 1, fusion);
    let fusions = ["on", "off", "qk_norm", "rope_append", "rope_append,qk_norm"];
    assert_eq!(fusions.map(num_launches), [5, 14, 14, 12, 10].map(|of_layer| 1 + of_layer + 6));
    let prompt = fused(&qwen3.plan(64, 64), Libraries::default(), Gpu::HOPPER);
    let names = prompt.ops.iter().map(Op::name).filter(|name| name.contains("rope"));
    assert_eq!(names.collect::<Vec<_>>(), ["norm_rope_append"]);
}

#[test]
fn what_the_fused_kernels_do_not_take_is_not_fused() {
    let num_fused = |change: fn(&mut Plan)| {
        let mut plan = Decoder::SMALL.plan(1, 1);
        change(&mut plan);
        plan.ops.len() - fused(&plan, Libraries::default(), Gpu::HOPPER).ops.len()
    };
    assert_eq!(num_fused(|_| {}), 5);
    // A residual after a norm, and rows that are not aligned; a gate needs no norm.
    assert_eq!(
        num_fused(|plan| {
            let Op::Linear(linear) = &mut plan.ops[2] else { panic!("{:?}", plan.ops[2]) };
            linear.residual = Some(linear.out);
        }),
        4
    );
    assert_eq!(num_fused(|plan| plan.tensors[0].width += 2), 3);
    assert_eq!(num_fused(|plan| _ = plan.ops.remove(7)), 4);
}

#[test]
fn a_router_is_fused_for_few_tokens_of_16_bits() {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/goldens/qwen3-moe");
    let model = crate::Model::open(golden).unwrap();
    let num_fused = |rows, precision: Precision, batch_invariant, gemm| {
        let numerics = Numerics { batch_invariant, ..precision.into() };
        let bounds = Bounds { max_kv_len: 64, ..Bounds::one_sequence(rows) };
        let plan = model.plan(&numerics, bounds, 2).unwrap();
        let libraries = Libraries { gemm, ..Libraries::default() };
        let names = fused(&plan, libraries, Gpu::HOPPER).ops.into_iter().map(|op| op.name());
        names.filter(|&name| name == "norm_route").count()
    };
    for precision in [Precision::F16, Precision::BF16] {
        for rows in [1, MAX_FUSED_ROWS] {
            assert_eq!(num_fused(rows, precision, false, Gemm::Halfwarp), 2);
        }
    }
    assert_eq!(num_fused(MAX_FUSED_ROWS + 1, Precision::F16, false, Gemm::Halfwarp), 0);
    assert_eq!(num_fused(1, Precision::F32, false, Gemm::Halfwarp), 0);
    assert_eq!(num_fused(1, Precision::F16, true, Gemm::Halfwarp), 0);
    assert_eq!(num_fused(1, Precision::F16, false, Gemm::Cublas), 0);
}

#[test]
fn a_fused_linear_layer_of_f32_is_an_error_that_names_it() {
    let norm = Some(Norm { weight: WeightId(1), eps: 1e-6 });
    let linear = Linear { norm, ..Linear::new(view(0), WeightId(0), view(1)) };
    let error = lowered(&plan(Op::Linear(linear))).unwrap_err().to_string();
    assert_eq!(
        error,
        "norm_linear: operand bits is 32: expected 16 for a layer with a fused norm or gate"
    );
}
