//! The cache in other types than its operands': what is appended is what is dequantised, and decode
//! that reads it as it is gives what dense decode gives of the dequantised pools.

use crate::device::{Device, SEEDS, random_of};
use cuda_std::launch::DevicePtr;
use half::f16;
use kernels::Rows;
use kernels::attention::{Attention, AttentionOperands, AttentionWorkspace, SeqInputs, SeqLens};
use kernels::element::Dtype;
use kernels::gemm::{Gpu, Target};
use kernels::kv_cache::append_quantised::KvAppendQuantised;
use kernels::kv_cache::dequantise::{KvDequantise, PageInputs};
use kernels::kv_cache::{CacheType as KvFormat, PAGE_SIZE};

const PAGE: usize = PAGE_SIZE as usize;

const SM_80: Gpu = Gpu { target: Target::Sm80, ..Gpu::HOPPER };

/// Sequences of these lengths, each with one new token.
struct Case {
    formats: [KvFormat; 2],
    kv_lens: &'static [usize],
    num_heads: usize,
    num_kv_heads: usize,
    head_dim: usize,
    window: Option<usize>,
}

/// Bytes of a page of a head.
fn page_bytes(format: KvFormat, head_dim: usize) -> usize {
    let row_bytes = match format {
        KvFormat::F32 => 4 * head_dim,
        KvFormat::F16 | KvFormat::BF16 => 2 * head_dim,
        KvFormat::Q8_0 => head_dim + head_dim / 16,
        KvFormat::Fp8 => head_dim + 2,
        KvFormat::Q4_0 => head_dim / 2 + head_dim / 16,
    };
    PAGE * row_bytes
}

impl Case {
    /// Decodes over the dequantised pools, and over the pools as they are.
    fn check(&self, seed: u64) {
        let &Case { formats, kv_lens, num_heads, num_kv_heads, head_dim, window } = self;
        let (width, kv_width) = (num_heads * head_dim, num_kv_heads * head_dim);
        let num_seqs = kv_lens.len();
        let max_kv_len = *kv_lens.iter().max().unwrap();
        let max_pages = max_kv_len.div_ceil(PAGE);
        let num_pages = num_seqs * max_pages;
        let block_table: Vec<u32> = (0..num_pages as u32).rev().collect();
        let slots: Vec<u32> = (0..num_seqs)
            .flat_map(|seq| (0..kv_lens[seq]).map(move |position| (seq, position)))
            .map(|(seq, position)| {
                block_table[seq * max_pages + position / PAGE] * PAGE_SIZE
                    + (position % PAGE) as u32
            })
            .collect();
        let attention = Attention {
            max_tokens: num_seqs,
            max_seqs: num_seqs,
            max_q_len: 1,
            max_decode_q_len: 1,
            max_kv_len,
            max_pages_per_seq: max_pages,
            num_pages,
            num_heads,
            num_kv_heads,
            head_dim,
            softmax_scale: 0.3,
            causal: true,
            window,
            batch_invariant: false,
        };
        let mut device = Device::default();
        let num_tokens = device.u32s("num_tokens", &[slots.len() as u32]);
        let slot_mapping = device.u32s("slot_mapping", &slots);
        let rows = [1, 2].map(|salt| {
            let rows = random_of::<f16>(slots.len() * kv_width, salt);
            Rows::<f16>::new(device.numbers("rows", &rows), kv_width)
        });
        let pools = formats.map(|format| {
            let bytes = num_pages * num_kv_heads * page_bytes(format, head_dim);
            DevicePtr::<()>::new(device.poisoned::<u8>("pool", bytes).0)
        });
        let append =
            KvAppendQuantised { max_tokens: slots.len() + 1, num_kv_heads, head_dim, formats };
        device.run(append.launch(num_tokens, slot_mapping, None, rows, pools), seed);

        let kv_lens: Vec<u32> = kv_lens.iter().map(|&kv_len| kv_len as u32).collect();
        let cu_seqlens_q: Vec<u32> = (0..=num_seqs as u32).collect();
        let inputs = PageInputs {
            num_seqs: device.u32s("num_seqs", &[num_seqs as u32]),
            cu_seqlens_q: device.u32s("cu_seqlens_q", &cu_seqlens_q),
            kv_lens: device.u32s("kv_lens", &kv_lens),
            block_table: device.u32s("block_table", &block_table),
        };
        let [k_pool, v_pool] = [0, 1].map(|of| {
            let dense: DevicePtr<f16> = device.poisoned("dense", num_pages * PAGE * kv_width);
            let dequantise = KvDequantise {
                max_seqs: num_seqs,
                max_pages_per_seq: max_pages,
                num_kv_heads,
                head_dim,
                format: formats[of],
                of_keys: of == 0,
                min_q_len: 1,
            };
            device.run(dequantise.launch(&inputs, pools[of], dense), seed);
            dense
        });

        let lens: Vec<SeqLens> =
            kv_lens.iter().map(|&kv_len| SeqLens { q_len: 1, kv_len }).collect();
        let items = attention.decode_items(SM_80, Dtype::F16, &lens);
        let mut list = vec![0, items.len() as u32, 0, 0];
        list.extend(items.as_flattened());
        list.resize(4 + 8 * (attention.max_decode_items(SM_80, Dtype::F16) + 1), 0);
        let list = device.u32s("work list", &list);
        let seqs = SeqInputs {
            num_seqs: inputs.num_seqs,
            cu_seqlens_q: inputs.cu_seqlens_q,
            kv_lens: inputs.kv_lens,
            block_table: inputs.block_table,
            num_prefill_items: list,
            prefill_items: list.add(4),
            num_decode_items: list.add(1),
            decode_items: list.add(4),
        };
        let workspace = AttentionWorkspace {
            partials: device.poisoned("partials", attention.num_partials(Dtype::F16)),
            counters: device.u32s("counters", &vec![0; attention.num_counters(Dtype::F16)]),
        };
        let q = random_of::<f16>(num_seqs * width, 3);
        let q = Rows::new(device.numbers("q", &q), width);
        let outs = [0, 1].map(|_| device.poisoned("out", num_seqs * width));
        let [want, got] = outs.map(|out| AttentionOperands {
            q,
            k_pool,
            v_pool,
            out: Rows::<f16>::new(out, width),
        });
        device.run(attention.decode(SM_80, &seqs, &want, None, &workspace), seed);
        let [k_pool, v_pool] = pools.map(|pool| DevicePtr::new(pool.0));
        let got = AttentionOperands { k_pool, v_pool, ..got };
        device.run(attention.decode_quantised(SM_80, &seqs, &got, formats, &workspace), seed);
        let [want, got] = outs.map(|out| device.read::<f16>(out, num_seqs * width));
        for (at, (got, want)) in got.iter().zip(&want).enumerate() {
            let (row, column) = (at / head_dim, at % head_dim);
            assert!(
                (got - want).abs() <= 2e-3,
                "{formats:?}, head_dim {head_dim}: [{row}, {column}] is {got}, not {want}"
            );
        }
    }
}

