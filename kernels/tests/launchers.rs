//! Launch geometry of every launcher: odd shapes, nothing to do, limits.

use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError};
use cuda_std::tensor_map::TensorMapSpec;
use half::{bf16, f16};
use kernels::Rows;
use kernels::all_reduce::{
    Algorithm, AllReduce, AllReduceNorm, NormOperands, Ranks, Workspace, one_shot_max_bytes,
};
use kernels::attention::sm90::fp8::Mode;
use kernels::attention::{
    Attention, AttentionElement, AttentionFp8, AttentionFp8Operands, AttentionOperands,
    AttentionWorkspace, SeqInputs,
};
use kernels::element::{Dtype, NarrowedFrom, Number};
use kernels::gather_rows::GatherRows;
use kernels::gemm::{
    Fp8Accumulate, GemmEpilogue, GemmEpilogueOperands, Gpu, Linear, LinearFp8, LinearFp8Operands,
    LinearOperands, Out16, OutputOf, SumOrder, Target, WeightScales,
};
use kernels::kv_cache::KvAppend;
use kernels::kv_cache::append_fp8::{AppendFp8, AppendFp8Operands, HeadScales};
use kernels::rms_norm::RmsNorm;
use kernels::rope::Rope;
use kernels::rope_append::{RopeAppend, RopeAppendOperands};
use kernels::sampling::{Sample, SampleWorkspace};
use kernels::silu_mul::SiluMul;

/// A device address that starts an allocation.
fn ptr<T>(at: u64) -> DevicePtr<T> {
    DevicePtr::new(at * 0x1000)
}

fn rows<T>(row_stride: usize) -> Rows<T> {
    Rows::new(ptr(1), row_stride)
}

/// Symbol, grid, threads and shared memory of a launch that there must be.
fn of(launch: Result<Option<Launch>, LaunchError>) -> (&'static str, [u32; 3], u32, u32) {
    let launch = launch.expect("a right shape").expect("something to do");
    let Geometry { grid, block, shared_bytes } = launch.geometry;
    assert_eq!(block[1..], [1, 1]);
    assert_eq!(launch.arg_offsets.first(), Some(&0));
    (launch.symbol, grid, block[0], shared_bytes)
}

fn is_nothing(launch: Result<Option<Launch>, LaunchError>) -> bool {
    launch == Ok(None)
}

#[test]
fn rms_norm_takes_a_warp_or_a_block_a_group() {
    let norm = |max_rows, num_groups, group_size| {
        RmsNorm { max_rows, num_groups, group_size, eps: 1e-6 }.launch(
            ptr(9),
            rows::<f32>(4096),
            ptr(2),
            rows::<f32>(4096),
        )
    };
    assert_eq!(of(norm(3, 7, 128)), ("rms_norm_f32_warp", [3, 1, 1], 256, 0));
    assert_eq!(of(norm(3, 1, 1025)), ("rms_norm_f32_block", [3, 1, 1], 256, 32));
    assert!(is_nothing(norm(0, 7, 128)));
    assert!(is_nothing(norm(3, 0, 128)));
    assert!(is_nothing(norm(3, 7, 0)));
    assert!(matches!(
        norm(1, 1, (3 << 20) + 1),
        Err(LaunchError::Shape { what: "group_size", .. })
    ));
    assert!(matches!(
        norm(usize::MAX, 2, 2048),
        Err(LaunchError::Grid { axis: "x", blocks: usize::MAX, .. })
    ));
}

#[test]
fn elementwise_launches_cover_their_columns() {
    let gather = |max_rows, width| {
        GatherRows { max_rows, width }.launch(ptr(9), ptr(8), rows::<f32>(width), rows(width))
    };
    assert_eq!(of(gather(5, 1025)), ("gather_rows_f32", [5, 2, 1], 128, 0));
    assert!(is_nothing(gather(0, 1025)) && is_nothing(gather(5, 0)));
    let too_wide = gather(1, 65_536 * 1024);
    assert!(matches!(
        too_wide,
        Err(LaunchError::Grid { axis: "y", blocks: 65_536, limit: 65_535 })
    ));

    let silu = |max_rows, width| {
        SiluMul { max_rows, width }.launch(ptr(9), rows::<f32>(width), rows(width), rows(width))
    };
    assert_eq!(of(silu(5, 4864)), ("silu_mul_f32", [5, 5, 1], 128, 0));
    assert!(is_nothing(silu(0, 4864)));
    let too_far =
        SiluMul { max_rows: 5, width: 8 }.launch(ptr(9), rows::<f32>(1 << 32), rows(8), rows(8));
    assert!(matches!(too_far, Err(LaunchError::Shape { what: "row stride", .. })));

    let append = |max_tokens, num_kv_heads| {
        KvAppend { max_tokens, num_kv_heads, head_dim: 80 }.launch(
            ptr(9),
            ptr(8),
            rows::<f32>(1040),
            rows(1040),
            ptr(2),
            ptr(3),
        )
    };
    assert_eq!(of(append(4, 3)), ("kv_append_f32", [4, 1, 1], 128, 0));
    assert_eq!(of(append(4, 13)), ("kv_append_f32", [4, 2, 1], 128, 0));
    assert!(is_nothing(append(0, 4)));
}

