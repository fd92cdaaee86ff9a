//! The cache of quants: 8-bit floats for FP8 attention, and blocks.

use super::{MAX_POSITIONS, NUM_PAGES, PAGE, norm_heads};
use crate::harness::*;
use cuda_std::E4m3;
use cuda_std::launch::DevicePtr;
use half::{bf16, f16};
use kernels::Rows;
use kernels::attention::sm90::fp8::storage_index;
use kernels::kv_cache::append_fp8::{AppendFp8, AppendFp8Operands, HeadScales};
use kernels::kv_cache::append_quantised::{KvAppendQuantised, Rotated};
use kernels::kv_cache::dequantise::{KvDequantise, PageInputs};
use kernels::kv_cache::{CacheType, NO_PAGE};
use kernels::qk_norm::QkNorm;
use oracle::{Approx, Element, Matrix, Pages, e4m3_code, rope};

/// Bytes of a page of a head.
fn page_bytes(format: CacheType, head_dim: usize) -> usize {
    PAGE * match format {
        CacheType::F32 => 4 * head_dim,
        CacheType::F16 | CacheType::BF16 => 2 * head_dim,
        CacheType::Q8_0 => head_dim + head_dim / 16,
        CacheType::Fp8 => head_dim + 2,
        CacheType::Q4_0 => head_dim / 2 + head_dim / 16,
    }
}

/// What no launch has written.
const UNWRITTEN: u8 = 0x7f;

fn e4m3(x: f32, scale: f32) -> u8 {
    e4m3_code(x * if scale < f32::MIN_POSITIVE { 0.0 } else { 1.0 / scale })
}

/// Appends `tokens` tokens for FP8 attention, of which some numbers are beyond the scales.
fn check_fp8<T: HostElement>(
    tokens: usize,
    [num_heads, num_kv_heads]: [usize; 2],
    head_dim: usize,
) {
    let numbers = |heads: usize, salt: u64| {
        let mut values = Matrix::random::<T>(tokens, heads * head_dim, salt);
        values.values[3] = 100.0;
        values.values[head_dim - 1] = f64::NAN;
        values.values[head_dim - 2] = T::rounded(-1e4).into();
        values
    };
    let scales = |heads: usize, first: f32| -> Vec<f32> {
        (0..heads).map(|head| first / 448.0 / (1.0 + head as f32)).collect()
    };
    let [q, k, v] =
        [(num_heads, 1), (num_kv_heads, 2), (num_kv_heads, 3)].map(|(h, salt)| numbers(h, salt));
    let (q_scale, k_scale) = (scales(num_heads, 1.0), scales(num_kv_heads, 2.0));
    let mut v_scale = scales(num_kv_heads, 0.5);
    v_scale[num_kv_heads - 1] = 0.0;
    // Slots in an order of their own.
    let slot = |token| token * 71 % (NUM_PAGES * PAGE);
    let slots: Vec<u32> = (0..tokens).map(|token| slot(token) as u32).collect();
    let pages = Pages::descending(&[NUM_PAGES * PAGE], PAGE, num_kv_heads, head_dim);
    let [mut want_k, mut want_v] = [(); 2].map(|()| vec![UNWRITTEN; pages.elems()]);
    for (token, head) in (0..tokens).flat_map(|token| (0..num_kv_heads).map(move |h| (token, h))) {
        let row = pages.row_of_slot(slot(token), head);
        let page = pages.row_of_slot(slot(token) / PAGE * PAGE, head);
        for column in 0..head_dim {
            let [k, v] = [&k, &v].map(|x| x.row(token)[head * head_dim + column] as f32);
            want_k[row + column] = e4m3(k, k_scale[head]);
            let at = storage_index((slot(token) % PAGE) as u32) as usize;
            want_v[page + column * PAGE + at] = e4m3(v, v_scale[head]);
        }
    }
    let of_q = |(at, &x): (usize, &f64)| e4m3(x as f32, q_scale[at / head_dim % num_heads]);
    let want_q: Vec<u8> = q.values.iter().enumerate().map(of_q).collect();

    let max_tokens = tokens + 40;
    for seed in simt::seeds() {
        let mut device = Device::default();
        let unwritten = |device: &mut Device, name: &str, len: usize| -> DevicePtr<E4m3> {
            device.bytes(name, &vec![UNWRITTEN; len])
        };
        let operands = AppendFp8Operands {
            slot_mapping: device.u32s("slot_mapping", &slots),
            q: device.matrix::<T>("q", &q, (q.cols, max_tokens)),
            k: device.matrix::<T>("k", &k, (k.cols, max_tokens)),
            v: device.matrix::<T>("v", &v, (v.cols, max_tokens)),
            q_scale: device.f32s("q_scale", &q_scale),
            k_scale: device.f32s("k_scale", &k_scale),
            v_scale: device.f32s("v_scale", &v_scale),
            q_out: Rows::new(unwritten(&mut device, "q_out", want_q.len()), q.cols),
            k_pool: unwritten(&mut device, "k_pool", pages.elems()),
            v_pool: unwritten(&mut device, "v_pool", pages.elems()),
        };
        let num_tokens = device.u32s("num_tokens", &[tokens as u32]);
        let append = AppendFp8 { max_tokens, num_heads, num_kv_heads, head_dim };
        device.run(append.launch(num_tokens, &operands), seed);
        let outs = [
            ("q", operands.q_out.ptr, &want_q),
            ("k", operands.k_pool, &want_k),
            ("v", operands.v_pool, &want_v),
        ];
        for (name, ptr, want) in outs {
            let got = device.read_bytes(ptr, want.len());
            let wrong = got.iter().zip(want).position(|(got, want)| got != want);
            assert_eq!(wrong, None, "{name}, {tokens} tokens of {head_dim} columns, seed {seed}");
        }
        // Scales are raised, by whichever tokens there are; NaN counts for nothing.
        let scale = device.f32s("scale", &vec![1e-3; num_heads]);
        let scales = HeadScales { max_tokens, num_heads, head_dim };
        device.run(scales.launch(num_tokens, operands.q, scale), seed);
        for (head, got) in device.read(scale, num_heads).into_iter().enumerate() {
            let rows = (0..tokens).flat_map(|token| &q.row(token)[head * head_dim..][..head_dim]);
            let want = rows.map(|x| x.abs() as f32).fold(0.0, f32::max) * (1.0 / 448.0);
            assert_eq!(got, want.max(1e-3), "scale of head {head}");
        }
    }
}

