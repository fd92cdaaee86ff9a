//! Launch geometry of attention, and what is refused.

use crate::harness::*;
use cuda_std::launch::DevicePtr;
use half::{bf16, f16};
use kernels::attention::sm90::fp8::Mode;
use kernels::attention::{
    Attention, AttentionElement, AttentionFp8, AttentionFp8Operands, AttentionOperands,
    AttentionWorkspace, SeqInputs,
};
use kernels::element::Dtype;
use kernels::gemm::Gpu;

const RIGHT: Attention = Attention {
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
    has_sinks: false,
    softcap: None,
};

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

/// The launches of prefill and decode in `E`.
fn launches<E: AttentionElement>(attention: Attention) -> [Launched; 2] {
    let width = attention.num_heads * attention.head_dim;
    let (q, k_pool, v_pool, out) = (rows::<E>(width), ptr(2), ptr(3), rows(width));
    let operands = AttentionOperands { q, k_pool, v_pool, out, sinks: DevicePtr::null() };
    let workspace = AttentionWorkspace { partials: ptr(4), counters: ptr(5) };
    [
        attention.prefill(SM_80, &SEQS, &operands, &workspace, &mut tensor_map),
        attention.decode(SM_80, &SEQS, &operands, None, &workspace),
    ]
}

fn prefill(attention: Attention) -> Launched {
    let [prefill, _] = launches::<f32>(attention);
    prefill
}

fn decode(attention: Attention) -> Launched {
    let [_, decode] = launches::<f32>(attention);
    decode
}

#[test]
fn prefill_has_items_for_any_cut_of_the_tokens() {
    let grid = [11 * 14, 1, 1];
    assert_eq!(of(prefill(RIGHT)), ("attention_prefill_f32_d64", grid, 128, 59_392));
    for (head_dim, width) in [(2, 64), (80, 96), (128, 128), (130, 256)] {
        let name = format!("attention_prefill_f32_d{width}");
        assert_eq!(of(prefill(Attention { head_dim, ..RIGHT })).0, name);
    }
    assert!(is_nothing(prefill(Attention { max_tokens: 0, ..RIGHT })));
    assert!(is_nothing(prefill(Attention { max_seqs: 0, ..RIGHT })));
    assert!(is_nothing(prefill(Attention { max_q_len: 1, ..RIGHT })), "all decode");
}

#[test]
fn decode_splits_by_model_and_groups_query_heads() {
    assert_eq!(of(decode(RIGHT)).0, "attention_decode_f32_r8_d64");
    let grid = |attention| of(decode(attention)).1;
    // As many blocks as are resident, two an SM in f32, or as there are items.
    assert_eq!(grid(Attention { max_seqs: 64, ..RIGHT }), [2 * 132, 1, 1]);
    assert_eq!(grid(RIGHT), [4 * 2 * 32, 1, 1]);
    assert_eq!(grid(Attention { max_kv_len: 64, ..RIGHT }), [4 * 2, 1, 1]);
    assert_eq!(grid(Attention { max_kv_len: 65, ..RIGHT }), [4 * 2 * 2, 1, 1]);
    assert_eq!(grid(Attention { num_heads: 34, max_kv_len: 64, ..RIGHT }), [4 * 4, 1, 1]);
    let items = |attention: Attention| attention.max_decode_items(SM_80, Dtype::F16);
    // At most the square root of eight times the pages that a sequence sees, 128 and 34.
    assert_eq!(items(RIGHT), 4 * 2 * 32);
    assert_eq!(items(Attention { window: Some(2048), ..RIGHT }), 4 * 2 * 16);
    assert_eq!(RIGHT.num_partials(Dtype::F16), 4 * 14 * 32 * 66);
    assert_eq!(RIGHT.num_counters(Dtype::F16), 4 * 14 * 32);
    assert!(is_nothing(decode(Attention { max_seqs: 0, ..RIGHT })));
    assert!(is_nothing(decode(Attention { max_kv_len: 0, ..RIGHT })));
    assert!(is_nothing(decode(Attention { max_decode_q_len: 0, ..RIGHT })));
    // The workspace stays small.
    let many = Attention { max_seqs: 256, max_pages_per_seq: 1024, ..RIGHT };
    let many = Attention { max_kv_len: 65_536, max_decode_q_len: 16, max_tokens: 8192, ..many };
    assert!(4 * many.num_partials(Dtype::F16) <= 256 << 20);
    let heads = Attention { num_heads: 32, num_kv_heads: 32, head_dim: 128, ..many };
    assert!(4 * heads.num_partials(Dtype::F16) <= 512 << 20);
}

