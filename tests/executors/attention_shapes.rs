//! Attention at the borders of tiles, splits and pages, in a cache that is full of NaN: every page
//! is written with NaN first, so that whatever a kernel reads beyond a sequence shows.

use std::ops::Range;

use halfwarp::plan::{
    Attention, Bounds, KvHeads, KvLayout, KvStorage, Op, PAGE_SIZE, Plan, Precision, StepInputs,
    View, WindowPools,
};
use libtest_mimic::Completion;

use crate::harness::{HALVES, Matrix, Setup, Step, Weights, check_within, suffix, within_window};
use crate::oracle::{self, Approx};
use crate::{Backend, Outcome, Test};

/// Query heads, KV heads, columns of a head.
type Heads = (usize, usize, usize);

/// A sequence: positions in the cache, and new tokens.
type Sequence = (usize, usize);

/// Few enough for the emulator.
const SMALL: Heads = (2, 1, 16);

/// Groups of 1, 7 and 8 query heads.
const GROUPS: [Heads; 3] = [(2, 2, 64), (7, 1, 64), (8, 1, 128)];

/// The other head_dims: those of models, and the borders of the kernels' panels.
const HEAD_DIMS: [Heads; 7] =
    [(2, 1, 8), (2, 1, 40), (2, 1, 72), (2, 1, 80), (2, 1, 96), (2, 1, 200), (2, 1, 256)];

/// New tokens: one less than a tile's rows, as many, and one more.
const PROMPTS: [usize; 14] = [1, 2, 63, 64, 65, 127, 128, 129, 191, 192, 193, 255, 256, 257];

/// As `PROMPTS`, for the keys.
const LONG_PROMPTS: [usize; 4] = [511, 512, 513, 4096];

/// Positions that a decoding row attends to.
const KV_LENS: [usize; 8] = [1, 63, 64, 65, 511, 512, 513, 4096];

/// Positions that only a GPU attends to, and with enough heads for the CPU's limit.
const LONGEST_KV_LEN: usize = 65_536;
const LONGEST_HEADS: [Heads; 2] = [(14, 2, 64), (8, 1, 128)];

const WINDOWS: [usize; 6] = [1, 63, 64, 65, 128, 513];

/// Queries and keys as large as this have scores of up to +-60,000 before they are scaled.
const LARGE: f32 = 75.0;

/// Most operations of a case on the CPU, which has no tiles of these sizes.
const MAX_CPU_FLOPS: usize = 5_000_000;

/// Most operations of a case on the emulator, and positions of its pool.
const MAX_EMULATED_FLOPS: usize = 300_000;
const MAX_EMULATED_POSITIONS: usize = 448;

/// The oracle computes so many of a sequence's new tokens, the last ones.
const MAX_COMPARED: usize = 300;

/// What is computed, of which queries, keys and values.
#[derive(Clone)]
struct Case {
    precision: Precision,
    sequences: Vec<Sequence>,
    heads: Heads,
    causal: bool,
    window: Option<usize>,
    /// Factor of the elements of queries and keys.
    magnitude: f32,
}

/// Each a name and its sequences.
fn steps() -> Vec<(String, Vec<Sequence>)> {
    let mut steps = Vec::new();
    steps.extend(PROMPTS.map(|q_len| (format!("prompt_{q_len}"), vec![(0, q_len)])));
    steps.extend(KV_LENS.map(|kv_len| (format!("decode_{kv_len}"), vec![(kv_len - 1, 1)])));
    for (past_len, q_len) in [(1, 2), (62, 2), (63, 16), (64, 17), (447, 64), (448, 65), (511, 130)]
    {
        steps.push((format!("extension_{past_len}_by_{q_len}"), vec![(past_len, q_len)]));
    }
    steps.push((
        "decode_batch".to_owned(),
        vec![(0, 1), (62, 1), (63, 1), (64, 1), (510, 1), (511, 1), (512, 1), (130, 1)],
    ));
    // Every number of rows that split-KV may take, at ever other places of a page.
    let extensions = (1..=17).map(|q_len| (37 * q_len, q_len)).collect();
    steps.push(("extensions_by_1_to_17".to_owned(), extensions));
    steps.push(("mixed".to_owned(), mixed()));
    steps
}

/// Prompts, extensions and decoding rows, and a sequence without a new token.
fn mixed() -> Vec<Sequence> {
    vec![(0, 193), (511, 1), (64, 16), (0, 1), (70, 0), (300, 17), (129, 1), (63, 2), (0, 64)]
}