#[test]
fn appends_for_fp8_attention_match_oracle() {
    // Around a block of tokens.
    for tokens in [1, 31, 33, 65] {
        check_fp8::<f16>(tokens, [2, 1], 64);
    }
    check_fp8::<f32>(5, [7, 1], 128);
    check_fp8::<f16>(40, [4, 2], 96);
    check_fp8::<bf16>(3, [2, 2], 256);
    check_fp8::<bf16>(3, [1, 1], 16);
}

/// 32 columns of a key as q4_0 has them: times the Hadamard matrix.
fn hadamard(block: &[f64]) -> Vec<f64> {
    let sign = |i: usize, j: usize| if (i & j).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
    let column = |j| block.iter().enumerate().map(|(i, x)| sign(i, j) * x).sum::<f64>();
    (0..block.len()).map(|j| column(j) / (block.len() as f64).sqrt()).collect()
}

/// What a cached row may be read as in `E`.
fn cached<E: Element>(format: CacheType, row: &[f64]) -> Vec<Approx> {
    let of_block = |block: &[f64]| -> Vec<Approx> {
        let max = block.iter().fold(0.0, |max, x| f64::max(max, x.abs()));
        let is_opposite = |x: f64| block.iter().any(|y| y.abs() == max && x * y < 0.0);
        block
            .iter()
            .map(|&x| {
                // Scales are in f16. The value that is opposite to the largest one of q4_0 is
                // beyond its 15 levels.
                let off = match format {
                    CacheType::Q8_0 => max / 127.0 * 0.57,
                    CacheType::Fp8 => (x.abs() * 1.01 / 16.0).max(max / 448.0 / 1000.0),
                    CacheType::Q4_0 if is_opposite(x) => {
                        max / 8.0 * (8.0 * x.abs() / max - 6.99).max(0.505)
                    }
                    CacheType::Q4_0 => max / 8.0 * 0.505,
                    CacheType::F32 => x.abs() * 1e-6,
                    CacheType::F16 => x.abs() * (f16::ROUNDING + 1e-6),
                    CacheType::BF16 => x.abs() * (bf16::ROUNDING + 1e-6),
                };
                Approx::new(x, off)
            })
            .collect()
    };
    let block = if format == CacheType::Fp8 { row.len() } else { 32.min(row.len()) };
    stored::<E>(row.chunks(block).flat_map(of_block).collect())
}

