//! The KV cache in host memory.

use super::activations::Rows;
use crate::plan::{KvLayout, PAGE_SIZE};

/// K and V pools of every layer, as [`KvLayout`] says.
pub struct KvCache {
    layout: KvLayout,
    k: Vec<Vec<f32>>,
    v: Vec<Vec<f32>>,
}

impl KvCache {
    /// Pools of zeros, which the system hands out when they are first touched; of NaN in debug builds.
    pub fn new(layout: KvLayout) -> Self {
        let poison = if cfg!(debug_assertions) { f32::NAN } else { 0.0 };
        let pools = || vec![vec![poison; layout.pool_elems()]; layout.num_layers];
        KvCache { layout, k: pools(), v: pools() }
    }

    /// Writes row `t` of `k` and `v` to `slots[t]` of the layer's pools.
    pub fn append(&mut self, layer: usize, slots: &[u32], k: Rows, v: Rows) {
        for (pool, rows) in [(&mut self.k[layer], k), (&mut self.v[layer], v)] {
            for (&slot, row) in slots.iter().zip(rows.iter()) {
                for (kv_head, values) in row.chunks_exact(self.layout.head_dim).enumerate() {
                    let start = self.layout.row_start(slot as usize, kv_head);
                    pool[start..start + values.len()].copy_from_slice(values);
                }
            }
        }
    }

    /// K and V of one head in one page: `[PAGE_SIZE, head_dim]` each.
    pub fn page(&self, layer: usize, page: u32, kv_head: usize) -> (&[f32], &[f32]) {
        let start = self.layout.row_start(page as usize * PAGE_SIZE, kv_head);
        let range = start..start + PAGE_SIZE * self.layout.head_dim;
        (&self.k[layer][range.clone()], &self.v[layer][range])
    }
}
