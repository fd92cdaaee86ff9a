//! Attention prefill over a cache in E4M3 on a GPU, timed as [`kernels`](super::kernels) says.
//!
//! A token's row of a random table is its Q, K and V. Kernels find the scales and append them to
//! each copy of the cache, whose pages are in random order; attention alone is timed.

use std::path::PathBuf;

use cuda_std::E4m3;
use cuda_std::launch::{DevicePtr, Launch, LaunchError};
use half::f16;
use kernels::Rows;
use kernels::attention::sm90::NUM_COUNTERS;
use kernels::attention::sm90::fp8::Mode;
use kernels::attention::{Attention, AttentionFp8, AttentionFp8Operands, SeqInputs, SeqLens};
use kernels::kv_cache::PAGE_SIZE;
use kernels::kv_cache::append_fp8::{AppendFp8, AppendFp8Operands, HeadScales};
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use super::attention::{Shape, Step};
use super::kernels::{
    BenchError, Row, attend, calls_per_round, check_error, num_copies, relative_error,
    us_per_call_of, with_maps,
};
use super::random::RandomWeights;
use crate::exec::ExecError;
use crate::exec::cuda::KernelBench;

const MAX_COPIES: usize = 4;
/// Rows of the random table.
const TABLE_ROWS: usize = 1024;
/// Heads of rows that are verified.
const SAMPLES: usize = 64;

/// What is measured.
#[derive(Clone, Debug)]
pub struct Config {
    /// The number of the GPU.
    pub gpu: usize,
    /// How weights and V are multiplied.
    pub mode: Mode,
    /// As [`GpuOptions::cubin_dir`](crate::exec::GpuOptions::cubin_dir).
    pub cubin_dir: Option<PathBuf>,
}

impl Config {
    /// The largest error: of the norm.
    fn max_error(&self) -> f64 {
        match self.mode {
            Mode::Strict => 5e-3,
            Mode::Fast => 3e-2,
        }
    }
}

/// Measures `config` at a shape.
///
/// # Errors
/// [`BenchError`]; [`ExecError::Unsupported`] in it where no kernel takes the shape.
pub fn measure(config: &Config, shape: Shape) -> Result<Row<Shape>, BenchError> {
    let mut bench = KernelBench::open(config.gpu, config.cubin_dir.clone())?;
    let inputs = Inputs::new(shape);
    let element_bytes = size_of::<E4m3>();
    let cache_bytes = 2 * shape.batch * shape.kv_len() * inputs.kv_width() * element_bytes;
    let copies = num_copies(cache_bytes + inputs.tokens.len() * inputs.q_width(), MAX_COPIES);
    let attention = AttentionFp8 { attention: inputs.attention()?, mode: config.mode };
    let buffers = Buffers::new(&mut bench, &inputs, &attention)?;
    let mut launches = Vec::new();
    for _ in 0..copies {
        let appended = Appended::new(&mut bench, &inputs)?;
        let fill = buffers.fill(&inputs, &appended)?;
        // SAFETY: launches are made of buffers of the bench.
        unsafe { bench.time_us(&fill, 1, 1) }?;
        launches.push(buffers.attend(&bench, &attention, &appended)?);
    }

    // SAFETY: as above.
    unsafe { bench.time_us(&launches[..1], 1, 1) }?;
    let mut got = vec![0; size_of::<f16>() * inputs.tokens.len() * inputs.q_width()];
    bench.read(buffers.out.0, &mut got)?;
    let got: Vec<f16> = got.as_chunks().0.iter().map(|&x| f16::from_ne_bytes(x)).collect();
    let error = check_error(&shape, inputs.sampled_error(&got), config.max_error())?;

    let calls = calls_per_round(launches.len());
    let launches: Vec<Vec<Launch>> = launches.into_iter().map(|launch| vec![launch]).collect();
    // SAFETY: as above.
    let [us, min_us] = unsafe { us_per_call_of(&mut bench, &launches, calls) }?;
    let moved = cache_bytes + inputs.tokens.len() * inputs.q_width() * (element_bytes + 2);
    Ok(Row {
        op: shape.op(),
        implementation: "halfwarp",
        dtype: if config.mode == Mode::Fast { "e4m3_fast" } else { "e4m3" }.to_owned(),
        shape,
        us,
        min_us,
        tflops: shape.flops() / us / 1e6,
        gbs: moved as f64 / us / 1e3,
        error,
        config: Some("sm_90a"),
        gpu: format!("{} (sm_90a)", bench.name()),
    })
}

