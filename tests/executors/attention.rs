//! KV cache append and attention: prefill, decode, prompts in pieces, batches, windows, full
//! attention.

use halfwarp::plan::{
    Attention, Bounds, CacheType, KvHeads, KvLayout, KvStorage, Op, PAGE_SIZE, Precision,
    StepInputs, View, WindowPools,
};

use crate::harness::{HALVES, Matrix, Setup, Step, check, suffix, within_window};
use crate::{Backend, Outcome, Test, oracle};

/// Query heads, KV heads, columns of a head: SmolLM2, Qwen2.5 with its group of 7, Phi-3 Mini, and
/// odd ones.
const HEADS: &[(usize, usize, usize)] =
    &[(9, 3, 64), (14, 2, 64), (4, 4, 96), (8, 1, 128), (1, 1, 64), (5, 5, 80), (2, 1, 256)];

/// Few enough for all batches on the emulator.
const SMALL_HEADS: (usize, usize, usize) = (2, 1, 16);

/// A sequence: positions in the cache, and new tokens.
type Sequence = (usize, usize);

const BATCHES: &[(&str, &[Sequence])] = &[
    ("decode_first", &[(0, 1)]),
    ("decode_63", &[(62, 1)]),
    ("decode_64", &[(63, 1)]),
    ("decode_65", &[(64, 1)]),
    ("decode_300", &[(299, 1)]),
    ("decode_batch", &[(5, 1), (130, 1), (0, 1), (63, 1)]),
    ("prefill_2", &[(0, 2)]),
    ("prefill_63", &[(0, 63)]),
    ("prefill_64", &[(0, 64)]),
    ("prefill_65", &[(0, 65)]),
    ("prefill_130", &[(0, 130)]),
    ("second_piece", &[(100, 67)]),
    ("mixed_batch", &[(70, 1), (0, 33), (64, 65), (3, 1)]),
];

const DECODE_65: usize = 3;
const DECODE_BATCH: usize = 5;
const PREFILL_2: usize = 6;
const PREFILL_65: usize = 9;
const PREFILL_130: usize = 10;
const SECOND_PIECE: usize = 11;
const MIXED_BATCH: usize = 12;

/// Sliding windows, in positions.
const WINDOWS: &[usize] = &[1, 5, 64, 100];

/// A cap that bends most scores, some of them to the cap.
const SOFTCAP: Option<f32> = Some(0.5);

/// What is computed, of which queries, keys and values.
#[derive(Clone, Copy)]
struct Case {
    precision: Precision,
    sequences: &'static [Sequence],
    heads: (usize, usize, usize),
    causal: bool,
    window: Option<usize>,
    /// Multiplies the scores.
    scale: f32,
    /// Bends them.
    softcap: Option<f32>,
    /// Keys and values come to the cache in f32, whatever it holds.
    f32_append: bool,
    /// Whether it is in three operations, which store scores and probabilities.
    materialized: bool,
    /// How keys and values are stored.
    kv: KvStorage,
}

/// Both types, and pairs of them.
fn cache_types() -> Vec<KvStorage> {
    use CacheType::{BF16, F16, F32, Fp8, Q4_0, Q8_0};
    let pairs = [(Q8_0, Q4_0), (Q4_0, Q8_0), (Fp8, Q8_0), (F16, Q8_0), (Q8_0, F32), (BF16, Fp8)];
    let pairs = pairs.map(|(k, v)| KvStorage { k: Some(k), v: Some(v) });
    CacheType::ALL.map(KvStorage::from).into_iter().chain(pairs).collect()
}

/// Batch and heads of the cases of [`cache_types`]; the first ones are small enough for the
/// emulator.
const CACHE_CASES: &[(usize, (usize, usize, usize))] = &[
    (DECODE_BATCH, (1, 1, 32)),
    (DECODE_65, (2, 1, 64)),
    (PREFILL_65, (2, 1, 32)),
    (DECODE_65, (3, 1, 96)),
    (MIXED_BATCH, (14, 2, 64)),
    (DECODE_BATCH, (9, 3, 64)),
    (MIXED_BATCH, (4, 4, 96)),
    (DECODE_BATCH, (32, 1, 128)),
    (MIXED_BATCH, (2, 1, 256)),
];

