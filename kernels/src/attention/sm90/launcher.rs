//! The launch of the kernel.

use super::attention_prefill_sm90::{self, Instance, Instance::*};
use super::partials::{Partials, WARP_ROWS};
use super::tiles::{PrefillTile, TileD64, TileD64M128, TileD96, TileD128, TileD256};
use crate::Rows;
use crate::element::Dtype;
use crate::gemm::Gpu;
use crate::kv_cache::PAGE_SIZE;
use crate::tile::smem::PANEL_COLUMNS;
use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError};
use cuda_std::tensor_map::{Element, EncodedTensorMap, L2Promotion, Swizzle, TensorMapSpec};

/// A tile, as far as a launch depends on it.
#[derive(Clone, Copy, Debug)]
pub struct TileConfig {
    /// Queries of a tile.
    pub block_m: usize,
    /// Keys of a block, of which items take whole ones, but for the last.
    pub block_n: usize,
    /// Whether an item may have a part of its tile's keys.
    pub splits_keys: bool,
    /// Most columns of a head.
    width: usize,
    num_threads: usize,
    shared_bytes: usize,
    f16_instance: Instance,
    bf16_instance: Instance,
}

/// The tiles, the narrowest heads first, of those the most queries.
const TILE_CONFIGS: [TileConfig; 5] = [
    TileConfig::of::<TileD64>(attention_prefill_f16_sm90_d64, attention_prefill_bf16_sm90_d64),
    TileConfig::of::<TileD64M128>(
        attention_prefill_f16_sm90_d64_m128,
        attention_prefill_bf16_sm90_d64_m128,
    ),
    TileConfig::of::<TileD96>(attention_prefill_f16_sm90_d96, attention_prefill_bf16_sm90_d96),
    TileConfig::of::<TileD128>(attention_prefill_f16_sm90_d128, attention_prefill_bf16_sm90_d128),
    TileConfig::of::<TileD256>(attention_prefill_f16_sm90_d256, attention_prefill_bf16_sm90_d256),
];

/// Tiles an SM, from which on those with more queries are faster
/// (`docs/measurements/attention_prefill.md`).
const MANY_TILES: usize = 4;

/// The parameters of a launch, checked: see the kernel.
#[derive(Clone, Copy, Debug)]
pub struct Params {
    /// `F16` or `Bf16`.
    pub dtype: Dtype,
    /// One element: items in the list.
    pub num_items: DevicePtr<u32>,
    /// The work list.
    pub items: DevicePtr<u32>,
    /// Upper bound of the items.
    pub max_items: usize,
    /// [`NUM_COUNTERS`](super::NUM_COUNTERS) zeros and [`TileConfig::counters_per_slot`] for each slot, which the
    /// launch leaves as zeros.
    pub counters: DevicePtr<u32>,
    /// `[max_seqs, max_pages_per_seq]`.
    pub block_table: DevicePtr<u32>,
    /// Width of the block table.
    pub max_pages_per_seq: u32,
    /// Upper bound of the tokens.
    pub max_tokens: usize,
    /// Pages of a pool.
    pub num_pages: usize,
    /// Query heads, a multiple of the KV heads.
    pub num_heads: u32,
    /// KV heads.
    pub num_kv_heads: u32,
    /// Columns of a head, a multiple of 8.
    pub head_dim: u32,
    /// Multiplies the scores before the softmax: above 0.
    pub softmax_scale: f32,
    /// Scores are `tanh(softcap * score)` before they are scaled; 0 where they are not bent.
    pub softcap: f32,
    /// Sliding window, in positions.
    pub window: u32,
    /// Queries, 16-byte aligned.
    pub q: Rows<()>,
    /// Pools of keys and values, 16-byte aligned.
    pub pools: [DevicePtr<()>; 2],
    /// Output, 16-byte aligned.
    pub out: Rows<()>,
    /// `[num_heads]`, or null.
    pub sinks: DevicePtr<f32>,
    /// `[max_tokens, num_heads]`, or null.
    pub lse: DevicePtr<f32>,
    /// [`TileConfig::partials_per_slot`] for each slot, 16-byte aligned.
    pub partials: DevicePtr<f32>,
}

impl TileConfig {
    const fn of<T: PrefillTile>(f16_instance: Instance, bf16_instance: Instance) -> Self {
        TileConfig {
            block_m: T::BLOCK_M as usize,
            block_n: T::BLOCK_N as usize,
            splits_keys: T::SPLITS_KEYS,
            width: T::WIDTH as usize,
            num_threads: T::NUM_THREADS as usize,
            shared_bytes: T::SHARED_BYTES as usize,
            f16_instance,
            bf16_instance,
        }
    }

