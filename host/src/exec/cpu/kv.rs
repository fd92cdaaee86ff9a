//! The KV cache in host memory.

use super::activations::Rows;
use super::elements::{Buffer, Elements};
use crate::exec::ExecError;
use crate::plan::{KvLayout, PAGE_SIZE};
use std::ops::Range;

/// K and V pools of every layer, as [`KvLayout`] says.
pub struct KvCache {
    layout: KvLayout,
    k: Vec<Buffer>,
    v: Vec<Buffer>,
}

impl KvCache {
    /// Pools of zeros, which the system provides when they are first touched; of NaN in debug builds.
    ///
    /// # Errors
    /// [`ExecError::OutOfMemory`].
    pub fn new(layout: KvLayout) -> Result<Self, ExecError> {
        let pool = |_| {
            let mut pool = Buffer::try_zeroed("the KV cache", layout.dtype, layout.pool_elems())?;
            if cfg!(debug_assertions) {
                pool.poison();
            }
            Ok::<_, ExecError>(pool)
        };
        let pools = || (0..layout.num_layers).map(pool).collect::<Result<_, ExecError>>();
        Ok(KvCache { layout, k: pools()?, v: pools()? })
    }

    /// Bytes of all pools.
    pub fn bytes(&self) -> usize {
        self.k.iter().chain(&self.v).map(Buffer::stored_bytes).sum()
    }

    /// Writes row `t` of `k` and `v` to `slots[t]` of the layer's pools.
    pub fn append(&mut self, layer: usize, slots: &[u32], k: &Rows, v: &Rows) {
        for (pool, rows) in [(&mut self.k[layer], k), (&mut self.v[layer], v)] {
            let mut pool = pool.elements_mut();
            for (&slot, row) in slots.iter().zip(rows.iter()) {
                for (kv_head, values) in row.chunks_exact(self.layout.head_dim).enumerate() {
                    pool.narrow(self.layout.row_start(slot as usize, kv_head), values);
                }
            }
        }
    }

    /// K and V of one head in `rows` of one page: `[rows.len(), head_dim]` each.
    pub fn page(
        &self,
        layer: usize,
        page: u32,
        kv_head: usize,
        rows: Range<usize>,
    ) -> [Elements<'_>; 2] {
        let first = self.layout.row_start(page as usize * PAGE_SIZE + rows.start, kv_head);
        let range = first..first + rows.len() * self.layout.head_dim;
        let pools = [&self.k[layer], &self.v[layer]];
        pools.map(|pool| pool.elements().slice(range.clone()))
    }
}
