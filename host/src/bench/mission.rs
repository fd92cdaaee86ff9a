//! The mission: attention of 1 x 8 x 512 x 64 in f16, verified and timed.
//!
//! The kernel is launched as a plan launches it, on a paged cache and a work list, through its
//! launcher. All outputs are verified against f64 before anything is timed. The calls follow each
//! other in one CUDA graph, over as many copies of the inputs as the peers are given, without
//! overlap; a time is what a call adds to a graph, and the median of several. Beside it stands the
//! time of an empty kernel of the same grid: after large kernels a process starts every kernel
//! later.

use std::path::PathBuf;

use cuda_std::launch::{DevicePtr, Launch, LaunchError};
use cuda_std::tensor_map::{EncodedTensorMap, TensorMapSpec};
use half::f16;
use kernels::attention::{Attention, AttentionOperands, SeqInputs, SeqLens};
use kernels::element::Dtype;
use kernels::gemm::Gpu;
use kernels::kv_cache::PAGE_SIZE;
use kernels::{Rows, empty};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

use crate::exec::ExecError;
use crate::exec::cuda::{KernelAttributes, KernelBench};

/// The shape: one sequence.
const NUM_HEADS: usize = 8;
const SEQ_LEN: usize = 512;
const HEAD_DIM: usize = 64;
const WIDTH: usize = NUM_HEADS * HEAD_DIM;
const NUM_PAGES: usize = SEQ_LEN / PAGE_SIZE as usize;

/// Copies of the inputs, as many as the peers are given; calls of a round, and measurements.
const COPIES: usize = 16;
const CALLS: usize = 4 * COPIES;
const REPLAYS: usize = 100;
const REPEATS: usize = 15;

/// The largest error of an output that is accepted.
const MAX_ERROR: f64 = 2e-3;

/// What was measured; times are `None` on the emulator.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Whether the attention is causal.
    pub causal: bool,
    /// The kernel.
    pub kernel: &'static str,
    /// Largest difference of an output from the reference in f64.
    pub max_error: f64,
    /// Norm of the differences over the norm of the reference.
    pub error: f64,
    /// Shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// What was measured on a GPU.
    #[serde(flatten)]
    pub on_gpu: Option<OnGpu>,
    /// The device.
    pub gpu: String,
}

/// What only a GPU can say.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct OnGpu {
    /// Microseconds of a call: the median.
    pub us: f64,
    /// The least.
    pub min_us: f64,
    /// Microseconds of an empty kernel of the same grid and clusters.
    pub empty_us: f64,
    /// Registers of a thread.
    pub registers: u32,
    /// Local memory of a thread, spilled registers included, in bytes.
    pub local_bytes: u32,
}

/// Why there is no row.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MissionError {
    /// The kernel cannot be run.
    #[error(transparent)]
    Exec(#[from] ExecError),
    /// The kernel does not take the shape.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The output is wrong: nothing is timed.
    #[error(
        "{kernel}, causal {causal}: an output is off by {max_error:e}, expected at most {MAX_ERROR:e}"
    )]
    Wrong {
        /// The kernel.
        kernel: &'static str,
        /// Whether the attention is causal.
        causal: bool,
        /// Largest difference from the reference.
        max_error: f64,
    },
}

/// Verifies and times the kernel on the device `cuda:<ordinal>`.
///
/// # Errors
/// [`MissionError`].
pub fn measure(
    ordinal: usize,
    causal: bool,
    cubin_dir: Option<PathBuf>,
) -> Result<Row, MissionError> {
    let mut bench = KernelBench::open(ordinal, cubin_dir)?;
    let mission = Mission::new(causal);
    let gpu = bench.gpu();
    let mut calls = Vec::new();
    for _ in 0..COPIES {
        let mut alloc = |_: &'static str, content: &[u8], bytes| bench.alloc(content, bytes);
        calls.push(mission.call(gpu, &mut alloc, KernelBench::encode)?);
    }
    let launches = |count: usize| -> Vec<Launch> {
        calls.iter().cycle().take(count).map(|call| call.launch.clone()).collect()
    };
    // SAFETY: the launches were made of buffers of the bench.
    unsafe { bench.time_us(&launches(COPIES), 1, 1) }?;
    let mut row = None;
    for call in &calls {
        let mut bytes = vec![0; 2 * SEQ_LEN * WIDTH];
        bench.read(call.out, &mut bytes)?;
        row = Some(mission.verify(call.launch.symbol, &call.launch, &bytes, bench.name())?);
    }
    let blocks = calls[0].launch.geometry.grid[0] as usize;
    let empty = empty::launch(blocks)?.expect("a grid of blocks");
    // SAFETY: as above; the empty kernel accesses nothing.
    let (attention, nothing) = unsafe {
        let mut per_call = |launches: &dyn Fn(usize) -> Vec<Launch>| {
            // Clocks and caches warm up.
            bench.time_us(&launches(CALLS), REPLAYS, 1)?;
            let two = bench.time_us(&launches(2 * CALLS), REPLAYS, REPEATS)?;
            let one = bench.time_us(&launches(CALLS), REPLAYS, REPEATS)?;
            let us = |i: usize| (two[i] - one[i]) / CALLS as f64;
            Ok::<_, ExecError>([us(REPEATS / 2), us(0)])
        };
        (per_call(&launches)?, per_call(&|count| vec![empty.clone(); count])?)
    };
    let KernelAttributes { registers, local_bytes } = bench.attributes(&calls[0].launch)?;
    let ([us, min_us], [empty_us, _]) = (attention, nothing);
    let on_gpu = OnGpu { us, min_us, empty_us, registers, local_bytes };
    Ok(Row { on_gpu: Some(on_gpu), ..row.expect("at least one copy") })
}

