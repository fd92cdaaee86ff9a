//! The inputs of the mission, its launches and its reference.

use cuda_std::E4m3;
use cuda_std::launch::{DevicePtr, Launch};
use half::f16;
use kernels::Rows;
use kernels::attention::prefill_cluster::Fp8Operands;
use kernels::attention::sm90::fp8::{Mode, storage_index};
use kernels::attention::{Attention, AttentionOperands, AttentionWorkspace, SeqInputs, SeqLens};
use kernels::gemm::Gpu;
use kernels::kv_cache::PAGE_SIZE;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::super::kernels::{attend, with_maps};
use super::{Kernel, MissionError, Row};
use crate::exec::{ExecError, tensor_maps::Encode};
use crate::plan::Dtype;

/// The shape: one sequence.
const NUM_HEADS: usize = 8;
const SEQ_LEN: usize = 512;
const HEAD_DIM: usize = 64;
const WIDTH: usize = NUM_HEADS * HEAD_DIM;
const NUM_PAGES: usize = SEQ_LEN / PAGE_SIZE as usize;

const SOFTMAX_SCALE: f32 = 0.125;

/// Bytes of the output.
pub(super) const OUT_BYTES: usize = 2 * SEQ_LEN * WIDTH;

/// Allocates memory by name, initial content and bytes; its address.
type Alloc<'a> = dyn FnMut(&'static str, &[u8], usize) -> Result<u64, ExecError> + 'a;

/// A call, and the address of its output.
pub(super) struct Call {
    pub launch: Launch,
    pub out: u64,
}

/// Q, K or V, `[position, head, column]`.
struct Tensor {
    /// In FP8, codes of E4M3; else the bytes of f16.
    bytes: Vec<u8>,
    /// Scales of the heads, where the bytes are FP8.
    scales: Vec<f32>,
    /// What the bytes and the scales say.
    values: Vec<f64>,
}

impl Tensor {
    fn from_f16(values: &[f16]) -> Self {
        Tensor {
            bytes: values.iter().flat_map(|value| value.to_ne_bytes()).collect(),
            scales: Vec::new(),
            values: values.iter().map(|&value| f64::from(value)).collect(),
        }
    }

    /// The largest magnitude of a head becomes 448.
    fn from_e4m3(values: &[f16]) -> Self {
        let mut scales = vec![0.0f32; NUM_HEADS];
        let head = |i: usize| i / HEAD_DIM % NUM_HEADS;
        for (i, value) in values.iter().enumerate() {
            let scale = &mut scales[head(i)];
            *scale = scale.max(value.to_f32().abs() / E4m3::MAX);
        }
        let quant = |(i, value): (usize, &f16)| E4m3::from_f32(value.to_f32() / scales[head(i)]);
        let quants: Vec<E4m3> = values.iter().enumerate().map(quant).collect();
        let value =
            |(i, quant): (usize, &E4m3)| f64::from(quant.to_f32()) * f64::from(scales[head(i)]);
        Tensor {
            values: quants.iter().enumerate().map(value).collect(),
            bytes: quants.iter().map(|quant| quant.to_bits()).collect(),
            scales,
        }
    }

    /// The bytes as a pool `[page, head, position in the page, column]`.
    fn pool(&self) -> Vec<u8> {
        let page_size = PAGE_SIZE as usize;
        let elem_bytes = self.bytes.len() / self.values.len();
        let mut pool = Vec::with_capacity(self.bytes.len());
        for page in (0..NUM_PAGES).rev() {
            for head in 0..NUM_HEADS {
                for position in page * page_size..(page + 1) * page_size {
                    let at = (position * WIDTH + head * HEAD_DIM) * elem_bytes;
                    pool.extend_from_slice(&self.bytes[at..at + HEAD_DIM * elem_bytes]);
                }
            }
        }
        pool
    }
}

/// A pool of codes with its pages transposed, as the kernels take V.
fn transposed(pool: &[u8]) -> Vec<u8> {
    let page_size = PAGE_SIZE as usize;
    let mut out = vec![0; pool.len()];
    let pages = pool.chunks(page_size * HEAD_DIM).zip(out.chunks_mut(page_size * HEAD_DIM));
    for (page, out) in pages {
        for (position, row) in page.chunks(HEAD_DIM).enumerate() {
            let at = storage_index(position as u32) as usize;
            for (column, &code) in row.iter().enumerate() {
                out[column * page_size + at] = code;
            }
        }
    }
    out
}

/// Inputs on the host. Positions of the cache lie in pages in descending order.
pub(super) struct Inputs {
    kernel: Kernel,
    causal: bool,
    /// Q, K and V.
    tensors: [Tensor; 3],
    want: Vec<f64>,
}

