//! Attention, prefill and decode, by every kernel.

mod decode;
mod fp8;
mod launches;
mod prefill;

use crate::harness::*;
use cuda_std::launch::DevicePtr;
use kernels::Rows;
use kernels::attention::work::{Part, PrefillItem};
use kernels::attention::{Attention, AttentionOperands, SeqInputs, SeqLens};
use kernels::element::Dtype;
use kernels::kv_cache::PAGE_SIZE;
use oracle::{Approx, Attended, Element, Pages};

const PAGE: usize = PAGE_SIZE as usize;

/// A step.
#[derive(Clone, Copy, Debug)]
struct Case {
    /// For each sequence its new tokens, and its positions with them.
    seqs: &'static [(usize, usize)],
    /// Query heads and KV heads.
    heads: [usize; 2],
    head_dim: usize,
    window: Option<usize>,
    causal: bool,
    /// Multiplies the queries.
    magnitude: f32,
    /// Scores of heads without a value, in turn.
    pub sinks: &'static [f32],
    softcap: Option<f32>,
}

const CASE: Case = Case {
    seqs: &[(3, 3)],
    heads: [2, 1],
    head_dim: 64,
    window: None,
    causal: true,
    magnitude: 1.0,
    sinks: &[],
    softcap: None,
};

/// Sinks of heads: one as large as scores are, one of no weight, and one beside which nothing counts.
const SINKS: &[f32] = &[0.5, -30.0, 2.0, 40.0];

const SCALE: f32 = 0.3;

/// A cap that bends most scores, some of them to the cap.
const SOFTCAP: Option<f32> = Some(0.5);

/// The values of a case: `[tokens, num_heads, head_dim]`, and pools. Positions that no sequence has
/// are NaN.
#[derive(Clone)]
struct Values {
    q: Vec<f32>,
    pools: [Vec<f32>; 2],
}

/// A step on the device.
struct Step<E> {
    attention: Attention,
    seqs: SeqInputs,
    operands: AttentionOperands<E>,
}

impl Case {
    fn tokens(&self) -> usize {
        self.seqs.iter().map(|(q_len, _)| q_len).sum()
    }

    fn width(&self) -> usize {
        self.heads[0] * self.head_dim
    }

    fn pages(&self) -> Pages {
        let kv_lens: Vec<usize> = self.seqs.iter().map(|(_, kv_len)| *kv_len).collect();
        Pages::descending(&kv_lens, PAGE, self.heads[1], self.head_dim)
    }

    /// A pool with the elements of `all` at the positions that there are.
    fn pool(&self, all: &[f32]) -> Vec<f32> {
        let pages = self.pages();
        let mut pool = vec![f32::NAN; all.len()];
        for (seq, &(_, kv_len)) in self.seqs.iter().enumerate() {
            for (key, head) in (0..kv_len).flat_map(|key| (0..self.heads[1]).map(move |h| (key, h)))
            {
                let row = pages.row(seq, head, key);
                pool[row..][..self.head_dim].copy_from_slice(&all[row..][..self.head_dim]);
            }
        }
        pool
    }

    fn values<E: Element>(&self) -> Values {
        let scaled = |q: f32| E::rounded(q * self.magnitude);
        let q = random_of::<E>(self.tokens() * self.width(), 1).into_iter().map(scaled).collect();
        let elems = self.pages().elems();
        Values { q, pools: [2, 3].map(|salt| self.pool(&random_of::<E>(elems, salt))) }
    }

