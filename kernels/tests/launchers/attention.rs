//! Attention, and its append.

use cuda_std::launch::{DevicePtr, Launch, LaunchError};
use cuda_std::tensor_map::TensorMapSpec;
use half::{bf16, f16};
use kernels::Rows;
use kernels::attention::sm90::fp8::Mode;
use kernels::attention::{
    Attention, AttentionElement, AttentionFp8, AttentionFp8Operands, AttentionOperands,
    AttentionWorkspace, SeqInputs,
};
use kernels::element::Dtype;
use kernels::gemm::{Gpu, Target};
use kernels::kv_cache::append_fp8::{AppendFp8, AppendFp8Operands, HeadScales};

use super::{is_nothing, of, ptr, rows};

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
