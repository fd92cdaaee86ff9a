//! The one layout of the KV cache.

use super::Dtype;

/// Positions in a page of the KV cache.
pub const PAGE_SIZE: usize = 64;

/// Layout and size of the paged KV cache.
///
/// Each layer has a K pool and a V pool, both `[num_pages, num_kv_heads, PAGE_SIZE, head_dim]`.
/// Position `p` of a sequence lives in page `block_table[p / PAGE_SIZE]`, row `p % PAGE_SIZE`; its
/// *slot* is `page * PAGE_SIZE + p % PAGE_SIZE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayout {
    /// Layers of the model.
    pub num_layers: usize,
    /// KV heads of a layer.
    pub num_kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Pages of each pool.
    pub num_pages: usize,
    /// Element type.
    pub dtype: Dtype,
}

impl KvLayout {
    /// Elements of one pool (K or V of one layer).
    pub fn pool_elems(&self) -> usize {
        self.num_pages * self.num_kv_heads * PAGE_SIZE * self.head_dim
    }

    /// Bytes of the whole cache: all layers, K and V.
    pub fn bytes(&self) -> usize {
        2 * self.num_layers * self.pool_elems() * self.dtype.block_bytes()
    }

    /// Bytes that one position takes over all layers, K and V.
    pub fn bytes_per_position(&self) -> usize {
        2 * self.num_layers * self.num_kv_heads * self.head_dim * self.dtype.block_bytes()
    }

    /// First element, in a pool, of the row of `kv_head` at `slot`.
    pub fn row_start(&self, slot: usize, kv_head: usize) -> usize {
        let (page, row) = (slot / PAGE_SIZE, slot % PAGE_SIZE);
        ((page * self.num_kv_heads + kv_head) * PAGE_SIZE + row) * self.head_dim
    }
}