/// Verifies the kernel for an H200 on the emulator.
///
/// # Errors
/// [`MissionError`].
#[cfg(feature = "emulator")]
pub fn verify(causal: bool) -> Result<Row, MissionError> {
    use simt::{Init, Memory};
    let mut memory = Memory::new();
    let mission = Mission::new(causal);
    let mut alloc = |name: &'static str, content: &[u8], bytes: usize| {
        if content.is_empty() {
            return Ok(memory.alloc(name, Init::Poisoned(bytes)));
        }
        Ok(memory.alloc(name, Init::Bytes(content)))
    };
    let encode: Encode = |_| unreachable!("on an H200 the kernel has no tensor map");
    let Call { launch, out } = mission.call(Gpu::HOPPER, &mut alloc, encode)?;
    launch.emulate(&mut memory, 0).map_err(ExecError::from)?;
    let mut bytes = vec![0; 2 * SEQ_LEN * WIDTH];
    memory.read_or_poison(out, &mut bytes).expect("the output's length");
    mission.verify(launch.symbol, &launch, &bytes, "emulator")
}

/// Makes a tensor map.
type Encode = fn(&TensorMapSpec) -> Result<EncodedTensorMap, ExecError>;

/// A call, and the address of its output.
struct Call {
    launch: Launch,
    out: u64,
}

/// Inputs on the host. Positions of the cache lie in pages in descending order.
struct Mission {
    causal: bool,
    q: Vec<f16>,
    k: Vec<f16>,
    v: Vec<f16>,
    want: Vec<f64>,
}

/// Allocates memory by name, initial content and bytes; its address.
type Alloc<'a> = dyn FnMut(&'static str, &[u8], usize) -> Result<u64, ExecError> + 'a;