pub fn tests() -> Vec<Test> {
    let case = |batch: usize, heads| Case {
        precision: Precision::F32,
        sequences: BATCHES[batch].1,
        heads,
        causal: true,
        window: None,
        scale: 1.0,
        softcap: None,
        f32_append: false,
        materialized: false,
        kv: KvStorage::default(),
    };
    let mut cases = Vec::new();
    for batch in 0..BATCHES.len() {
        cases.extend([HEADS[0], HEADS[1], SMALL_HEADS].map(|heads| (batch, case(batch, heads))));
    }
    for batch in [DECODE_BATCH, MIXED_BATCH] {
        cases.extend(HEADS[2..].iter().map(|&heads| (batch, case(batch, heads))));
        for &window in WINDOWS {
            let windowed = |heads| Case { window: Some(window), ..case(batch, heads) };
            cases.extend([HEADS[1], SMALL_HEADS].map(|heads| (batch, windowed(heads))));
        }
        // Scores at which an exponential without the maximum taken off overflows.
        let large = |heads| Case { scale: 100.0, ..case(batch, heads) };
        cases.extend([HEADS[0], SMALL_HEADS].map(|heads| (batch, large(heads))));
    }
    for batch in [DECODE_BATCH, PREFILL_2, PREFILL_130, SECOND_PIECE, MIXED_BATCH] {
        let full = |heads| Case { causal: false, ..case(batch, heads) };
        cases.extend([HEADS[0], HEADS[1], SMALL_HEADS].map(|heads| (batch, full(heads))));
    }
    for batch in [DECODE_BATCH, PREFILL_130, MIXED_BATCH] {
        let capped = |heads| Case { softcap: SOFTCAP, ..case(batch, heads) };
        cases.extend([HEADS[1], SMALL_HEADS, (2, 1, 256)].map(|heads| (batch, capped(heads))));
        let windowed = Case { window: Some(64), scale: 10.0, ..capped(HEADS[1]) };
        cases.push((batch, windowed));
    }
    let f32_cases = cases.clone();
    for precision in HALVES {
        cases.extend(f32_cases.iter().map(|&(batch, case)| (batch, Case { precision, ..case })));
        for batch in [DECODE_BATCH, MIXED_BATCH] {
            let case = Case { precision, f32_append: true, ..case(batch, SMALL_HEADS) };
            cases.push((batch, case));
        }
    }
    let is_odd = |case: &Case| [HEADS[1], HEADS[5], HEADS[6], SMALL_HEADS].contains(&case.heads);
    let materialized = |&(batch, case): &(usize, Case)| {
        is_odd(&case).then_some((batch, Case { materialized: true, ..case }))
    };
    cases.extend(cases.clone().iter().filter_map(materialized));
    for (kv, precision) in cache_types().into_iter().flat_map(|kv| Precision::ALL.map(|p| (kv, p)))
    {
        let cached = |batch, heads| Case { kv, precision, ..case(batch, heads) };
        cases.extend(CACHE_CASES.iter().map(|&(batch, heads)| (batch, cached(batch, heads))));
        let [batch, small] = [CACHE_CASES[0], CACHE_CASES[2]];
        let others = [
            Case { window: Some(5), ..cached(batch.0, batch.1) },
            Case { f32_append: true, ..cached(batch.0, batch.1) },
            Case { softcap: SOFTCAP, ..cached(batch.0, batch.1) },
            Case { materialized: true, ..cached(small.0, small.1) },
        ];
        cases.extend(others.map(|case| (if case.materialized { small.0 } else { batch.0 }, case)));
    }
    let fp8 = |batch| Case { kv: CacheType::Fp8.into(), ..case(batch, SMALL_HEADS) };
    cases.extend([DECODE_65, PREFILL_2].map(|batch| (batch, fp8(batch))));
    let test = |(batch, case): (usize, Case)| {
        let (num_heads, num_kv_heads, head_dim) = case.heads;
        let mut name = format!("{}_{num_heads}x{num_kv_heads}x{head_dim}", BATCHES[batch].0);
        if !case.causal {
            name += "_full";
        }
        if let Some(window) = case.window {
            name += &format!("_window_{window}");
        }
        if case.scale != 1.0 {
            name += "_large_scores";
        }
        if case.softcap.is_some() {
            name += "_capped";
        }
        if case.f32_append {
            name += "_append_from_f32";
        }
        if case.kv != KvStorage::default() {
            name += &format!("_cache_{}", case.kv.to_string().replace('/', "_"));
        }
        let form = if case.materialized { "materialized_" } else { "" };
        let name = format!("{form}attention::matches_oracle_{name}{}", suffix(case.precision));
        Test::new(name, move |backend| matches_oracle(backend, &case))
    };
    cases.into_iter().map(test).collect()
}

