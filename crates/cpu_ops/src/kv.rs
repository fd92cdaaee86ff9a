//! The KV cache in host memory.

mod quantised;

use self::quantised::QuantisedPool;
use super::activations::Rows;
use super::elements::{Buffer, Elements};
use crate::OutOfMemory;
use plan::{CacheType, KvHeads, KvLayout, PAGE_SIZE};
use pulp::Arch;
use std::ops::Range;

/// Rows that are read have a multiple of this length: whole vectors of every processor.
const ROW_ELEMS: usize = 16;

/// Elements of a row that is read: `head_dim` of them, then zeros.
pub fn row_elems(head_dim: usize) -> usize {
    head_dim.next_multiple_of(ROW_ELEMS)
}

/// K and V pools of every layer, as [`KvLayout`] says.
pub struct KvCache {
    layout: KvLayout,
    k: Vec<Pool>,
    v: Vec<Pool>,
}

/// K or V of a layer.
enum Pool {
    Plain(Buffer),
    Quantised(QuantisedPool),
}

impl KvCache {
    /// Pools of zeros, which the system provides when they are first touched; of NaN in debug builds.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn new(layout: KvLayout) -> Result<Self, OutOfMemory> {
        let pools = |cache_type, of_keys| {
            let layers = 0..layout.layers.len();
            let pools = layers.map(|layer| Pool::new(&layout, layer, cache_type, of_keys));
            pools.collect::<Result<_, OutOfMemory>>()
        };
        let [k, v] = layout.types();
        let (k, v) = (pools(k, true)?, pools(v, false)?);
        Ok(KvCache { layout, k, v })
    }

    /// Bytes of all pools.
    pub fn bytes(&self) -> usize {
        self.k.iter().chain(&self.v).map(Pool::stored_bytes).sum()
    }

    /// Writes row `t` of `k` and `v` to `slots[t]` of the layer's pools.
    pub fn append(&mut self, layer: usize, slots: &[u32], k: &Rows, v: &Rows) {
        let heads = self.layout.layers[layer];
        for (pool, rows) in [(&mut self.k[layer], k), (&mut self.v[layer], v)] {
            for (&slot, row) in slots.iter().zip(rows.iter()) {
                for (kv_head, values) in row.chunks_exact(heads.head_dim).enumerate() {
                    pool.store(heads, slot as usize, kv_head, values);
                }
            }
        }
    }

    /// [`KvLayout::has_window`].
    pub fn has_window(&self, layer: usize) -> bool {
        self.layout.has_window(layer)
    }

    /// Keys of one head in `rows` of one page, not rotated back: `[rows.len(), row_elems(head_dim)]`.
    /// Scores are their inner products with queries that [`KvCache::rotate_as_keys`] rotated.
    ///
    /// They are in `buffer` where they are not stored as f32 in whole vectors. It must hold zeros
    /// or what such a call wrote.
    pub fn keys<'a>(
        &'a self,
        layer: usize,
        page: u32,
        kv_head: usize,
        rows: Range<usize>,
        buffer: &'a mut [f32],
    ) -> &'a [f32] {
        self.k[layer].load(self.layout.layers[layer], page as usize, kv_head, rows, buffer)
    }

    /// As [`KvCache::keys`], the values.
    pub fn values<'a>(
        &'a self,
        layer: usize,
        page: u32,
        kv_head: usize,
        rows: Range<usize>,
        buffer: &'a mut [f32],
    ) -> &'a [f32] {
        self.v[layer].load(self.layout.layers[layer], page as usize, kv_head, rows, buffer)
    }

    /// Rotates a query as stored keys are, if they are: inner products stay the same, and a query is
    /// rotated once, where each key would be rotated back.
    pub fn rotate_as_keys(&self, query: &mut [f32]) {
        let [k, _] = self.layout.types();
        if k.rotates_keys() {
            quantised::rotate(query);
        }
    }
}

impl Pool {
    fn new(
        layout: &KvLayout,
        layer: usize,
        cache_type: CacheType,
        of_keys: bool,
    ) -> Result<Self, OutOfMemory> {
        let Some(dtype) = cache_type.dtype() else {
            let KvHeads { num_kv_heads, head_dim } = layout.layers[layer];
            let num_pages = layout.pool_pages(layer).saturating_mul(num_kv_heads);
            let pool = QuantisedPool::new(cache_type, of_keys, head_dim, num_pages);
            return pool.map(Pool::Quantised);
        };
        let mut pool = Buffer::try_zeroed("the KV cache", dtype, layout.pool_elems(layer))?;
        if cfg!(debug_assertions) {
            pool.poison();
        }
        Ok(Pool::Plain(pool))
    }

    fn stored_bytes(&self) -> usize {
        match self {
            Pool::Plain(pool) => pool.stored_bytes(),
            Pool::Quantised(pool) => pool.stored_bytes(),
        }
    }

    /// Stores the row of `kv_head` at `slot`.
    fn store(&mut self, heads: KvHeads, slot: usize, kv_head: usize, values: &[f32]) {
        match self {
            Pool::Plain(pool) => {
                pool.elements_mut().narrow(heads.row_start(slot, kv_head), values);
            }
            Pool::Quantised(pool) => {
                let page = slot / PAGE_SIZE * heads.num_kv_heads + kv_head;
                pool.store(page, slot % PAGE_SIZE, values);
            }
        }
    }

    /// Rows `rows` of `kv_head` in `page`, as [`KvCache::keys`].
    fn load<'a>(
        &'a self,
        heads: KvHeads,
        page: usize,
        kv_head: usize,
        rows: Range<usize>,
        buffer: &'a mut [f32],
    ) -> &'a [f32] {
        let (head_dim, stride) = (heads.head_dim, row_elems(heads.head_dim));
        let num_rows = rows.len();
        match self {
            Pool::Plain(pool) => {
                let first = heads.row_start(page * PAGE_SIZE + rows.start, kv_head);
                let stored = pool.elements().slice(first..first + num_rows * head_dim);
                match stored {
                    Elements::F32(values) if stride == head_dim => return values,
                    _ if stride == head_dim => stored.widen_to(&mut buffer[..num_rows * stride]),
                    _ => {
                        for (row, out) in buffer.chunks_exact_mut(stride).take(num_rows).enumerate()
                        {
                            let row = row * head_dim..(row + 1) * head_dim;
                            stored.slice(row).widen_to(&mut out[..head_dim]);
                        }
                    }
                }
            }
            Pool::Quantised(pool) => {
                let page = page * heads.num_kv_heads + kv_head;
                pool.load(Arch::new(), page, rows, stride, buffer);
            }
        }
        &buffer[..num_rows * stride]
    }
}