/// Small enough for the emulator, with one of each kind.
fn small_mixed() -> Vec<Sequence> {
    vec![(0, 17), (62, 5), (3, 0), (9, 1)]
}

pub fn tests() -> Vec<Test> {
    let case = |sequences: &[Sequence], heads| Case {
        precision: Precision::F32,
        sequences: sequences.to_vec(),
        heads,
        causal: true,
        window: None,
        magnitude: 1.0,
    };
    let mut cases: Vec<(String, Case)> = Vec::new();
    for (name, sequences) in steps() {
        for heads in [SMALL].into_iter().chain(GROUPS) {
            cases.push((name.clone(), case(&sequences, heads)));
        }
        for heads in [SMALL, GROUPS[1]] {
            let full = Case { causal: false, ..case(&sequences, heads) };
            cases.push((format!("{name}_full"), full));
        }
    }
    cases.push(("small_mixed".to_owned(), case(&small_mixed(), SMALL)));
    for heads in HEAD_DIMS {
        for sequences in [vec![(0, 129)], vec![(511, 1)], mixed()] {
            cases.push((name_of(&sequences), case(&sequences, heads)));
        }
    }
    for q_len in LONG_PROMPTS {
        let heads = [(7, 1, 64), (2, 1, 128)];
        cases.extend(heads.map(|heads| (format!("prompt_{q_len}"), case(&[(0, q_len)], heads))));
    }
    for heads in LONGEST_HEADS {
        for q_len in [1, 7] {
            let sequences = [(LONGEST_KV_LEN - q_len, q_len), (130, q_len)];
            cases.push((name_of(&sequences), case(&sequences, heads)));
        }
    }
    for window in WINDOWS {
        for (sequences, heads) in
            [(mixed(), GROUPS[1]), (vec![(0, 257)], GROUPS[2]), (small_mixed(), SMALL)]
        {
            if heads == SMALL && ![1, 64].contains(&window) {
                continue;
            }
            let name = format!("{}_window_{window}", name_of(&sequences));
            cases.push((name, Case { window: Some(window), ..case(&sequences, heads) }));
        }
    }
    // Pages have left.
    for sequences in [[(150, 5)], [(140, 1)]] {
        let name = format!("{}_window_1", name_of(&sequences));
        cases.push((name, Case { window: Some(1), ..case(&sequences, SMALL) }));
    }
    for (sequences, heads) in [
        (mixed(), GROUPS[1]),
        (vec![(0, 193)], GROUPS[2]),
        (vec![(512, 1)], GROUPS[0]),
        (small_mixed(), SMALL),
    ] {
        let name = format!("{}_large_scores", name_of(&sequences));
        cases.push((name, Case { magnitude: LARGE, ..case(&sequences, heads) }));
    }
    let of_precision = |precision| {
        // The kernels for bf16 are those for f16.
        let taken = |name: &str| precision != Precision::BF16 || name.starts_with("mixed");
        let cases = cases.iter().filter(|(name, _)| taken(name)).cloned();
        cases.map(move |(name, case)| (name, Case { precision, ..case })).collect::<Vec<_>>()
    };
    let all = [Precision::F32].into_iter().chain(HALVES).flat_map(of_precision);
    all.map(|(name, case)| {
        let (num_heads, num_kv_heads, head_dim) = case.heads;
        let heads = format!("{num_heads}x{num_kv_heads}x{head_dim}");
        let name = format!("attention::at_borders_{name}_{heads}{}", suffix(case.precision));
        Test::new(name, move |backend| matches_oracle(backend, &case))
    })
    .collect()
}

/// The name of a step in `tests`.
fn name_of(sequences: &[Sequence]) -> String {
    match *sequences {
        [(0, q_len)] => format!("prompt_{q_len}"),
        [(past_len, 1)] => format!("decode_{}", past_len + 1),
        [(past_len, q_len)] => format!("extension_{past_len}_by_{q_len}"),
        [(past_len, q_len), (130, _)] => format!("beside_a_short_one_{past_len}_by_{q_len}"),
        _ if sequences == small_mixed() => "small_mixed".to_owned(),
        _ => "mixed".to_owned(),
    }
}