/// Appends rows of K and V to new pools of these formats, at these slots and rotated before, if
/// they are; and reads all pages. The pools, and their dense copies.
pub fn append_and_read<T: HostElement, E: HostElement>(
    device: &mut Device,
    formats: [CacheType; 2],
    pages: &Pages,
    (slots, rotated): (&[u32], Option<&Rotated<T>>),
    rows: [Rows<T>; 2],
    inputs: &PageInputs,
    seed: u64,
) -> ([DevicePtr<()>; 2], [Vec<f32>; 2]) {
    let &Pages { num_kv_heads, head_dim, max_pages, .. } = pages;
    let num_tokens = device.u32s("num_tokens", &[slots.len() as u32]);
    let slot_mapping = device.u32s("slot_mapping", slots);
    let pools = formats.map(|format| {
        let bytes = pages.num_pages() * num_kv_heads * page_bytes(format, head_dim);
        DevicePtr::<()>::new(device.poisoned::<u8>("pool", bytes).0)
    });
    let max_tokens = slots.len() + 1;
    let append = KvAppendQuantised { max_tokens, num_kv_heads, head_dim, formats };
    device.run(append.launch(num_tokens, slot_mapping, rotated, rows, pools), seed);
    let dense = [0, 1].map(|of| {
        let dense = device.poisoned::<E>("dense", pages.elems());
        let dequantise = KvDequantise {
            max_seqs: pages.num_pages() / max_pages + 1,
            max_pages_per_seq: max_pages,
            num_kv_heads,
            head_dim,
            format: formats[of],
            is_keys: of == 0,
            min_q_len: 1,
        };
        device.run(dequantise.launch(inputs, pools[of], dense), seed);
        device.read(dense, pages.elems())
    });
    (pools, dense)
}