const FORMATS: [[KvFormat; 2]; 4] = [
    [KvFormat::Q8_0, KvFormat::Q8_0],
    [KvFormat::Fp8, KvFormat::Fp8],
    [KvFormat::Q4_0, KvFormat::Q4_0],
    [KvFormat::Q8_0, KvFormat::Q4_0],
];

#[test]
fn decode_reads_quants_as_they_are() {
    let case = Case {
        formats: FORMATS[0],
        kv_lens: &[70, 5, 130],
        num_heads: 4,
        num_kv_heads: 2,
        head_dim: 64,
        window: None,
    };
    for seed in SEEDS.take(2) {
        for formats in FORMATS {
            Case { formats, ..case }.check(seed);
        }
    }
}

#[test]
fn decode_reads_quants_of_every_width() {
    for formats in FORMATS {
        for (num_heads, head_dim) in [(1, 32), (12, 64), (7, 96), (2, 128), (9, 128), (1, 256)] {
            let case = Case {
                formats,
                kv_lens: &[65],
                num_heads,
                num_kv_heads: 1,
                head_dim,
                window: None,
            };
            case.check(1);
        }
    }
    let fp8 = Case {
        formats: FORMATS[1],
        kv_lens: &[20],
        num_heads: 2,
        num_kv_heads: 2,
        head_dim: 80,
        window: None,
    };
    fp8.check(2);
}

#[test]
fn decode_reads_quants_of_a_window() {
    for formats in FORMATS {
        for window in [1, 5, 64, 100] {
            let case = Case {
                formats,
                kv_lens: &[130, 64],
                num_heads: 2,
                num_kv_heads: 1,
                head_dim: 64,
                window: Some(window),
            };
            case.check(3);
        }
    }
}