/// Writes NaN to all pages, then the positions before the new tokens, and runs the new tokens.
fn matches_oracle(mut backend: Backend, case: &Case) -> Outcome {
    let pool = Pool::of(case);
    if let Some(reason) = case.too_large_for(backend.name, pool.num_positions()) {
        return Ok(Completion::ignored_with(reason));
    }
    // The limit of the other tests counts what fills the pool, too.
    backend.max_flops = usize::MAX;
    let rows = case.rows();
    let (append, weights) = case.plan(&pool, &rows, None);
    let (attend, _) = case.plan(&pool, &rows, Some(case.max_q_len()));
    let plans = [append, attend];
    let steps = [(0, pool.poison()), (0, pool.past(case)), (1, pool.new_tokens(case))];
    // A step without a token is none.
    let steps = steps.into_iter().filter(|(_, inputs)| inputs.num_tokens() > 0);
    let steps: Vec<(usize, StepInputs)> = steps.collect();
    let steps = steps.into_iter().map(|(plan, inputs)| {
        let expected = match plan {
            0 => case.appended(&inputs, &rows),
            _ => case.attended(&rows, plans[plan].output),
        };
        Step { plan, inputs, expected }
    });
    let (largest, _) = case.plan(&pool, &rows, Some(pool.num_positions()));
    check_within(backend, &largest, &plans, &weights, &steps.collect::<Vec<_>>())
}

/// The pages of the sequences, and some that none has.
struct Pool {
    pages: Vec<Vec<u32>>,
    num_pages: usize,
}

impl Pool {
    fn of(case: &Case) -> Self {
        let needed = |&(past_len, q_len): &Sequence| (past_len + q_len).div_ceil(PAGE_SIZE);
        let num_pages = case.sequences.iter().map(needed).sum::<usize>() + 2;
        let mut free = (1..num_pages as u32).rev();
        let pages = case.sequences.iter().map(|one| free.by_ref().take(needed(one)).collect());
        Pool { pages: pages.collect(), num_pages }
    }

    fn num_positions(&self) -> usize {
        self.num_pages * PAGE_SIZE
    }

    /// NaN in all positions of all pages.
    fn poison(&self) -> StepInputs {
        let pages: Vec<u32> = (0..self.num_pages as u32).collect();
        let mut inputs = StepInputs::new();
        inputs.push_sequence(&vec![0; self.num_positions()], 0, &pages, 0..1);
        inputs
    }

    fn past(&self, case: &Case) -> StepInputs {
        let mut inputs = StepInputs::new();
        for ((tokens, &(past_len, _)), pages) in case.tokens().zip(&case.sequences).zip(&self.pages)
        {
            if past_len > 0 {
                inputs.push_sequence(&tokens[..past_len], 0, pages, 0..1);
            }
        }
        inputs
    }

    fn new_tokens(&self, case: &Case) -> StepInputs {
        let mut inputs = StepInputs::new();
        for ((tokens, &(past_len, q_len)), pages) in
            case.tokens().zip(&case.sequences).zip(&self.pages)
        {
            let (new, rows) = (&tokens[past_len..], compared(q_len));
            match case.window {
                None => inputs.push_sequence(new, past_len, pages, rows),
                Some(window) => {
                    // Page 0 is nobody's.
                    inputs.push_sequence(new, past_len, &vec![0; pages.len()], rows);
                    inputs.put_window_pages(&within_window(pages, past_len, window));
                }
            }
        }
        inputs
    }
}

/// Which of a sequence's new tokens are compared.
fn compared(q_len: usize) -> Range<usize> {
    q_len.saturating_sub(MAX_COMPARED)..q_len
}

impl Case {
    fn q_width(&self) -> usize {
        self.heads.0 * self.heads.2
    }

    fn kv_width(&self) -> usize {
        self.heads.1 * self.heads.2
    }

    fn max_q_len(&self) -> usize {
        self.sequences.iter().map(|&(_, q_len)| q_len).max().unwrap_or(1)
    }

    /// Why an executor leaves the case out, which fills a pool of `num_positions`.
    fn too_large_for(&self, executor: &str, num_positions: usize) -> Option<String> {
        let (max_flops, max_positions) = match executor {
            "cpu" => (MAX_CPU_FLOPS, usize::MAX),
            "emulated" if self.heads != SMALL => return Some("the emulator: small heads".into()),
            "emulated" => (MAX_EMULATED_FLOPS, MAX_EMULATED_POSITIONS),
            _ => return None,
        };
        let pairs = |&(past_len, q_len): &Sequence| match self.causal {
            true => q_len * past_len + q_len * (q_len + 1) / 2,
            false => q_len * (past_len + q_len),
        };
        let flops = 4 * self.q_width() * self.sequences.iter().map(pairs).sum::<usize>();
        let is_too_large = flops > max_flops || num_positions > max_positions;
        is_too_large.then(|| {
            format!("{executor}: too large, {flops} operations, a pool of {num_positions}")
        })
    }