#[test]
fn rope_takes_a_thread_eight_pairs() {
    let rope = |max_tokens, rotary_dim| {
        Rope { max_tokens, num_heads: 9, head_dim: 96, rotary_dim }.launch(
            ptr(9),
            ptr(8),
            ptr(2),
            rows::<f32>(9 * 96),
        )
    };
    assert_eq!(of(rope(7, 96)), ("rope_f32", [7, 1, 1], 128, 0));
    assert!(is_nothing(rope(0, 96)) && is_nothing(rope(7, 0)));
    for wrong in [98, 95] {
        assert!(matches!(rope(7, wrong), Err(LaunchError::Shape { what: "rotary_dim", .. })));
    }
}

#[test]
fn rope_append_takes_a_thread_a_vector() {
    let append = |max_tokens, num_heads, rotary_dim| {
        let append =
            RopeAppend { max_tokens, num_heads, num_kv_heads: 2, head_dim: 64, rotary_dim };
        append.launch(
            ptr(9),
            &RopeAppendOperands {
                positions: ptr(8),
                slot_mapping: ptr(7),
                table: ptr(6),
                q: rows::<f32>(18 * 64),
                k: rows(18 * 64),
                v: rows(18 * 64),
                k_pool: ptr::<f16>(2),
                v_pool: ptr(3),
            },
        )
    };
    // 16 heads of 4 vectors of pairs, and 2 of V of 8.
    assert_eq!(of(append(7, 14, 64)), ("rope_append_f32_f16", [7, 1, 1], 128, 0));
    assert_eq!(of(append(7, 27, 64)).1, [7, 2, 1]);
    // 14 + 2 heads of a vector, and 2 of 6 of K and 8 of V.
    assert_eq!(of(append(1, 14, 16)).1, [1, 1, 1]);
    assert!(is_nothing(append(0, 14, 64)));
    for wrong in [66, 63] {
        assert!(matches!(append(7, 14, wrong), Err(LaunchError::Shape { what: "rotary_dim", .. })));
    }
    let wide = append(1, usize::MAX, 64);
    assert!(matches!(wide, Err(LaunchError::Shape { what: "row width", .. })));
}

#[test]
fn sampling_has_blocks_for_a_row() {
    let sample = |max_rows, vocab_size| {
        let workspace = SampleWorkspace { scratch: ptr(16), zeroed: ptr(32) };
        Sample { max_rows, vocab_size }
            .launches(ptr(9), ptr(8), ptr(7), rows(vocab_size), &workspace, ptr(2))
            .map(|launches| launches.into_iter().map(|launch| of(Ok(Some(launch)))).collect())
    };
    let launches: Vec<_> = sample(3, 151_936).unwrap();
    let names = ["sample_maximum_f32", "sample_histogram_f32", "sample_draw_f32"];
    assert_eq!(launches, names.map(|name| (name, [3, 19, 1], 1024, 0)));
    assert_eq!(sample(3, 8192).unwrap()[2].1, [3, 1, 1]);
    let of_3 = Sample { max_rows: 3, vocab_size: 151_936 };
    // A list of 4,096 places, eight words and 19 blocks' two bests twice; 2,048 bins of a mass and a
    // count, each array to a multiple of 16.
    assert_eq!(of_3.scratch_bytes(), 3 * (4096 * 8 + 32) + 2 * 464);
    assert_eq!(of_3.zeroed_bytes(), 3 * 2048 * 12 + 2 * 16);
    assert_eq!(sample(0, 151_936), Ok(Vec::new()));
    assert!(matches!(sample(3, 0), Err(LaunchError::Shape { what: "vocab_size", .. })));
}