fn unsupported(error: LaunchError) -> ExecError {
    let op = "attention in FP8".to_owned();
    ExecError::Unsupported { op, why: error.to_string() }
}

fn one(launch: Result<Option<Launch>, LaunchError>) -> Result<Launch, ExecError> {
    let launch = launch.map_err(unsupported)?;
    launch.ok_or_else(|| ExecError::Unsupported {
        op: "attention in FP8".to_owned(),
        why: "there are no prompts".to_owned(),
    })
}

/// The inputs on the host.
struct Inputs {
    shape: Shape,
    /// `[TABLE_ROWS, q_width + 2 * kv_width]`.
    table: Vec<f16>,
    /// A row of the table for each token.
    tokens: Vec<u32>,
    /// Pages of each sequence.
    pages: Vec<u32>,
}

impl Inputs {
    fn new(shape: Shape) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(3);
        let width = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim;
        let draw = |random: &mut ChaCha8Rng| f16::from_f32((RandomWeights::NORMAL.draw)(random));
        let table = (0..TABLE_ROWS * width).map(|_| draw(&mut random)).collect();
        let num_tokens = shape.batch * shape.kv_len();
        let token = |_| random.random_range(0..TABLE_ROWS as u32);
        let tokens = (0..num_tokens).map(token).collect();
        let num_pages = shape.batch * shape.kv_len().div_ceil(PAGE_SIZE as usize);
        let mut pages: Vec<u32> = (0..num_pages as u32).collect();
        pages.shuffle(&mut ChaCha8Rng::seed_from_u64(4));
        Inputs { shape, table, tokens, pages }
    }

    fn q_width(&self) -> usize {
        self.shape.num_heads * self.shape.head_dim
    }

    fn kv_width(&self) -> usize {
        self.shape.num_kv_heads * self.shape.head_dim
    }

    fn width(&self) -> usize {
        self.q_width() + 2 * self.kv_width()
    }

    fn pages_per_seq(&self) -> usize {
        self.pages.len() / self.shape.batch
    }

    fn is_causal(&self) -> bool {
        matches!(self.shape.step, Step::Prefill { causal: true, .. })
    }

    fn softmax_scale(&self) -> f32 {
        (self.shape.head_dim as f32).sqrt().recip()
    }

    fn attention(&self) -> Result<Attention, BenchError> {
        self.shape.check()?;
        let Shape { batch, num_heads, num_kv_heads, head_dim, .. } = self.shape;
        Ok(Attention {
            max_tokens: self.tokens.len(),
            max_seqs: batch,
            max_q_len: self.shape.kv_len(),
            max_decode_q_len: 0,
            max_kv_len: self.shape.kv_len(),
            max_pages_per_seq: self.pages_per_seq(),
            num_pages: self.pages.len(),
            num_heads,
            num_kv_heads,
            head_dim,
            softmax_scale: self.softmax_scale(),
            causal: self.is_causal(),
            window: None,
            batch_invariant: false,
            has_sinks: false,
            softcap: None,
        })
    }

    /// Column `first ..` of the rows of `tokens`, as the quants of a head are: rounded to E4M3.
    fn quantised(&self, tokens: &[u32], first: usize) -> Vec<Vec<f64>> {
        let row = |token: u32| {
            let start = token as usize * self.width() + first;
            &self.table[start..][..self.shape.head_dim]
        };
        // The largest of all tokens, as the kernel that finds scales has it.
        let of_all = self.tokens.iter().flat_map(|&token| row(token));
        let largest = of_all.fold(0.0f32, |max, x| max.max(x.to_f32().abs()));
        let scale = largest * (1.0 / E4m3::MAX);
        let inverse = 1.0 / scale;
        let value =
            |x: &f16| f64::from(E4m3::from_f32(x.to_f32() * inverse).to_f32()) * f64::from(scale);
        tokens.iter().map(|&token| row(token).iter().map(value).collect()).collect()
    }

    /// The relative norm of a sample of rows and heads.
    fn sampled_error(&self, got: &[f16]) -> f64 {
        let Shape { batch, num_heads, num_kv_heads, head_dim, .. } = self.shape;
        let seq_len = self.shape.kv_len();
        let mut random = ChaCha8Rng::seed_from_u64(2);
        let bounds = [batch, seq_len, num_heads];
        let samples: Vec<[usize; 3]> =
            (0..SAMPLES).map(|_| bounds.map(|bound| random.random_range(0..bound))).collect();
        let pairs: Vec<(f32, f64)> = samples
            .into_par_iter()
            .flat_map_iter(|[seq, token, head]| {
                let start = ((seq * seq_len + token) * num_heads + head) * head_dim;
                let got: Vec<f32> = got[start..][..head_dim].iter().map(|x| x.to_f32()).collect();
                got.into_iter().zip(self.attend(seq, token, head * num_kv_heads / num_heads, head))
            })
            .collect();
        relative_error(pairs)
    }

    /// Attention of one head of a token, on the quants.
    fn attend(&self, seq: usize, token: usize, kv_head: usize, head: usize) -> Vec<f64> {
        let (seq_len, head_dim) = (self.shape.kv_len(), self.shape.head_dim);
        let seq_tokens = &self.tokens[seq * seq_len..][..seq_len];
        let seen = &seq_tokens[..if self.is_causal() { token + 1 } else { seq_len }];
        let q = &self.quantised(&seq_tokens[token..=token], head * head_dim)[0];
        let k = self.quantised(seen, self.q_width() + kv_head * head_dim);
        let v = self.quantised(seen, self.q_width() + self.kv_width() + kv_head * head_dim);
        attend(self.softmax_scale(), q, &k, &v)
    }
}

