//! Launch geometry of every launcher: odd shapes, nothing to do, limits.

#[path = "launchers/all_reduce.rs"]
mod all_reduce;
#[path = "launchers/attention.rs"]
mod attention;

use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError};
use cuda_std::tensor_map::TensorMapSpec;
use half::{bf16, f16};
use kernels::Rows;
use kernels::element::{NarrowedFrom, Number};
use kernels::gather_rows::GatherRows;
use kernels::gemm::{
    Fp8Accumulate, GemmEpilogue, GemmEpilogueOperands, Gpu, Linear, LinearFp8, LinearFp8Operands,
    LinearOperands, Out16, OutputOf, SumOrder, Target, WeightScales,
};
use kernels::kv_cache::KvAppend;
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