#[test]
fn the_types_of_the_rows_name_the_kernel() {
    fn norm<X: Number, Y: NarrowedFrom<X>>(group_size: usize) -> &'static str {
        let norm = RmsNorm { max_rows: 1, num_groups: 1, group_size, eps: 1e-6 };
        of(norm.launch(ptr(9), rows::<X>(4096), ptr(2), rows::<Y>(4096))).0
    }
    fn append<C: Number>(from_f32: bool) -> &'static str {
        let append = KvAppend { max_tokens: 1, num_kv_heads: 1, head_dim: 64 };
        let [k_pool, v_pool] = [ptr::<C>(2), ptr(3)];
        of(if from_f32 {
            append.launch_from_f32(ptr(9), ptr(8), rows(64), rows(64), k_pool, v_pool)
        } else {
            append.launch(ptr(9), ptr(8), rows(64), rows(64), k_pool, v_pool)
        })
        .0
    }
    fn others<E: Number>() -> [&'static str; 3] {
        let gather = GatherRows { max_rows: 1, width: 64 };
        let rope = Rope { max_tokens: 1, num_heads: 1, head_dim: 64, rotary_dim: 64 };
        let silu = SiluMul { max_rows: 1, width: 64 };
        [
            of(gather.launch(ptr(9), ptr(8), rows::<E>(64), rows(64))).0,
            of(rope.launch(ptr(9), ptr(8), ptr(2), rows::<E>(64))).0,
            of(silu.launch(ptr(9), rows::<E>(64), rows(64), rows(64))).0,
        ]
    }
    assert_eq!(others::<f16>(), ["gather_rows_f16_f32", "rope_f16", "silu_mul_f16"]);
    assert_eq!(others::<bf16>(), ["gather_rows_bf16_f32", "rope_bf16", "silu_mul_bf16"]);
    assert_eq!(norm::<f32, f16>(896), "rms_norm_f32_f16_warp");
    assert_eq!(norm::<f32, bf16>(3072), "rms_norm_f32_bf16_block");
    assert_eq!(norm::<f16, f16>(128), "rms_norm_f16_warp");
    assert_eq!(norm::<bf16, bf16>(2048), "rms_norm_bf16_block");
    assert_eq!([append::<f16>(false), append::<f16>(true)], ["kv_append_f16", "kv_append_f32_f16"]);
    assert_eq!(append::<bf16>(false), "kv_append_bf16");
    assert_eq!([append::<f32>(false), append::<f32>(true)], ["kv_append_f32"; 2]);
}

fn linear(
    max_rows: usize,
    n: usize,
    k: usize,
    x: Rows<f32>,
) -> Result<Option<Launch>, LaunchError> {
    let operands = LinearOperands { x, weight: rows(k), bias: None, residual: None, out: rows(n) };
    Linear { max_rows, n, k }.launch(Gpu::HOPPER, SumOrder::Fastest, ptr(9), &operands)
}

#[test]
fn linear_chooses_by_shape() {
    let of_shape = |max_rows, n, k| of(linear(max_rows, n, k, rows(k)));
    assert_eq!(of_shape(1, 897, 896), ("gemm_f32_small_m1", [225, 1, 1], 128, 0));
    assert_eq!(of_shape(3, 896, 896), ("gemm_f32_small_m4", [112, 1, 1], 128, 0));
    assert_eq!(of_shape(16, 17, 896), ("gemm_f32_small_m16", [2, 1, 1], 128, 0));
    assert_eq!(of_shape(17, 65, 64), ("gemm_f32_64x64", [1, 2, 1], 128, 32_768));
    assert_eq!(of_shape(1, 64, 63), ("gemm_f32_64x64_unaligned", [1, 1, 1], 128, 32_768));
    let shifted = Rows::new(ptr(1).add(1), 64);
    assert_eq!(of(linear(1, 64, 64, shifted)).0, "gemm_f32_64x64_unaligned");
    assert_eq!(of(linear(1, 64, 64, rows(65))).0, "gemm_f32_64x64_unaligned");
}

/// The large tile is taken where each SM of the GPU gets one of them, whatever GPU it is.
#[test]
fn a_linear_layer_takes_the_large_tile_where_it_fills_the_gpu() {
    for num_sms in [1, 28, 82, 108, 132, 170] {
        for (m, n) in [(17, 64), (300, 896), (512, 4096), (1024, 1024), (1100, 3072), (4096, 4096)]
        {
            let large = [num_tiles(m, 128), num_tiles(n, 256), 1];
            let small = [num_tiles(m, 64), num_tiles(n, 64), 1];
            let is_full = large[0] * large[1] >= num_sms;
            let operands = LinearOperands {
                x: rows(64),
                weight: rows(64),
                bias: None,
                residual: None,
                out: rows(n),
            };
            let gpu = Gpu { num_sms: num_sms as usize, ..Gpu::HOPPER };
            let linear = Linear { max_rows: m, n, k: 64 };
            let (_, grid, ..) = of(linear.launch(gpu, SumOrder::Fastest, ptr(9), &operands));
            assert_eq!(grid, if is_full { large } else { small }, "{m} x {n} on {num_sms} SMs");
        }
    }
}

fn num_tiles(size: usize, tile: usize) -> u32 {
    size.div_ceil(tile) as u32
}

#[test]
fn linear_without_rows_or_columns_is_nothing() {
    for (max_rows, n, k) in [(0, 64, 64), (0, 64, 63), (1, 0, 64), (32, 0, 64)] {
        assert!(is_nothing(linear(max_rows, n, k, rows(k))), "{max_rows} {n} {k}");
    }
    assert!(matches!(linear(1, 64, 1 << 31, rows(64)), Err(LaunchError::Shape { what: "k", .. })));
}