/// Appends tokens of two sequences in these formats, rotated where `rotary_dim` is not 0, and reads
/// them as `E`; of the first sequence those on its first `num_left` pages are not.
fn check_quantised<T: HostElement, E: HostElement>(
    formats: [CacheType; 2],
    [num_kv_heads, head_dim, rotary_dim]: [usize; 3],
    num_left: usize,
    seed: u64,
) {
    let kv_lens = [70, 5];
    let tokens: usize = kv_lens.iter().sum();
    let pages = Pages::descending(&kv_lens, PAGE, num_kv_heads, head_dim);
    let [q, k, v] =
        [1, 2, 3].map(|salt| Matrix::random::<T>(tokens, num_kv_heads * head_dim, salt));
    let table = random(MAX_POSITIONS * rotary_dim, 4);
    let seq_of =
        |token: usize| if token < kv_lens[0] { (0, token) } else { (1, token - kv_lens[0]) };
    let slots = (0..tokens).map(seq_of).map(|(seq, at)| pages.slot(seq, at) as u32);
    let mut device = Device::default();
    let slots: Vec<u32> = slots.collect();
    let positions: Vec<u32> = (0..tokens).map(|token| (token % MAX_POSITIONS) as u32).collect();
    let [q_rows, k_rows, v_rows] =
        [&q, &k, &v].map(|x| device.matrix::<T>("rows", x, (x.cols, tokens + 1)));
    let rotated = Rotated {
        positions: device.u32s("positions", &positions),
        table: device.f32s("table", &table),
        rotary_dim,
        norm: QkNorm::NONE,
        num_heads: num_kv_heads,
        q: q_rows,
    };
    let mut table_of_read = pages.table.clone();
    table_of_read[..num_left].fill(NO_PAGE);
    let inputs = PageInputs {
        num_seqs: device.u32s("num_seqs", &[2]),
        cu_seqlens_q: device.u32s("cu_seqlens_q", &[0, 1, 2]),
        kv_lens: device.u32s("kv_lens", &kv_lens.map(|kv_len| kv_len as u32)),
        block_table: device.u32s("block_table", &table_of_read),
    };
    let rotated = (rotary_dim > 0).then_some(&rotated);
    let rows = [k_rows, v_rows];
    let slots = (&slots[..], rotated);
    let (_, dense) =
        append_and_read::<T, E>(&mut device, formats, &pages, slots, rows, &inputs, seed);
    let name = format!("{formats:?}, {num_kv_heads} heads of {head_dim}, {rotary_dim} rotated");
    // The rows that are appended.
    let head_of = |x: &Matrix, token: usize, head: usize| -> Vec<f64> {
        let row = &x.row(token)[head * head_dim..][..head_dim];
        let floats: Vec<f32> = row.iter().map(|&x| x as f32).collect();
        let at = positions[token] as usize * rotary_dim;
        let rotated = rope(&floats, &table[at..][..rotary_dim]);
        rotated.iter().map(|x| T::rounded(x.value as f32).into()).collect()
    };
    for (of, (format, mut got)) in formats.into_iter().zip(dense).enumerate() {
        for (token, head) in (0..tokens).flat_map(|t| (0..num_kv_heads).map(move |h| (t, h))) {
            let (seq, at) = seq_of(token);
            if seq == 0 && at < num_left * PAGE {
                continue;
            }
            let row = &mut got[pages.row(seq, head, at)..][..head_dim];
            let mut want = match of {
                0 => head_of(&k, token, head),
                _ => v.row(token)[head * head_dim..][..head_dim].to_vec(),
            };
            let mut values: Vec<f32> = row.to_vec();
            let mut rounding = 0.0;
            if format == CacheType::Q4_0 && of == 0 {
                // The dense copy is rounded before it is rotated back.
                let norm = want.iter().map(|x| x * x).sum::<f64>().sqrt();
                rounding = E::ROUNDING * norm;
                let wide: Vec<f64> = values.iter().map(|&x| x.into()).collect();
                values = wide.chunks(32).flat_map(hadamard).map(|x| x as f32).collect();
                want = want.chunks(32).flat_map(hadamard).collect();
            }
            let mut want = cached::<E>(format, &want);
            want.iter_mut().for_each(|want| want.bound += rounding);
            assert_right(&format!("{name}: row {at} of {seq}"), &values, &want);
            row.fill(f32::NAN);
        }
        assert!(got.iter().all(|x| x.is_nan()), "{name}: rows that do not exist are written");
    }
    if rotary_dim > 0 {
        let want = (0..tokens).flat_map(|t| (0..num_kv_heads).flat_map(move |h| [(t, h)]));
        let want: Vec<Approx> = want
            .flat_map(|(token, head)| head_of(&q, token, head))
            .map(|x| Approx::new(x, 2.0 * T::ROUNDING * x.abs() + 1e-6))
            .collect();
        assert_right(&name, &device.read_rows(q_rows, [tokens, tokens + 1], q.cols), &want);
    }
}

#[test]
fn quantised_rows_are_read_as_they_were_appended() {
    use CacheType::*;
    for seed in simt::seeds() {
        for formats in [[Q8_0, Q8_0], [Fp8, Fp8], [Q4_0, Q4_0], [Q8_0, Q4_0]] {
            check_quantised::<f16, f16>(formats, [2, 64, 0], 0, seed);
            check_quantised::<f16, f16>(formats, [1, 96, 64], 0, seed);
        }
        check_quantised::<f32, bf16>([Q4_0, Q8_0], [1, 32, 16], 0, seed);
        check_quantised::<bf16, f16>([Q8_0, Fp8], [3, 128, 0], 0, seed);
        check_quantised::<f32, f32>([F16, BF16], [2, 80, 32], 0, seed);
        check_quantised::<f16, f16>([Fp8, F32], [1, 256, 0], 0, seed);
        check_quantised::<f16, f16>([Q8_0, Q4_0], [2, 32, 0], 1, seed);
    }
}