/// What all copies share, on the GPU.
struct Buffers {
    seqs: SeqInputs,
    num_tokens: DevicePtr<u32>,
    slot_mapping: DevicePtr<u32>,
    counters: DevicePtr<u32>,
    /// Rows of Q, K and V.
    qkv: DevicePtr<f16>,
    width: usize,
    out: DevicePtr<f16>,
}

/// A copy of Q and the cache, on the GPU.
struct Appended {
    q: Rows<E4m3>,
    pools: [DevicePtr<E4m3>; 2],
    /// Scales of Q, K and V.
    scales: [DevicePtr<f32>; 3],
}

fn words(values: impl IntoIterator<Item = u32>) -> Vec<u8> {
    values.into_iter().flat_map(u32::to_ne_bytes).collect()
}

impl Appended {
    fn new(bench: &mut KernelBench, inputs: &Inputs) -> Result<Self, ExecError> {
        let Shape { num_heads, num_kv_heads, .. } = inputs.shape;
        let pool_bytes = inputs.pages.len() * PAGE_SIZE as usize * inputs.kv_width();
        let zeros = |bench: &mut KernelBench, heads: usize| {
            bench.alloc(&vec![0; 4 * heads], 4 * heads).map(DevicePtr::new)
        };
        let scales =
            [zeros(bench, num_heads)?, zeros(bench, num_kv_heads)?, zeros(bench, num_kv_heads)?];
        let mut bytes = |len: usize| bench.alloc(&[], len).map(DevicePtr::new);
        let q = Rows::new(bytes(inputs.tokens.len() * inputs.q_width())?, inputs.q_width());
        Ok(Appended { q, pools: [bytes(pool_bytes)?, bytes(pool_bytes)?], scales })
    }
}