    /// The tiles that take heads of `head_dim` columns, those of fewest columns first.
    pub fn for_head_dim(head_dim: usize) -> impl Iterator<Item = &'static TileConfig> {
        let is_vectors = head_dim.is_multiple_of(8);
        TILE_CONFIGS.iter().filter(move |tile| is_vectors && head_dim <= tile.width)
    }

    /// The fastest tile for a step of `max_tokens` tokens, if one takes the heads.
    #[must_use]
    pub fn fastest(
        head_dim: usize,
        max_tokens: usize,
        num_heads: usize,
        gpu: Gpu,
    ) -> Option<&'static TileConfig> {
        let mut tiles = Self::for_head_dim(head_dim);
        let first = tiles.next()?;
        let is_same_width = |tile: &&TileConfig| tile.width == first.width;
        let num_tiles = max_tokens.div_ceil(first.block_m).saturating_mul(num_heads);
        match tiles.find(is_same_width) {
            Some(shorter) if num_tiles < MANY_TILES * gpu.num_sms => Some(shorter),
            _ => Some(first),
        }
    }

    /// Counters of a slot.
    #[must_use]
    pub fn counters_per_slot(&self) -> usize {
        self.block_m / WARP_ROWS as usize
    }

    /// Elements of the partial results of a slot.
    #[must_use]
    pub fn partials_per_slot(&self) -> usize {
        self.counters_per_slot() * Partials::warp_elems(self.width / 2)
    }

    /// The launch on `num_sms` SMs, with tensor maps from `maps`, or `None` without an item.
    ///
    /// # Errors
    /// [`LaunchError`] for sizes beyond a grid.
    pub fn launch(
        &self,
        num_sms: usize,
        params: &Params,
        maps: &mut dyn FnMut(&TensorMapSpec) -> EncodedTensorMap,
    ) -> Result<Option<Launch>, LaunchError> {
        let grid = [params.max_items.min(num_sms), 1, 1];
        let geometry = Geometry::new(grid, self.num_threads, self.shared_bytes)?;
        let Some(geometry) = geometry else { return Ok(None) };
        let q_map = maps(&self.q_map(params));
        let [k_map, v_map] = params.pools.map(|pool| maps(&pool_map(params, pool)));
        let instance =
            if params.dtype == Dtype::F16 { self.f16_instance } else { self.bf16_instance };
        let args = attention_prefill_sm90::Args {
            num_items: params.num_items,
            items: params.items,
            counters: params.counters,
            block_table: params.block_table,
            max_pages_per_seq: params.max_pages_per_seq,
            num_heads: params.num_heads,
            num_kv_heads: params.num_kv_heads,
            head_dim: params.head_dim,
            softmax_scale: params.softmax_scale,
            window: params.window,
            out: DevicePtr::new(params.out.ptr.0),
            out_stride: params.out.stride_arg()?,
            lse: params.lse,
            partials: params.partials,
            sinks: params.sinks,
            softcap: params.softcap,
            q_map,
            k_map,
            v_map,
        };
        Ok(Some(args.launch(instance, geometry)))
    }

    /// Queries: boxes of a tile's tokens, one head and 64 columns.
    fn q_map(&self, params: &Params) -> TensorMapSpec {
        let Rows { ptr, row_stride } = params.q;
        let head_bytes = u64::from(params.head_dim) * 2;
        TensorMapSpec {
            address: ptr.0,
            element: element(params.dtype),
            dims: vec![params.head_dim.into(), params.num_heads.into(), params.max_tokens as u64],
            strides_bytes: vec![head_bytes, row_stride as u64 * 2],
            box_dims: vec![PANEL_COLUMNS, 1, self.block_m as u32],
            swizzle: Swizzle::B128,
            l2_promotion: L2Promotion::B128,
        }
    }
}

/// A pool: boxes of a page's positions and 64 columns.
fn pool_map(params: &Params, pool: DevicePtr<()>) -> TensorMapSpec {
    let rows = params.num_pages * params.num_kv_heads as usize * PAGE_SIZE as usize;
    TensorMapSpec {
        address: pool.0,
        element: element(params.dtype),
        dims: vec![params.head_dim.into(), rows as u64],
        strides_bytes: vec![u64::from(params.head_dim) * 2],
        box_dims: vec![PANEL_COLUMNS, PAGE_SIZE],
        swizzle: Swizzle::B128,
        l2_promotion: L2Promotion::B128,
    }
}

fn element(dtype: Dtype) -> Element {
    if dtype == Dtype::F16 { Element::F16 } else { Element::Bf16 }
}

/// As [`dynamic_shared_bytes`](crate::dynamic_shared_bytes), of this kernel.
pub(in super::super) fn dynamic_shared_bytes(symbol: &str) -> Option<usize> {
    let is_of = |tile: &&TileConfig| {
        [tile.f16_instance, tile.bf16_instance].iter().any(|of| of.symbol() == symbol)
    };
    TILE_CONFIGS.iter().find(is_of).map(|tile| tile.shared_bytes)
}