#[test]
fn absent_operands_are_null() {
    let launch = linear(1, 64, 64, rows(64)).unwrap().unwrap();
    let bias = launch.arg_offsets[7] as usize;
    assert_eq!(launch.args[bias..bias + 16], [0; 16]);
}

#[test]
fn the_epilogue_of_a_library_covers_its_columns() {
    fn launch<P: Number, E: OutputOf<P>>(
        [max_rows, width, row_stride]: [usize; 3],
    ) -> Result<Option<Launch>, LaunchError> {
        let operands = GemmEpilogueOperands::<P, E> {
            product: rows(row_stride),
            bias: None,
            residual: None,
            out: rows(row_stride),
        };
        GemmEpilogue { max_rows, width }.launch(ptr(9), &operands)
    }
    let wide = [5, 1025, 1025];
    assert_eq!(of(launch::<f32, f32>(wide)), ("gemm_epilogue_f32", [5, 2, 1], 128, 0));
    let symbols = [launch::<f32, f16>, launch::<f32, bf16>, launch::<f16, f32>, launch::<f16, f16>];
    assert_eq!(
        symbols.map(|launch| of(launch(wide)).0),
        [
            "gemm_epilogue_f32_f16",
            "gemm_epilogue_f32_bf16",
            "gemm_epilogue_f16_f32",
            "gemm_epilogue_f16"
        ]
    );
    assert!(is_nothing(launch::<f32, f32>([0, 8, 8])) && is_nothing(launch::<f32, f32>([5, 0, 8])));
    let error = launch::<f16, f32>([1, 8, 1 << 32]);
    assert!(matches!(error, Err(LaunchError::Shape { what: "row stride", .. })));
    let error = launch::<f16, f32>([1, 1 << 32, 8]);
    assert!(matches!(error, Err(LaunchError::Shape { what: "width", .. })));
    let error = launch::<f16, f32>([1, 65_536 * 1024, 8]);
    assert!(matches!(error, Err(LaunchError::Grid { axis: "y", .. })));
}

/// A Hopper GPU with the kernels of every GPU.
const SM_80: Gpu = Gpu { target: Target::Sm80, ..Gpu::HOPPER };

fn attention() -> Attention {
    Attention {
        max_tokens: 512,
        max_seqs: 4,
        max_q_len: 512,
        max_decode_q_len: 1,
        max_kv_len: 8192,
        max_pages_per_seq: 128,
        num_pages: 512,
        num_heads: 14,
        num_kv_heads: 2,
        head_dim: 64,
        softmax_scale: 0.125,
        causal: true,
        window: None,
        batch_invariant: false,
    }
}

const SEQS: SeqInputs = SeqInputs {
    num_seqs: DevicePtr::new(0x9000),
    cu_seqlens_q: DevicePtr::new(0x9100),
    kv_lens: DevicePtr::new(0x9200),
    block_table: DevicePtr::new(0x9300),
    num_prefill_items: DevicePtr::new(0x9400),
    prefill_items: DevicePtr::new(0x9410),
    num_decode_items: DevicePtr::new(0x9404),
    decode_items: DevicePtr::new(0x9800),
};

fn operands<E>(attention: &Attention) -> AttentionOperands<E> {
    let width = attention.num_heads * attention.head_dim;
    AttentionOperands { q: rows(width), k_pool: ptr(2), v_pool: ptr(3), out: rows(width) }
}

fn prefill(attention: Attention) -> Result<Option<Launch>, LaunchError> {
    prefill_of::<f32>(attention)
}

fn prefill_of<E: AttentionElement>(attention: Attention) -> Result<Option<Launch>, LaunchError> {
    let maps = &mut |spec: &TensorMapSpec| spec.emulated();
    attention.prefill(SM_80, &SEQS, &operands::<E>(&attention), &workspace(), maps)
}

fn workspace() -> AttentionWorkspace {
    AttentionWorkspace { partials: ptr(4), counters: ptr(5) }
}

fn decode(attention: Attention) -> Result<Option<Launch>, LaunchError> {
    attention.decode(SM_80, &SEQS, &operands::<f32>(&attention), None, &workspace())
}

#[test]
fn prefill_has_items_for_any_cut_of_the_tokens() {
    let grid = [11 * 14, 1, 1];
    assert_eq!(of(prefill(attention())), ("attention_prefill_f32_d64", grid, 128, 59_392));
    let head_dim = |head_dim| of(prefill(Attention { head_dim, ..attention() })).0;
    assert_eq!(head_dim(2), "attention_prefill_f32_d64");
    assert_eq!(head_dim(80), "attention_prefill_f32_d96");
    assert_eq!(head_dim(128), "attention_prefill_f32_d128");
    assert_eq!(head_dim(130), "attention_prefill_f32_d256");
    assert!(is_nothing(prefill(Attention { max_tokens: 0, ..attention() })));
    assert!(is_nothing(prefill(Attention { max_seqs: 0, ..attention() })));
    assert!(is_nothing(prefill(Attention { max_q_len: 1, ..attention() })), "all decode");
}