impl Buffers {
    fn new(
        bench: &mut KernelBench,
        inputs: &Inputs,
        attention: &AttentionFp8,
    ) -> Result<Self, ExecError> {
        let (batch, seq_len) = (inputs.shape.batch, inputs.shape.kv_len());
        let lens = SeqLens { q_len: seq_len as u32, kv_len: seq_len as u32 };
        let items = attention.prefill_items(&vec![lens; batch]).map_err(unsupported)?;
        let slots = (0..inputs.tokens.len()).map(|token| {
            let (seq, position) = (token / seq_len, token % seq_len);
            let page = seq * inputs.pages_per_seq() + position / PAGE_SIZE as usize;
            inputs.pages[page] * PAGE_SIZE + (position % PAGE_SIZE as usize) as u32
        });
        let width = inputs.width();
        let rows = inputs.tokens.iter().flat_map(|&token| {
            let row = &inputs.table[token as usize * width..][..width];
            row.iter().flat_map(|x| x.to_ne_bytes())
        });
        let rows: Vec<u8> = rows.collect();
        let out_bytes = size_of::<f16>() * inputs.tokens.len() * inputs.q_width();
        let mut put = |bytes: &[u8]| bench.alloc(bytes, bytes.len());
        let mut numbers = |values: Vec<u32>| put(&words(values)).map(DevicePtr::new);
        let seqs = SeqInputs {
            num_seqs: numbers(vec![batch as u32])?,
            cu_seqlens_q: numbers((0..=batch).map(|seq| (seq * seq_len) as u32).collect())?,
            kv_lens: numbers(vec![seq_len as u32; batch])?,
            block_table: numbers(inputs.pages.clone())?,
            num_prefill_items: numbers(vec![items.len() as u32])?,
            prefill_items: numbers(items.into_flattened())?,
            num_decode_items: numbers(vec![0])?,
            decode_items: DevicePtr::null(),
        };
        Ok(Buffers {
            seqs,
            num_tokens: numbers(vec![inputs.tokens.len() as u32])?,
            slot_mapping: numbers(slots.collect())?,
            counters: numbers(vec![0; NUM_COUNTERS])?,
            qkv: DevicePtr::new(put(&rows)?),
            width,
            out: DevicePtr::new(bench.alloc(&[], out_bytes)?),
        })
    }

    /// The launches that find the scales and fill a copy.
    fn fill(&self, inputs: &Inputs, appended: &Appended) -> Result<Vec<Launch>, ExecError> {
        let Shape { num_heads, num_kv_heads, head_dim, .. } = inputs.shape;
        let max_tokens = inputs.tokens.len();
        let columns = |first: usize| {
            let start = self.qkv.0 + (size_of::<f16>() * first) as u64;
            Rows::new(DevicePtr::<f16>::new(start), self.width)
        };
        let q_width = inputs.q_width();
        let rows = [0, q_width, q_width + inputs.kv_width()].map(columns);
        let mut launches = Vec::new();
        for (i, num_heads) in [num_heads, num_kv_heads, num_kv_heads].into_iter().enumerate() {
            let scales = HeadScales { max_tokens, num_heads, head_dim };
            launches.push(one(scales.launch(self.num_tokens, rows[i], appended.scales[i]))?);
        }
        let [q, k, v] = rows;
        let [q_scale, k_scale, v_scale] = appended.scales;
        let [k_pool, v_pool] = appended.pools;
        let append = AppendFp8 { max_tokens, num_heads, num_kv_heads, head_dim };
        let operands = AppendFp8Operands {
            slot_mapping: self.slot_mapping,
            q,
            k,
            v,
            q_scale,
            k_scale,
            v_scale,
            q_out: appended.q,
            k_pool,
            v_pool,
        };
        launches.push(one(append.launch(self.num_tokens, &operands))?);
        Ok(launches)
    }

    /// The launch of attention over a copy.
    fn attend(
        &self,
        bench: &KernelBench,
        attention: &AttentionFp8,
        appended: &Appended,
    ) -> Result<Launch, ExecError> {
        let [q_scale, k_scale, v_scale] = appended.scales;
        let [k_pool, v_pool] = appended.pools;
        let operands = AttentionFp8Operands {
            q: appended.q,
            k_pool,
            v_pool,
            q_scale,
            k_scale,
            v_scale,
            out: Rows::new(self.out, appended.q.row_stride),
            lse: DevicePtr::null(),
        };
        one(with_maps(KernelBench::encode, |maps| {
            attention.prefill(bench.gpu(), &self.seqs, &operands, self.counters, maps)
        })?)
    }
}