/// Fills the cache with the positions before the new tokens, in one step, and runs the new tokens
/// in another.
fn matches_oracle(backend: Backend, case: &Case) -> Outcome {
    let &Case { precision, sequences, heads, .. } = case;
    let (num_heads, num_kv_heads, head_dim) = heads;
    let (q_width, kv_width) = (num_heads * head_dim, num_kv_heads * head_dim);
    let num_rows: usize = sequences.iter().map(|(past_len, q_len)| past_len + q_len).sum();
    let exact = Matrix::random(1, num_rows, q_width + 2 * kv_width);
    let input = exact.clone().rounded(precision);
    let max_kv_len = sequences.iter().map(|(past_len, q_len)| past_len + q_len).max().unwrap_or(1);
    let kv = KvLayout {
        layers: vec![KvHeads { num_kv_heads, head_dim }; 2],
        num_pages: sequences.len() * max_kv_len.div_ceil(PAGE_SIZE) + 1,
        windows: case.window.filter(|_| case.causal).map(|_| WindowPools {
            layers: vec![false, true],
            num_pages: sequences.len() * max_kv_len.div_ceil(PAGE_SIZE) + 1,
        }),
        dtype: precision.cache(),
        storage: case.kv,
    };
    let op = |q, out| Attention {
        layer: 1,
        q,
        out,
        num_heads,
        num_kv_heads,
        head_dim,
        softmax_scale: case.scale / (head_dim as f32).sqrt(),
        causal: case.causal,
        window: case.window,
        sinks: None,
        softcap: case.softcap,
    };
    let build = |max_tokens: usize, max_q_len: usize| {
        let mut setup = Setup::new(precision);
        let qkv = setup.input("input", &input);
        let kv_of =
            |x: View| (x.columns(q_width, kv_width), x.columns(q_width + kv_width, kv_width));
        let (k, v) = match case.f32_append {
            true => kv_of(setup.f32_input("keys and values", &exact)),
            false => kv_of(qkv),
        };
        let out = setup.activation("out", q_width);
        setup.plan.op(Op::KvAppend { layer: 1, k, v });
        let attention = op(qkv.columns(0, q_width), out);
        if case.materialized {
            setup.materialized_attention(attention, max_kv_len);
        } else {
            setup.plan.op(Op::Attention(attention));
        }
        let max_seqs = sequences.len() + 1;
        let bounds = Bounds {
            max_tokens,
            max_seqs,
            max_q_len,
            max_logit_rows: max_tokens,
            max_kv_len,
            mixed: max_q_len > 1 && sequences.iter().any(|&(_, q_len)| q_len == 1),
        };
        setup.finish(bounds, kv.clone(), out)
    };
    let decode_tokens = sequences.len() + 1;
    let (prefill, weights) = build(num_rows.max(decode_tokens), max_kv_len);
    let (decode, _) = build(decode_tokens, 1);
    let is_decode = sequences.iter().all(|&(_, q_len)| q_len == 1);

    let (mut past, mut new) = (StepInputs::new(), StepInputs::new());
    let (mut past_expected, mut new_expected) = (Vec::new(), Vec::new());
    let mut first = 0;
    let mut free_pages = (0..kv.num_pages as u32).rev();
    for &(past_len, q_len) in sequences {
        let kv_len = past_len + q_len;
        let pages: Vec<u32> = free_pages.by_ref().take(kv_len.div_ceil(PAGE_SIZE)).collect();
        let tokens: Vec<u32> = (first..first + kv_len).map(|row| row as u32 + 1).collect();
        let (past_tokens, new_tokens) = tokens.split_at(past_len);
        let expected = |rows: std::ops::Range<usize>, kv_rows: std::ops::Range<usize>| {
            let part = |rows, start, width| input.rows(rows).columns(start..start + width);
            let q = part(rows, 0, q_width);
            let appended = if case.f32_append { &exact } else { &input };
            let [keys, values] = [(case.kv.k, 0), (case.kv.v, kv_width)].map(|(stored, start)| {
                let (of_keys, start) = (start == 0, q_width + start);
                match stored {
                    None => part(kv_rows.clone(), start, kv_width),
                    Some(cache_type) => {
                        let rows = appended.rows(kv_rows.clone()).columns(start..start + kv_width);
                        match of_keys {
                            true => oracle::cached_keys(cache_type, head_dim, rows),
                            false => oracle::cached(cache_type, head_dim, rows),
                        }
                    }
                }
            });
            // Only the operation's numbers are read here.
            let view = decode.output;
            let mut expected = oracle::attention(&op(view, view), precision, &q, &keys, &values);
            if case.kv != KvStorage::default() {
                oracle::widen_for_cache(&mut expected, precision);
            }
            expected
        };
        let (middle, end) = (first + past_len, first + kv_len);
        if past_len > 0 {
            past.push_sequence(past_tokens, 0, &pages, 0..past_len);
            past_expected.extend(expected(first..middle, first..middle));
        }
        match case.window.filter(|_| case.causal) {
            None => new.push_sequence(new_tokens, past_len, &pages, 0..q_len),
            Some(window) => {
                // Page 0 is nobody's.
                new.push_sequence(new_tokens, past_len, &vec![0; pages.len()], 0..q_len);
                new.put_window_pages(&within_window(&pages, past_len, window));
            }
        }
        new_expected.extend(expected(middle..end, first..end));
        first = end;
    }
    let mut steps = Vec::new();
    if past.num_tokens() > 0 {
        steps.push(Step { plan: 0, inputs: past, expected: past_expected });
    }
    steps.push(Step { plan: usize::from(is_decode), inputs: new, expected: new_expected });
    check(backend, &[prefill, decode], &weights, &steps)
}