#[test]
fn decode_splits_by_model_and_groups_query_heads() {
    assert_eq!(of(decode(attention())).0, "attention_decode_f32_r8_d64");
    let grid = |attention| of(decode(attention)).1;
    // As many blocks as are resident, two an SM in f32, or as there are items.
    assert_eq!(grid(Attention { max_seqs: 64, ..attention() }), [2 * 132, 1, 1]);
    assert_eq!(grid(attention()), [4 * 2 * 32, 1, 1]);
    assert_eq!(grid(Attention { max_kv_len: 64, ..attention() }), [4 * 2, 1, 1]);
    assert_eq!(grid(Attention { max_kv_len: 65, ..attention() }), [4 * 2 * 2, 1, 1]);
    assert_eq!(grid(Attention { num_heads: 34, max_kv_len: 64, ..attention() }), [4 * 4, 1, 1]);
    let items = |attention: Attention| attention.max_decode_items(SM_80, Dtype::F16);
    // At most the square root of eight times the pages that a sequence sees, 128 and 34.
    assert_eq!(items(attention()), 4 * 2 * 32);
    assert_eq!(items(Attention { window: Some(2048), ..attention() }), 4 * 2 * 16);
    assert_eq!(attention().num_partials(Dtype::F16), 4 * 14 * 32 * 66);
    assert_eq!(attention().num_counters(Dtype::F16), 4 * 14 * 32);
    assert_eq!(decode(Attention { max_seqs: 0, ..attention() }), Ok(None));
    assert_eq!(decode(Attention { max_kv_len: 0, ..attention() }), Ok(None));
    assert_eq!(decode(Attention { max_decode_q_len: 0, ..attention() }), Ok(None));
}

#[test]
fn the_workspace_of_decode_stays_small() {
    let many = Attention { max_seqs: 256, max_pages_per_seq: 1024, ..attention() };
    let many = Attention { max_kv_len: 65_536, max_decode_q_len: 16, max_tokens: 8192, ..many };
    assert!(4 * many.num_partials(Dtype::F16) <= 256 << 20);
    let heads = Attention { num_heads: 32, num_kv_heads: 32, head_dim: 128, ..many };
    assert!(4 * heads.num_partials(Dtype::F16) <= 512 << 20);
}