    /// By sequence, the tokens of all its positions: row `token - 1` of [`Case::rows`].
    fn tokens(&self) -> impl Iterator<Item = Vec<u32>> {
        let mut first = 1;
        self.sequences.iter().map(move |&(past_len, q_len)| {
            let tokens = first..first + (past_len + q_len) as u32;
            first = tokens.end;
            tokens.collect()
        })
    }

    /// Queries, keys and values of all positions.
    fn rows(&self) -> Matrix {
        let num_rows = self.sequences.iter().map(|(past_len, q_len)| past_len + q_len).sum();
        let mut rows = Matrix::random(1, num_rows, self.q_width() + 2 * self.kv_width());
        let scaled = self.q_width() + self.kv_width();
        for row in rows.data.chunks_exact_mut(rows.cols) {
            row[..scaled].iter_mut().for_each(|element| *element *= self.magnitude);
        }
        rows.rounded(self.precision)
    }

    fn op(&self, q: View, out: View) -> Attention {
        let (num_heads, num_kv_heads, head_dim) = self.heads;
        Attention {
            layer: 1,
            q,
            out,
            num_heads,
            num_kv_heads,
            head_dim,
            softmax_scale: 1.0 / (head_dim as f32).sqrt(),
            causal: self.causal,
            window: self.window,
            sinks: None,
            softcap: None,
        }
    }

    /// A plan that appends, and attends if there is a largest number of queries; else its logits
    /// are the queries.
    fn plan(&self, pool: &Pool, rows: &Matrix, max_q_len: Option<usize>) -> (Plan, Weights) {
        let (q_width, kv_width) = (self.q_width(), self.kv_width());
        let mut setup = Setup::new(self.precision);
        let qkv = setup.input("input", rows);
        let k = qkv.columns(q_width, kv_width);
        let v = qkv.columns(q_width + kv_width, kv_width);
        setup.plan.op(Op::KvAppend { layer: 1, k, v });
        let q = qkv.columns(0, q_width);
        let num_positions = pool.num_positions();
        let new_tokens: usize = self.sequences.iter().map(|&(_, q_len)| q_len).sum();
        let (out, max_tokens, max_q_len) = match max_q_len {
            Some(max_q_len) => {
                let out = setup.activation("out", q_width);
                setup.plan.op(Op::Attention(self.op(q, out)));
                (out, max_q_len.max(new_tokens + 1), max_q_len)
            }
            None => (q, num_positions, num_positions),
        };
        let bounds = Bounds {
            max_tokens,
            max_seqs: self.sequences.len() + 1,
            max_q_len,
            max_logit_rows: max_tokens,
            max_kv_len: num_positions,
            mixed: false,
        };
        let kv = KvLayout {
            layers: vec![KvHeads { num_kv_heads: self.heads.1, head_dim: self.heads.2 }; 2],
            num_pages: pool.num_pages,
            windows: self
                .window
                .map(|_| WindowPools { layers: vec![false, true], num_pages: pool.num_pages }),
            dtype: self.precision.cache(),
            storage: KvStorage::default(),
        };
        setup.finish(bounds, kv, out)
    }

    /// The queries of a step that only appends.
    fn appended(&self, inputs: &StepInputs, rows: &Matrix) -> Vec<Approx> {
        let tokens = inputs.logit_rows.iter().map(|&row| inputs.token_ids[row as usize] as usize);
        let of_token = |token: usize| match token.checked_sub(1) {
            Some(row) => rows.row(row)[..self.q_width()].to_vec(),
            None => vec![f32::NAN; self.q_width()],
        };
        tokens.flat_map(of_token).map(Approx::exactly).collect()
    }

    /// What comes of the new tokens; of `view` nothing is read.
    fn attended(&self, rows: &Matrix, view: View) -> Vec<Approx> {
        let (q_width, kv_width) = (self.q_width(), self.kv_width());
        let mut expected = Vec::new();
        let mut first = 0;
        for &(past_len, q_len) in &self.sequences {
            let end = first + past_len + q_len;
            let part = |rows_of: Range<usize>, start, width| {
                rows.rows(rows_of).columns(start..start + width)
            };
            let q = part(end - compared(q_len).len()..end, 0, q_width);
            let keys = part(first..end, q_width, kv_width);
            let values = part(first..end, q_width + kv_width, kv_width);
            let op = self.op(view, view);
            expected.extend(oracle::attention(&op, self.precision, &q, &keys, &values));
            first = end;
        }
        expected
    }
}
