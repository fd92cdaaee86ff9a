//! The launch of the kernel.

use super::attention_prefill_fp8::{self, Instance, Instance::*};
use super::tiles::{
    FastD64, FastD96, FastD128, FastD256, Fp8Tile, StrictD64, StrictD96, StrictD128, StrictD256,
};
use crate::Rows;
use crate::kv_cache::PAGE_SIZE;
use cuda_std::E4m3;
use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError};
use cuda_std::tensor_map::{Element, EncodedTensorMap, L2Promotion, Swizzle, TensorMapSpec};
use half::f16;

/// How weights and V are multiplied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// In f16.
    #[default]
    Strict,
    /// In E4M3.
    Fast,
}

/// A tile, as far as a launch depends on it.
#[derive(Clone, Copy, Debug)]
pub struct TileConfig {
    /// How it multiplies weights.
    pub mode: Mode,
    /// Queries of a tile.
    pub block_m: usize,
    /// Most columns of a head.
    width: usize,
    /// Columns of a panel of Q or K.
    panel: u32,
    num_threads: usize,
    shared_bytes: usize,
    f16_instance: Instance,
}

/// The tiles, the narrowest heads first.
const TILE_CONFIGS: [TileConfig; 8] = [
    TileConfig::of::<StrictD64>(attention_prefill_e4m3_strict_d64),
    TileConfig::of::<FastD64>(attention_prefill_e4m3_fast_d64),
    TileConfig::of::<StrictD96>(attention_prefill_e4m3_strict_d96),
    TileConfig::of::<FastD96>(attention_prefill_e4m3_fast_d96),
    TileConfig::of::<StrictD128>(attention_prefill_e4m3_strict_d128),
    TileConfig::of::<FastD128>(attention_prefill_e4m3_fast_d128),
    TileConfig::of::<StrictD256>(attention_prefill_e4m3_strict_d256),
    TileConfig::of::<FastD256>(attention_prefill_e4m3_fast_d256),
];

/// The parameters of a launch, checked: see the kernel.
#[derive(Clone, Copy, Debug)]
pub struct Params {
    /// One element: items in the list.
    pub num_items: DevicePtr<u32>,
    /// The work list.
    pub items: DevicePtr<u32>,
    /// Upper bound of the items.
    pub max_items: usize,
    /// [`NUM_COUNTERS`](super::super::NUM_COUNTERS) zeros, which the launch leaves as zeros.
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
    /// Columns of a head, a multiple of 16.
    pub head_dim: u32,
    /// Multiplies the scores before the softmax: above 0.
    pub softmax_scale: f32,
    /// Sliding window, in positions.
    pub window: u32,
    /// Scales of the query heads.
    pub q_scale: DevicePtr<f32>,
    /// Scales of K, for each KV head.
    pub k_scale: DevicePtr<f32>,
    /// Scales of V, for each KV head.
    pub v_scale: DevicePtr<f32>,
    /// Queries, 16-byte aligned.
    pub q: Rows<E4m3>,
    /// Pools of keys and of values, 16-byte aligned.
    pub pools: [DevicePtr<E4m3>; 2],
    /// Output, 16-byte aligned.
    pub out: Rows<f16>,
    /// `[max_tokens, num_heads]`, or null.
    pub lse: DevicePtr<f32>,
}

impl TileConfig {
    const fn of<T: Fp8Tile>(f16_instance: Instance) -> Self {
        TileConfig {
            mode: if T::IS_CONVERTED { Mode::Strict } else { Mode::Fast },
            block_m: T::BLOCK_M as usize,
            width: T::WIDTH as usize,
            panel: T::PANEL,
            num_threads: T::NUM_THREADS as usize,
            shared_bytes: T::SHARED_BYTES as usize,
            f16_instance,
        }
    }

    /// The tile for heads of `head_dim` columns, if there is one.
    #[must_use]
    pub fn for_head_dim(head_dim: usize, mode: Mode) -> Option<&'static TileConfig> {
        let fits = |tile: &&TileConfig| head_dim <= tile.width && tile.mode == mode;
        let is_vectors = head_dim.is_multiple_of(16) && head_dim > 0;
        if is_vectors { TILE_CONFIGS.iter().find(fits) } else { None }
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
        let [q_map, k_map, v_map] =
            [self.q_map(params), self.k_map(params), self.v_map(params)].map(|spec| maps(&spec));
        let launch = attention_prefill_fp8::Args {
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
            q_scale: params.q_scale,
            k_scale: params.k_scale,
            v_scale: params.v_scale,
            out: DevicePtr::new(params.out.ptr.0),
            out_stride: params.out.stride_arg()?,
            lse: params.lse,
            q_map,
            k_map,
            v_map,
        };
        Ok(Some(launch.launch(self.f16_instance, geometry)))
    }

    fn swizzle(&self) -> Swizzle {
        if self.panel == 64 { Swizzle::B64 } else { Swizzle::B128 }
    }

    /// Queries: boxes of a tile's tokens, one head and a panel's columns.
    fn q_map(&self, params: &Params) -> TensorMapSpec {
        let Rows { ptr, row_stride } = params.q;
        TensorMapSpec {
            address: ptr.0,
            element: Element::U8,
            dims: vec![params.head_dim.into(), params.num_heads.into(), params.max_tokens as u64],
            strides_bytes: vec![params.head_dim.into(), row_stride as u64],
            box_dims: vec![self.panel, 1, self.block_m as u32],
            swizzle: self.swizzle(),
            l2_promotion: L2Promotion::B128,
        }
    }

    /// Keys: boxes of a page's positions and a panel's columns.
    fn k_map(&self, params: &Params) -> TensorMapSpec {
        let rows = params.num_pages * params.num_kv_heads as usize * PAGE_SIZE as usize;
        TensorMapSpec {
            address: params.pools[0].0,
            element: Element::U8,
            dims: vec![params.head_dim.into(), rows as u64],
            strides_bytes: vec![params.head_dim.into()],
            box_dims: vec![self.panel, PAGE_SIZE],
            swizzle: self.swizzle(),
            l2_promotion: L2Promotion::B128,
        }
    }

    /// Values: boxes of a page of a KV head.
    fn v_map(&self, params: &Params) -> TensorMapSpec {
        let pages = params.num_pages * params.num_kv_heads as usize;
        let page_bytes = u64::from(params.head_dim * PAGE_SIZE);
        TensorMapSpec {
            address: params.pools[1].0,
            element: Element::U8,
            dims: vec![PAGE_SIZE.into(), params.head_dim.into(), pages as u64],
            strides_bytes: vec![PAGE_SIZE.into(), page_bytes],
            box_dims: vec![PAGE_SIZE, self.width as u32, 1],
            swizzle: Swizzle::B64,
            l2_promotion: L2Promotion::B128,
        }
    }
}

/// As [`dynamic_shared_bytes`](crate::dynamic_shared_bytes), of this kernel.
pub(in super::super::super) fn dynamic_shared_bytes(symbol: &str) -> Option<usize> {
    let tile = TILE_CONFIGS.iter().find(|tile| tile.f16_instance.symbol() == symbol)?;
    Some(tile.shared_bytes)
}