/// The bits of Q and of the dense copies of what is appended of heads that are normalised, rotated
/// and quantised: by one launch, or where not `fused` by the norms before.
fn append_normed<T: HostElement>(
    formats: [CacheType; 2],
    [num_heads, head_dim, rotary_dim]: [usize; 3],
    fused: bool,
    seed: u64,
) -> [Vec<u32>; 3] {
    let tokens = 5;
    let (mut device, width) = (Device::default(), num_heads * head_dim);
    let pages = Pages::descending(&[tokens], PAGE, num_heads, head_dim);
    let slots: Vec<u32> = (0..tokens).map(|at| pages.slot(0, at) as u32).collect();
    let [q, k, v] = [1, 2, 3].map(|salt| {
        device.matrix::<T>("rows", &Matrix::random::<T>(tokens, width, salt), (width, tokens))
    });
    let [q_norm, k_norm] = [7, 8].map(|salt| device.f32s("norm weight", &random(head_dim, salt)));
    let norm = QkNorm { q: q_norm, k: k_norm, eps: 0.1 };
    if !fused {
        let num_tokens = device.u32s("num_tokens", &[tokens as u32]);
        let (sizes, heads) = ((tokens, head_dim), [(q, num_heads), (k, num_heads)]);
        norm_heads(&mut device, num_tokens, sizes, norm, heads, seed);
    }
    let rotated = Rotated {
        positions: device.u32s("positions", &[3, 1, 4, 0, 5]),
        table: device.f32s("table", &random(MAX_POSITIONS * rotary_dim, 4)),
        rotary_dim,
        norm: if fused { norm } else { QkNorm::NONE },
        num_heads,
        q,
    };
    let inputs = PageInputs {
        num_seqs: device.u32s("num_seqs", &[1]),
        cu_seqlens_q: device.u32s("cu_seqlens_q", &[0, 1]),
        kv_lens: device.u32s("kv_lens", &[tokens as u32]),
        block_table: device.u32s("block_table", &pages.table),
    };
    let slots = (&slots[..], Some(&rotated));
    let (_, dense) =
        append_and_read::<T, f32>(&mut device, formats, &pages, slots, [k, v], &inputs, seed);
    let [keys, values] = dense.map(|dense| bits(&dense));
    [bits(&device.read_rows(q, [tokens, tokens], width)), keys, values]
}

#[test]
fn quantised_rows_are_normalised_before() {
    use CacheType::*;
    fn check<T: HostElement>(formats: [CacheType; 2], sizes: [usize; 3], seed: u64) {
        let of = |fused| append_normed::<T>(formats, sizes, fused, seed);
        assert_eq!(of(true), of(false), "{formats:?}, {sizes:?}");
    }
    for seed in simt::seeds() {
        for formats in [[Q8_0, Q8_0], [Fp8, Fp8], [Q4_0, Q4_0], [Q8_0, Q4_0]] {
            check::<f16>(formats, [3, 128, 64], seed);
        }
        check::<f32>([Q8_0, F16], [1, 96, 96], seed);
        check::<bf16>([Fp8, Fp8], [2, 80, 0], seed);
        check::<f16>([Fp8, BF16], [1, 256, 64], seed);
    }
}

#[test]
fn appends_in_8_bits_reject_what_no_vector_loads() {
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
        let wrong = launch(AppendFp8 { head_dim, ..right }, right_operands);
        let expected = "expected a multiple of 8, in rows aligned to 16 bytes";
        let scales = HeadScales { max_tokens: 33, num_heads: 4, head_dim };
        assert_eq!(scales.launch(ptr(9), right_operands.q, ptr(3)), wrong);
        assert_eq!(error(wrong), format!("head_dim is {head_dim}: {expected}"));
    }
    for odd in [
        AppendFp8Operands { k: rows(132), ..right_operands },
        AppendFp8Operands { v: rows_at(0x1008, 128), ..right_operands },
        AppendFp8Operands { q_out: rows(260), ..right_operands },
    ] {
        assert_eq!(refused(launch(right, odd)).0, "head_dim");
    }
    let formats = [CacheType::Q8_0, CacheType::Q4_0];
    let quantised = |head_dim, formats| {
        let append = KvAppendQuantised { max_tokens: 1, num_kv_heads: 1, head_dim, formats };
        append.launch(ptr(9), ptr(8), None, [rows::<f16>(head_dim); 2], [ptr(2), ptr(3)])
    };
    assert_eq!(of(quantised(64, formats)).0, "kv_append_quantised_f16");
    assert_eq!([48, 288].map(|wrong| refused(quantised(wrong, formats)).0), ["head_dim"; 2]);
    assert_eq!(of(quantised(80, [CacheType::Fp8; 2])).1[0], 1);
}