#[test]
fn attention_in_16_bits_has_16_rows_and_half_the_bytes() {
    fn launches<E: AttentionElement>(head_dim: usize) -> [(&'static str, [u32; 3], u32, u32); 2] {
        let attention = Attention { head_dim, ..attention() };
        let prefill = prefill_of::<E>(attention);
        let decode = attention.decode(SM_80, &SEQS, &operands::<E>(&attention), None, &workspace());
        [of(prefill), of(decode)]
    }
    assert_eq!(
        launches::<f16>(64),
        [
            ("attention_prefill_f16_d64", [7 * 14, 1, 1], 128, 49_152),
            ("attention_decode_f16_r16_d64", [4 * 2 * 32, 1, 1], 128, 67_648),
        ]
    );
    let symbols = |head_dim| launches::<bf16>(head_dim).map(|(symbol, ..)| symbol);
    assert_eq!(symbols(72), ["attention_prefill_bf16_d96", "attention_decode_bf16_r16_d96"]);
    let odd = Attention { head_dim: 84, ..attention() };
    assert!(prefill(odd).is_ok());
    let error = prefill_of::<f16>(odd).unwrap_err();
    assert!(error.to_string().starts_with("head_dim is 84: expected a multiple of 8"), "{error}");
}

#[test]
fn attention_rejects_what_no_kernel_takes() {
    for (wrong, field) in [
        (Attention { head_dim: 0, ..attention() }, "head_dim"),
        (Attention { head_dim: 258, ..attention() }, "head_dim"),
        (Attention { num_kv_heads: 3, ..attention() }, "num_kv_heads"),
        (Attention { num_kv_heads: 0, ..attention() }, "num_kv_heads"),
        (Attention { window: Some(0), ..attention() }, "window"),
        (Attention { causal: false, window: Some(5), ..attention() }, "window"),
        (Attention { max_pages_per_seq: 127, ..attention() }, "max_pages_per_seq"),
        (
            Attention { max_kv_len: u32::MAX as usize, max_pages_per_seq: 1 << 26, ..attention() },
            "max_kv_len",
        ),
    ] {
        assert!(matches!(prefill(wrong), Err(LaunchError::Shape { what, .. }) if what == field));
        assert!(matches!(decode(wrong), Err(LaunchError::Shape { what, .. }) if what == field));
    }
    for (wrong, field) in [
        (Attention { max_seqs: 65_537, ..attention() }, "max_seqs"),
        (Attention { max_decode_q_len: 17, ..attention() }, "max_decode_q_len"),
    ] {
        assert!(matches!(decode(wrong), Err(LaunchError::Shape { what, .. }) if what == field));
    }
}

#[test]
fn attention_in_8_bits_rejects_what_no_kernel_takes() {
    let right = Attention { head_dim: 128, ..attention() };
    let width = right.num_heads * right.head_dim;
    let right_operands = AttentionFp8Operands {
        q: rows(width),
        k_pool: ptr(2),
        v_pool: ptr(3),
        q_scale: ptr(4),
        k_scale: ptr(5),
        v_scale: ptr(6),
        out: rows(width),
        lse: DevicePtr::null(),
    };
    let prefill = |gpu, attention, operands: AttentionFp8Operands| {
        let maps = &mut |spec: &TensorMapSpec| {
            spec.check().expect("a tensor map");
            spec.emulated()
        };
        let layer = AttentionFp8 { attention, mode: Mode::Strict };
        layer.prefill(gpu, &SEQS, &operands, ptr(7), maps)
    };
    let refused = |gpu, attention, operands| match prefill(gpu, attention, operands) {
        Err(LaunchError::Shape { what, value, .. }) => (what, value),
        other => panic!("{other:?}"),
    };
    let symbol = of(prefill(Gpu::HOPPER, right, right_operands)).0;
    assert_eq!(symbol, "attention_prefill_e4m3_strict_d128");
    let nothing = Attention { max_tokens: 0, ..right };
    assert!(is_nothing(prefill(Gpu::HOPPER, nothing, right_operands)));
    assert_eq!(refused(SM_80, right, right_operands), ("compute capability", 80));
    for head_dim in [0, 8, 72, 272] {
        let wrong = Attention { head_dim, ..right };
        assert_eq!(refused(Gpu::HOPPER, wrong, right_operands), ("head_dim", head_dim));
    }
    for (wrong, field) in [
        (Attention { num_kv_heads: 3, ..right }, "num_kv_heads"),
        (Attention { window: Some(0), ..right }, "window"),
        (Attention { max_pages_per_seq: 127, ..right }, "max_pages_per_seq"),
    ] {
        assert_eq!(refused(Gpu::HOPPER, wrong, right_operands).0, field);
    }
    let odd = AttentionFp8Operands { q: rows(width + 8), ..right_operands };
    assert_eq!(refused(Gpu::HOPPER, right, odd), ("row stride", width + 8));
    let odd = AttentionFp8Operands { out: rows(width + 4), ..right_operands };
    assert_eq!(refused(Gpu::HOPPER, right, odd).0, "head_dim", "it names the vectors of a head");
}

#[test]
fn an_append_in_8_bits_rejects_what_no_vector_loads() {
    let right = AppendFp8 { max_tokens: 33, num_heads: 4, num_kv_heads: 2, head_dim: 64 };
    let right_operands = AppendFp8Operands::<f16> {
        slot_mapping: ptr(2),
        q: rows(256),
        k: rows(128),
        v: rows(128),
        q_scale: ptr(3),
        k_scale: ptr(4),
        v_scale: ptr(5),
        q_out: rows(256),
        k_pool: ptr(6),
        v_pool: ptr(7),
    };
    let launch = |append: AppendFp8, operands| append.launch(ptr(9), &operands);
    let of_two_blocks = ("kv_append_e4m3_f16", [2, 8, 1], 256, 0);
    assert_eq!(of(launch(right, right_operands)), of_two_blocks);
    assert!(is_nothing(launch(AppendFp8 { max_tokens: 0, ..right }, right_operands)));
    for head_dim in [0, 60] {
        let error = launch(AppendFp8 { head_dim, ..right }, right_operands).unwrap_err();
        let expected = "expected a multiple of 8, in rows aligned to 16 bytes";
        assert_eq!(error.to_string(), format!("head_dim is {head_dim}: {expected}"));
        let scales = HeadScales { max_tokens: 33, num_heads: 4, head_dim };
        assert_eq!(scales.launch(ptr(9), right_operands.q, ptr(3)), Err(error));
    }
    for odd in [
        AppendFp8Operands { k: rows(132), ..right_operands },
        AppendFp8Operands { v: Rows::new(DevicePtr::new(0x1008), 128), ..right_operands },
        AppendFp8Operands { q_out: rows(260), ..right_operands },
    ] {
        assert!(matches!(launch(right, odd), Err(LaunchError::Shape { what: "head_dim", .. })));
    }
}

#[test]
fn errors_are_one_line_and_name_the_value() {
    let error = prefill(Attention { head_dim: 258, ..attention() }).unwrap_err();
    assert_eq!(error.to_string(), "head_dim is 258: expected from 1 to 256");
}

#[test]
fn layers_of_8_bit_floats_refuse_what_no_kernel_computes() {
    let right = LinearFp8 { max_rows: 64, n: 128, k: 256, accumulate: Fp8Accumulate::TwoLevel };
    let operands = LinearFp8Operands::<f16> {
        x: rows(256),
        x_scales: ptr(2),
        weight: rows(256),
        weight_scales: WeightScales::Blocks(ptr(3)),
        bias: None,
        residual: None,
        out: Out16::Half(rows(128)),
    };
    let launch = |gpu: Gpu, linear: LinearFp8, operands: &LinearFp8Operands<f16>| {
        linear.launch(gpu, ptr(9), operands, &mut |spec: &TensorMapSpec| {
            spec.check().expect("a tensor map");
            spec.emulated()
        })
    };
    let refused =
        |linear, operands: LinearFp8Operands<f16>| match launch(Gpu::HOPPER, linear, &operands) {
            Err(LaunchError::Shape { what, value, .. }) => (what, value),
            other => panic!("{other:?}"),
        };
    assert!(launch(Gpu::HOPPER, right, &operands).is_ok_and(|launch| launch.is_some()));
    assert!(is_nothing(launch(Gpu::HOPPER, LinearFp8 { max_rows: 0, ..right }, &operands)));
    assert!(is_nothing(launch(Gpu::HOPPER, LinearFp8 { n: 0, ..right }, &operands)));
    let sm80 = Gpu { target: Target::Sm80, num_sms: 108, overlaps: false };
    let on_sm80 = launch(sm80, right, &operands);
    assert!(matches!(on_sm80, Err(LaunchError::Shape { what: "compute capability", .. })));
    for k in [0, 8, 264] {
        assert_eq!(refused(LinearFp8 { k, ..right }, operands), ("k", k));
    }
    assert_eq!(refused(LinearFp8 { max_rows: 1 << 31, ..right }, operands), ("rows", 1 << 31));
    let huge = LinearFp8 { max_rows: 1 << 30, n: 1 << 30, ..right };
    assert_eq!(refused(huge, operands).0, "tiles");
    let x = rows(264);
    assert_eq!(refused(right, LinearFp8Operands { x, ..operands }), ("row stride", 264));
    let weight = Rows::new(DevicePtr::new(0x1008), 256);
    assert_eq!(refused(right, LinearFp8Operands { weight, ..operands }), ("address", 0x1008));
    let residual = Some(rows(128));
    assert_eq!(refused(right, LinearFp8Operands { residual, ..operands }), ("output bits", 16));
    let out = Out16::F32(rows(1 << 30));
    assert_eq!(refused(right, LinearFp8Operands { out, ..operands }), ("row stride", 1 << 30));
    let fast = LinearFp8 { accumulate: Fp8Accumulate::Fast, ..right };
    assert_eq!(refused(fast, operands).0, "rows of a weight scale");
    let of_rows = LinearFp8Operands { weight_scales: WeightScales::Rows(ptr(3)), ..operands };
    assert!(launch(Gpu::HOPPER, fast, &of_rows).is_ok_and(|launch| launch.is_some()));
}

/// Rank 1 of `world`, with room for `max_elems` elements and a norm of 4 rows of 4096.
fn ranks(world: usize, max_elems: usize) -> Ranks {
    let workspace = Workspace::new(world, max_elems, (4, 4096)).expect("a right workspace");
    let addresses = (0..world as u64).map(|rank| ptr(100 + rank)).collect();
    Ranks::new(1, workspace, addresses).expect("a right rank")
}

fn tensors<E>(world: usize) -> Vec<DevicePtr<E>> {
    (0..world as u64).map(|rank| ptr(10 + rank)).collect()
}

#[test]
fn all_reduce_takes_one_shot_for_small_tensors() {
    let of_size = |world, max_rows, width| {
        let ranks = ranks(world, 128 << 10);
        of(AllReduce { max_rows, width }.launch(&ranks, ptr(9), &tensors::<f16>(world)))
    };
    assert_eq!(of_size(2, 1, 4096), ("all_reduce_one_shot_f16_w2", [4, 1, 1], 128, 0));
    assert_eq!(of_size(8, 3, 683), ("all_reduce_one_shot_f16_w8", [3, 1, 1], 128, 0));
    assert_eq!(of_size(4, 32, 4096), ("all_reduce_one_shot_f16_w4", [128, 1, 1], 128, 0));
    assert_eq!(of_size(4, 33, 4096), ("all_reduce_two_shot_f16_w4", [17, 1, 1], 256, 0));
    assert_eq!(of_size(2, 4096, 4096), ("all_reduce_two_shot_f16_w2", [128, 1, 1], 256, 0));
    // A workspace that has room for less.
    let op = AllReduce { max_rows: 1, width: 4096 };
    let launch = op.launch(&ranks(2, 1024), ptr(9), &tensors::<bf16>(2));
    assert_eq!(of(launch), ("all_reduce_two_shot_bf16_w2", [1, 1, 1], 256, 0));
    let workspace = Workspace::new(2, 128 << 10, (0, 0)).expect("a right workspace");
    let largest = AllReduce { max_rows: 1, width: one_shot_max_bytes(2) / 2 };
    assert_eq!(largest.algorithm(&workspace), Algorithm::OneShot);
    // More ranks send more.
    assert_eq!(of_size(8, 8, 4096), ("all_reduce_one_shot_f16_w8", [32, 1, 1], 128, 0));
    assert_eq!(of_size(8, 9, 4096), ("all_reduce_two_shot_f16_w8", [3, 1, 1], 256, 0));
    for (max_rows, width) in [(0, 4096), (7, 0)] {
        let op = AllReduce { max_rows, width };
        assert!(is_nothing(op.launch(&ranks(2, 1024), ptr(9), &tensors::<f16>(2))));
        assert!(is_nothing(op.two_shot(&ranks(2, 1024), ptr(9), &tensors::<f16>(2))));
    }
}

#[test]
fn all_reduce_rejects_what_the_workspace_has_no_room_for() {
    let what = |launch: Result<Option<Launch>, LaunchError>| match launch {
        Err(LaunchError::Shape { what, .. }) => what,
        other => panic!("{other:?}"),
    };
    let op = AllReduce { max_rows: 2, width: 4096 };
    let ranks = ranks(2, 4096);
    assert_eq!(what(op.one_shot::<f16>(&ranks, ptr(9), ptr(1), ptr(2))), "elements of one shot");
    let misaligned = DevicePtr::<f16>::new(0x1008);
    let small = AllReduce { max_rows: 1, width: 4096 };
    assert_eq!(what(small.one_shot(&ranks, ptr(9), misaligned, ptr(2))), "address of x");
    assert_eq!(what(small.one_shot(&ranks, ptr(9), ptr(2), misaligned)), "address of out");
    assert_eq!(what(op.launch(&ranks, ptr(9), &tensors::<f16>(3))), "tensors");
    assert_eq!(what(op.two_shot(&ranks, ptr(9), &[ptr(1), misaligned])), "address of x");
    let none = op.two_shot_in(0, &ranks, ptr(9), &tensors::<f16>(2));
    assert_eq!(what(none), "blocks");
    let huge = AllReduce { max_rows: 1 << 20, width: 1 << 12 };
    assert_eq!(what(huge.launch(&ranks, ptr(9), &tensors::<f16>(2))), "elements");

    let workspace = |world, hidden_size| Workspace::new(world, 1024, (1, hidden_size));
    assert!(workspace(3, 4096).is_err());
    assert!(workspace(2, 4100).is_err());
    assert!(workspace(2, 16392).is_err());
    let right = workspace(2, 16384).expect("a right workspace");
    assert!(Ranks::new(2, right, tensors(2)).is_err());
    assert!(Ranks::new(0, right, tensors(3)).is_err());
    assert!(Ranks::new(0, right, vec![ptr(1), DevicePtr::new(0x1001)]).is_err());
    // Two buffers of two lines for each vector of each rank, epochs, and flags.
    let lines = 2 * 2 * 2 * (128 + 2048) * 16;
    assert_eq!(right.bytes(), 256 + 512 + 256 + 2 * 128 * 2 * 4 + lines);
}

#[test]
fn all_reduce_with_a_norm_has_a_block_a_row() {
    let launch = |max_rows, hidden_size| {
        let workspace = Workspace::new(2, 0, (4, hidden_size)).expect("a right workspace");
        let ranks = Ranks::new(0, workspace, tensors(2)).expect("a right rank");
        let operands =
            NormOperands::<bf16> { x: ptr(1), residual: ptr(2), weight: ptr(3), out: ptr(4) };
        AllReduceNorm { max_rows, hidden_size, eps: 1e-6 }.launch(&ranks, ptr(9), &operands)
    };
    assert_eq!(of(launch(3, 896)), ("all_reduce_norm_bf16_w2_v1", [3, 1, 1], 128, 0));
    assert_eq!(of(launch(1, 4096)), ("all_reduce_norm_bf16_w2_v1", [1, 1, 1], 512, 0));
    assert_eq!(of(launch(1, 5120)), ("all_reduce_norm_bf16_w2_v2", [1, 1, 1], 384, 0));
    assert_eq!(of(launch(4, 16384)), ("all_reduce_norm_bf16_w2_v4", [4, 1, 1], 512, 0));
    assert!(is_nothing(launch(0, 4096)) && is_nothing(launch(3, 0)));
    assert!(launch(5, 4096).is_err());
    // The lines of a row lie where the workspace's rows have them.
    let operands = NormOperands::<f16> { x: ptr(1), residual: ptr(2), weight: ptr(3), out: ptr(4) };
    let other = AllReduceNorm { max_rows: 1, hidden_size: 2048, eps: 1e-6 };
    assert!(other.launch(&ranks(2, 1024), ptr(9), &operands).is_err());
}