#[test]
fn attention_in_16_bits_has_16_rows_and_half_the_bytes() {
    assert_eq!(
        launches::<f16>(RIGHT).map(of),
        [
            ("attention_prefill_f16_d64", [7 * 14, 1, 1], 128, 49_152),
            ("attention_decode_f16_r16_d64", [4 * 2 * 32, 1, 1], 128, 67_648),
        ]
    );
    let symbols = launches::<bf16>(Attention { head_dim: 72, ..RIGHT }).map(|launch| of(launch).0);
    assert_eq!(symbols, ["attention_prefill_bf16_d96", "attention_decode_bf16_r16_d96"]);
    let odd = Attention { head_dim: 84, ..RIGHT };
    assert!(prefill(odd).is_ok());
    let [odd, _] = launches::<f16>(odd);
    let odd = error(odd);
    assert!(odd.starts_with("head_dim is 84: expected a multiple of 8"), "{odd}");
    let wide = error(prefill(Attention { head_dim: 258, ..RIGHT }));
    assert_eq!(
        wide,
        "head_dim is 258: expected from 1 to 256, or to 512 in f16 and bf16 with a cache of that type"
    );
}

#[test]
fn attention_rejects_what_no_kernel_takes() {
    let max_kv_len = u32::MAX as usize;
    for (wrong, field) in [
        (Attention { head_dim: 0, ..RIGHT }, "head_dim"),
        (Attention { head_dim: 258, ..RIGHT }, "head_dim"),
        (Attention { num_kv_heads: 3, ..RIGHT }, "num_kv_heads"),
        (Attention { num_kv_heads: 0, ..RIGHT }, "num_kv_heads"),
        (Attention { window: Some(0), ..RIGHT }, "window"),
        (Attention { causal: false, window: Some(0), ..RIGHT }, "window"),
        (Attention { max_pages_per_seq: 127, ..RIGHT }, "max_pages_per_seq"),
        (Attention { max_kv_len, max_pages_per_seq: 1 << 26, ..RIGHT }, "max_kv_len"),
    ] {
        assert_eq!(launches::<f32>(wrong).map(|launch| refused(launch).0), [field; 2]);
    }
    assert_eq!(refused(decode(Attention { max_seqs: 65_537, ..RIGHT })).0, "max_seqs");
    let wrong = Attention { max_decode_q_len: 17, ..RIGHT };
    assert_eq!(refused(decode(wrong)).0, "max_decode_q_len");
}

#[test]
fn attention_in_8_bits_rejects_what_no_kernel_takes() {
    let right = Attention { head_dim: 128, ..RIGHT };
    let width = right.num_heads * right.head_dim;
    let operands = AttentionFp8Operands {
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
        let layer = AttentionFp8 { attention, mode: Mode::Strict };
        layer.prefill(gpu, &SEQS, &operands, ptr(7), &mut tensor_map)
    };
    let symbol = of(prefill(Gpu::HOPPER, right, operands)).0;
    assert_eq!(symbol, "attention_prefill_e4m3_strict_d128");
    assert!(is_nothing(prefill(Gpu::HOPPER, Attention { max_tokens: 0, ..right }, operands)));
    assert_eq!(refused(prefill(SM_80, right, operands)), ("compute capability", 80));
    for head_dim in [0, 8, 72, 272] {
        let wrong = Attention { head_dim, ..right };
        assert_eq!(refused(prefill(Gpu::HOPPER, wrong, operands)), ("head_dim", head_dim));
    }
    for (wrong, field) in [
        (Attention { num_kv_heads: 3, ..right }, "num_kv_heads"),
        (Attention { window: Some(0), ..right }, "window"),
        (Attention { softcap: Some(50.0), ..right }, "softcap"),
        (Attention { max_pages_per_seq: 127, ..right }, "max_pages_per_seq"),
    ] {
        assert_eq!(refused(prefill(Gpu::HOPPER, wrong, operands)).0, field);
    }
    let odd = AttentionFp8Operands { q: rows(width + 8), ..operands };
    assert_eq!(refused(prefill(Gpu::HOPPER, right, odd)), ("row stride", width + 8));
    let odd = AttentionFp8Operands { out: rows(width + 4), ..operands };
    let what = refused(prefill(Gpu::HOPPER, right, odd)).0;
    assert_eq!(what, "head_dim", "it names the vectors of a head");
}