    fn definition(&self, rounding: f64) -> oracle::Attention<'_> {
        let &Case { seqs, heads: [num_heads, _], causal, window, softcap, .. } = self;
        let (scale, sinks) = (SCALE, self.sinks);
        oracle::Attention { seqs, num_heads, causal, window, scale, softcap, rounding, sinks }
    }

    fn oracle(&self, values: &Values, rounding: f64) -> Attended {
        let [k, v] =
            [0, 1].map(|of| values.pools[of].iter().map(|&x| x.into()).collect::<Vec<_>>());
        self.definition(rounding).attend(&values.q, &k, &v, &self.pages())
    }

    /// A launcher's problem: there is room for one sequence and one token more than there are.
    fn attention(&self, max_decode_q_len: usize) -> Attention {
        let pages = self.pages();
        Attention {
            max_tokens: self.tokens() + 1,
            max_seqs: self.seqs.len() + 1,
            max_q_len: self.seqs.iter().map(|(q_len, _)| *q_len).max().unwrap_or(0),
            max_decode_q_len,
            max_kv_len: self.seqs.iter().map(|(_, kv_len)| *kv_len).max().unwrap_or(0),
            max_pages_per_seq: pages.max_pages,
            num_pages: pages.num_pages(),
            num_heads: self.heads[0],
            num_kv_heads: self.heads[1],
            head_dim: self.head_dim,
            softmax_scale: SCALE,
            softcap: self.softcap,
            causal: self.causal,
            window: self.window,
            batch_invariant: false,
            has_sinks: !self.sinks.is_empty(),
        }
    }

    fn cu_seqlens_q(&self) -> Vec<u32> {
        let mut sums = vec![0];
        for (q_len, _) in self.seqs {
            sums.push(sums[sums.len() - 1] + *q_len as u32);
        }
        sums
    }

    /// The step inputs, with the launcher's lists of items.
    fn seq_inputs(&self, device: &mut Device, attention: &Attention, dtype: Dtype) -> SeqInputs {
        let lens = |&(q_len, kv_len): &(usize, usize)| (q_len as u32, kv_len as u32);
        let lens = self.seqs.iter().map(lens).map(|(q_len, kv_len)| SeqLens { q_len, kv_len });
        let lens: Vec<SeqLens> = lens.collect();
        let prefill_items = attention.prefill_items(SM_80, dtype, &lens);
        let decode_items = attention.decode_items(SM_80, dtype, &lens);
        let mut list = vec![prefill_items.len() as u32, decode_items.len() as u32, 0, 0];
        list.extend(prefill_items.as_flattened());
        list.extend(decode_items.as_flattened());
        // Room for the most items.
        let max_items = attention.max_decode_items(SM_80, dtype);
        list.resize(list.len() + 8 * (max_items + 1 - decode_items.len()), 0);
        let list = device.u32s("work list", &list);
        let mut cu_seqlens_q = self.cu_seqlens_q();
        let mut kv_lens: Vec<u32> = lens.iter().map(|lens| lens.kv_len).collect();
        cu_seqlens_q.push(u32::MAX);
        kv_lens.push(u32::MAX);
        SeqInputs {
            num_seqs: device.u32s("num_seqs", &[self.seqs.len() as u32]),
            cu_seqlens_q: device.u32s("cu_seqlens_q", &cu_seqlens_q),
            kv_lens: device.u32s("kv_lens", &kv_lens),
            block_table: device.u32s("block_table", &self.pages().table),
            num_prefill_items: list,
            prefill_items: list.add(4),
            num_decode_items: list.add(1),
            decode_items: list.add(4 + prefill_items.as_flattened().len()),
        }
    }

    /// The step, where sequences with so many new tokens decode.
    fn step<E: HostElement>(
        &self,
        device: &mut Device,
        values: &Values,
        max_decode_q_len: usize,
    ) -> Step<E> {
        let attention = self.attention(max_decode_q_len);
        let seqs = self.seq_inputs(device, &attention, E::DTYPE);
        let max_elems = (self.tokens() + 1) * self.width();
        let operands = AttentionOperands {
            q: Rows::new(device.partly_written("q", &values.q, max_elems), self.width()),
            k_pool: device.numbers("k_pool", &values.pools[0]),
            v_pool: device.numbers("v_pool", &values.pools[1]),
            out: device.out("out", (self.width(), self.tokens() + 1)),
            sinks: self.sinks(device),
        };
        Step { attention, seqs, operands }
    }

    /// The sinks of all heads; null without.
    fn sinks(&self, device: &mut Device) -> DevicePtr<f32> {
        if self.sinks.is_empty() {
            return DevicePtr::null();
        }
        let sinks: Vec<f32> = self.sinks.iter().copied().cycle().take(self.heads[0]).collect();
        device.f32s("table", &sinks)
    }

    /// The outputs of a step; a row more is not written.
    #[track_caller]
    fn read<E: HostElement>(&self, device: &Device, out: Rows<E>) -> Vec<f32> {
        device.read_rows(out, [self.tokens(), self.tokens() + 1], self.width())
    }

    /// The window of the kernels' mask: one to both sides is one that ends later.
    fn mask_window(&self) -> u32 {
        let window = self.window.map(|window| if self.causal { window } else { 2 * window - 1 });
        window.map_or(u32::MAX, |window| window as u32)
    }

    /// The work items of a prefill by tiles of `block_m` queries.
    fn items(&self, block_m: usize) -> Vec<PrefillItem> {
        let (mut items, mut first_token) = (Vec::new(), 0);
        for (seq, &(q_len, kv_len)) in self.seqs.iter().enumerate() {
            for first_query in (0..q_len).step_by(block_m) {
                let queries = block_m.min(q_len - first_query);
                let keys = |query| self.definition(0.0).keys(seq, query);
                let (first, last) = (keys(first_query), keys(first_query + queries - 1));
                let own = kv_len - q_len + first_query;
                let position = match self.window {
                    _ if self.causal => own,
                    None => kv_len - 1,
                    // Of a window to both sides that of its last key.
                    Some(window) => own + window - 1,
                };
                items.extend((0..self.heads[0]).map(|head| PrefillItem {
                    seq: seq as u32,
                    head: head as u32,
                    first_token: (first_token + first_query) as u32,
                    queries: queries as u32,
                    first_position: position as u32,
                    first_key: (first.start / PAGE * PAGE) as u32,
                    end_key: last.end as u32,
                    part: Part::WHOLE,
                }));
            }
            first_token += q_len;
        }
        items
    }

    #[track_caller]
    fn assert_attends<E: Element>(&self, name: &str, got: &[f32], want: Vec<Approx>) {
        assert_right(&format!("{name}, {self:?}"), got, &stored::<E>(want));
    }
}

/// Largest relative error of a probability that is stored as `E`.
fn rounding<E: Element>() -> f64 {
    if E::ROUNDING < 1e-6 { 0.0 } else { E::ROUNDING }
}

/// The words of items, as the device has them.
fn words(items: &[PrefillItem]) -> Vec<u32> {
    items.iter().flat_map(PrefillItem::words).collect()
}

const HEAD_DIMS: [usize; 4] = [64, 96, 128, 256];