impl Inputs {
    pub fn new(kernel: Kernel, causal: bool) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(1);
        // Normal numbers, near enough: the sum of twelve even ones.
        let mut normal = || -> f16 {
            let sum: f32 = (0..12).map(|_| random.random_range(-0.5f32..0.5)).sum();
            f16::from_f32(sum)
        };
        let tensors = [(); 3].map(|()| {
            let values: Vec<f16> = (0..SEQ_LEN * WIDTH).map(|_| normal()).collect();
            match kernel {
                Kernel::F16 => Tensor::from_f16(&values),
                Kernel::Fp8Strict | Kernel::Fp8Fast => Tensor::from_e4m3(&values),
            }
        });
        let want = reference(causal, tensors.each_ref().map(|tensor| tensor.values.as_slice()));
        Inputs { kernel, causal, tensors, want }
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
            has_sinks: false,
            softcap: None,
        }
    }

    /// Allocates the inputs by `alloc(name, content, bytes)`, and makes the launch, whose tensor
    /// maps, if any, are made by `encode`.
    pub fn call(
        &self,
        gpu: Gpu,
        alloc: &mut Alloc<'_>,
        encode: Encode,
    ) -> Result<Call, MissionError> {
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
        let counters = words("counters", &vec![0; attention.num_prefill_counters(Dtype::F16)])?;
        let workspace = AttentionWorkspace { counters, ..AttentionWorkspace::NONE };
        let [q, k, v] = &self.tensors;
        let mut put = |name, bytes: &[u8]| alloc(name, bytes, bytes.len());
        let (q_bytes, k_pool) = (put("q", &q.bytes)?, put("k_pool", &k.pool())?);
        let mode = match self.kernel {
            Kernel::F16 => {
                let v_pool = put("v_pool", &v.pool())?;
                let out = alloc("out", &[], OUT_BYTES)?;
                let operands = AttentionOperands::<f16> {
                    q: Rows::new(DevicePtr::new(q_bytes), WIDTH),
                    k_pool: DevicePtr::new(k_pool),
                    v_pool: DevicePtr::new(v_pool),
                    out: Rows::new(DevicePtr::new(out), WIDTH),
                    sinks: DevicePtr::null(),
                };
                let launch = with_maps(encode, |maps| {
                    attention.prefill(gpu, &seqs, &operands, &workspace, maps)
                })??;
                return Ok(Call { launch: launch.expect("there are tokens"), out });
            }
            Kernel::Fp8Strict => Mode::Strict,
            Kernel::Fp8Fast => Mode::Fast,
        };
        let v_pool = put("v_pool", &transposed(&v.pool()))?;
        let mut scales = |tensor: &Tensor| -> Result<DevicePtr<f32>, ExecError> {
            let bytes: Vec<u8> = tensor.scales.iter().flat_map(|x| x.to_ne_bytes()).collect();
            Ok(DevicePtr::new(put("scales", &bytes)?))
        };
        let (q_scale, k_scale, v_scale) = (scales(q)?, scales(k)?, scales(v)?);
        let out = alloc("out", &[], OUT_BYTES)?;
        let operands = Fp8Operands {
            q: Rows::new(DevicePtr::new(q_bytes), WIDTH),
            k_pool: DevicePtr::new(k_pool),
            v_pool: DevicePtr::new(v_pool),
            q_scale,
            k_scale,
            v_scale,
            out: Rows::new(DevicePtr::new(out), WIDTH),
        };
        let launch = attention.prefill_cluster_fp8(mode, gpu, &seqs, &operands)?;
        Ok(Call { launch: launch.expect("there are tokens"), out })
    }

    /// Compares all outputs with the reference.
    pub fn verify(&self, launch: &Launch, bytes: &[u8], gpu: &str) -> Result<Row, MissionError> {
        let (halves, _) = bytes.as_chunks();
        let got = halves.iter().map(|&half| f64::from(f16::from_ne_bytes(half)));
        let (mut max_error, mut difference, mut norm) = (0.0f64, 0.0, 0.0);
        for (got, want) in got.zip(&self.want) {
            let off = (got - want).abs();
            let scale = if self.kernel == Kernel::F16 { 1.0 } else { want.abs().max(1.0) };
            // What no launch wrote is NaN.
            max_error = max_error.max(if off.is_nan() { f64::INFINITY } else { off / scale });
            difference += off * off;
            norm += want * want;
        }
        let (causal, kernel, error) = (self.causal, launch.symbol, f64::sqrt(difference / norm));
        if !(max_error <= self.kernel.max_error() && error <= self.kernel.error()) {
            let expected = match self.kernel {
                Kernel::Fp8Fast => format!("{:e} by the norm", self.kernel.error()),
                Kernel::F16 | Kernel::Fp8Strict => format!("{:e} at most", self.kernel.max_error()),
            };
            return Err(MissionError::Wrong { kernel, causal, max_error, error, expected });
        }
        Ok(Row {
            causal,
            kernel,
            max_error,
            error,
            shared_bytes: launch.geometry.shared_bytes,
            on_gpu: None,
            gpu: gpu.to_owned(),
        })
    }
}

/// Attention in f64.
fn reference(causal: bool, [q, k, v]: [&[f64]; 3]) -> Vec<f64> {
    let row = |x: &[f64], position: usize, head: usize| -> Vec<f64> {
        let at = position * WIDTH + head * HEAD_DIM;
        x[at..at + HEAD_DIM].to_vec()
    };
    let mut out = vec![0.0; SEQ_LEN * WIDTH];
    for head in 0..NUM_HEADS {
        let rows = |x| (0..SEQ_LEN).map(|at| row(x, at, head)).collect::<Vec<_>>();
        let (k, v) = (rows(k), rows(v));
        for position in 0..SEQ_LEN {
            let q = row(q, position, head);
            let keys = if causal { position + 1 } else { SEQ_LEN };
            let at = position * WIDTH + head * HEAD_DIM;
            let attended = attend(SOFTMAX_SCALE, &q, &k[..keys], &v[..keys]);
            out[at..at + HEAD_DIM].copy_from_slice(&attended);
        }
    }
    out
}