impl Mission {
    fn new(causal: bool) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(1);
        // Normal numbers, near enough: the sum of twelve even ones.
        let mut normal = || -> f16 {
            let sum: f32 = (0..12).map(|_| random.random_range(-0.5f32..0.5)).sum();
            f16::from_f32(sum)
        };
        let mut values = || (0..SEQ_LEN * WIDTH).map(|_| normal()).collect::<Vec<_>>();
        let (q, k, v) = (values(), values(), values());
        let want = reference(causal, [&q, &k, &v]);
        Mission { causal, q, k, v, want }
    }

    fn attention(&self) -> Attention {
        Attention {
            max_tokens: SEQ_LEN,
            max_seqs: 1,
            max_q_len: SEQ_LEN,
            max_decode_q_len: 0,
            max_kv_len: SEQ_LEN,
            max_pages_per_seq: NUM_PAGES,
            num_pages: NUM_PAGES,
            num_heads: NUM_HEADS,
            num_kv_heads: NUM_HEADS,
            head_dim: HEAD_DIM,
            softmax_scale: SOFTMAX_SCALE,
            causal: self.causal,
            window: None,
            batch_invariant: false,
        }
    }

    /// Allocates the inputs by `alloc(name, content, bytes)`, and makes the launch, whose tensor
    /// maps, if any, are made by `encode`.
    fn call(&self, gpu: Gpu, alloc: &mut Alloc<'_>, encode: Encode) -> Result<Call, MissionError> {
        let attention = self.attention();
        let lens = SeqLens { q_len: SEQ_LEN as u32, kv_len: SEQ_LEN as u32 };
        let items = attention.prefill_items(gpu, Dtype::F16, &[lens]);
        let table: Vec<u32> = (0..NUM_PAGES as u32).rev().collect();
        let mut words = |name, words: &[u32]| -> Result<DevicePtr<u32>, ExecError> {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            Ok(DevicePtr::new(alloc(name, &bytes, bytes.len())?))
        };
        let seqs = SeqInputs {
            num_seqs: words("num_seqs", &[1])?,
            cu_seqlens_q: words("cu_seqlens_q", &[0, SEQ_LEN as u32])?,
            kv_lens: words("kv_lens", &[SEQ_LEN as u32])?,
            block_table: words("block_table", &table)?,
            num_prefill_items: words("num_prefill_items", &[items.len() as u32])?,
            prefill_items: words("prefill_items", items.as_flattened())?,
            num_decode_items: words("num_decode_items", &[0])?,
            decode_items: words("decode_items", &[0; 8])?,
        };
        let counters = words("counters", &[0; Attention::NUM_PREFILL_COUNTERS])?;
        let mut halves = |name, values: &[f16]| -> Result<DevicePtr<f16>, ExecError> {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
            Ok(DevicePtr::new(alloc(name, &bytes, bytes.len())?))
        };
        let q = Rows::new(halves("q", &self.q)?, WIDTH);
        let (k_pool, v_pool) =
            (halves("k_pool", &pool(&self.k))?, halves("v_pool", &pool(&self.v))?);
        let out = alloc("out", &[], 2 * SEQ_LEN * WIDTH)?;
        let operands =
            AttentionOperands { q, k_pool, v_pool, out: Rows::new(DevicePtr::new(out), WIDTH) };
        let mut failed = None;
        let mut maps = |spec: &TensorMapSpec| {
            encode(spec).unwrap_or_else(|error| {
                failed = Some(error);
                EncodedTensorMap::NONE
            })
        };
        let launch = attention.prefill(gpu, &seqs, &operands, counters, &mut maps)?;
        if let Some(error) = failed {
            return Err(error.into());
        }
        Ok(Call { launch: launch.expect("there are tokens"), out })
    }

    /// Compares all outputs with the reference.
    fn verify(
        &self,
        kernel: &'static str,
        launch: &Launch,
        bytes: &[u8],
        gpu: &str,
    ) -> Result<Row, MissionError> {
        let (halves, _) = bytes.as_chunks();
        let got = halves.iter().map(|&half| f64::from(f16::from_ne_bytes(half)));
        let (mut max_error, mut difference, mut norm) = (0.0f64, 0.0, 0.0);
        for (got, want) in got.zip(&self.want) {
            let off = (got - want).abs();
            // What no launch wrote is NaN.
            max_error = max_error.max(if off.is_nan() { f64::INFINITY } else { off });
            difference += off * off;
            norm += want * want;
        }
        let causal = self.causal;
        if max_error > MAX_ERROR {
            return Err(MissionError::Wrong { kernel, causal, max_error });
        }
        Ok(Row {
            causal,
            kernel,
            max_error,
            error: f64::sqrt(difference / norm),
            shared_bytes: launch.geometry.shared_bytes,
            on_gpu: None,
            gpu: gpu.to_owned(),
        })
    }
}

const SOFTMAX_SCALE: f32 = 0.125;

/// `[position, head, column]` as a pool `[page, head, position in the page, column]`.
fn pool(values: &[f16]) -> Vec<f16> {
    let page_size = PAGE_SIZE as usize;
    let mut pool = Vec::with_capacity(values.len());
    for page in (0..NUM_PAGES).rev() {
        for head in 0..NUM_HEADS {
            for position in page * page_size..(page + 1) * page_size {
                let at = position * WIDTH + head * HEAD_DIM;
                pool.extend_from_slice(&values[at..at + HEAD_DIM]);
            }
        }
    }
    pool
}

/// Attention in f64.
fn reference(causal: bool, [q, k, v]: [&[f16]; 3]) -> Vec<f64> {
    let row = |x: &[f16], position: usize, head: usize| -> Vec<f64> {
        let at = position * WIDTH + head * HEAD_DIM;
        x[at..at + HEAD_DIM].iter().map(|&x| f64::from(x)).collect()
    };
    let mut out = vec![0.0; SEQ_LEN * WIDTH];
    for head in 0..NUM_HEADS {
        let rows = |x| (0..SEQ_LEN).map(|at| row(x, at, head)).collect::<Vec<_>>();
        let (k, v) = (rows(k), rows(v));
        for position in 0..SEQ_LEN {
            let q = row(q, position, head);
            let keys = if causal { position + 1 } else { SEQ_LEN };
            let dot = |k: &Vec<f64>| q.iter().zip(k).map(|(q, k)| q * k).sum::<f64>();
            let scores: Vec<f64> =
                k[..keys].iter().map(|k| f64::from(SOFTMAX_SCALE) * dot(k)).collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
            let total: f64 = weights.iter().sum();
            let at = position * WIDTH + head * HEAD_DIM;
            for (weight, v) in weights.iter().zip(&v) {
                let sums = out[at..at + HEAD_DIM].iter_mut();
                sums.zip(v).for_each(|(sum, v)| *sum += weight / total * v);
            }
        }
    }
    out
}
