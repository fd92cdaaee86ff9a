//! The one layout of the KV cache.

use super::{Bounds, Dtype, PlanError};
use gpu_types::CacheType;
use std::fmt;
use std::str::FromStr;

/// Positions in a page of the KV cache.
pub const PAGE_SIZE: usize = gpu_types::PAGE_SIZE as usize;

pub use gpu_types::NO_PAGE;

/// A name that is no type's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cache type {0:?}: f32, f16, bf16, q8_0, fp8 or q4_0")]
pub struct UnknownCacheType(String);

/// How the KV cache is stored; `None` is the type of the operands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct KvStorage {
    /// The keys.
    pub k: Option<CacheType>,
    /// The values.
    pub v: Option<CacheType>,
}

impl fmt::Display for KvStorage {
    /// One type for both, or that of the keys, `/` and that of the values; `auto` for what is open.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |of: Option<CacheType>| of.map_or("auto", CacheType::name);
        match (name(self.k), name(self.v)) {
            (k, v) if k == v => f.write_str(k),
            (k, v) => write!(f, "{k}/{v}"),
        }
    }
}

impl FromStr for KvStorage {
    type Err = UnknownCacheType;

    /// As it is printed.
    fn from_str(text: &str) -> Result<Self, UnknownCacheType> {
        let named = |text: &str| match text {
            "auto" => Ok(None),
            _ => match CacheType::from_name(text) {
                None => Err(UnknownCacheType(text.to_owned())),
                known => Ok(known),
            },
        };
        let (k, v) = text.split_once('/').unwrap_or((text, text));
        Ok(KvStorage { k: named(k)?, v: named(v)? })
    }
}

impl From<CacheType> for KvStorage {
    /// Keys and values alike.
    fn from(both: CacheType) -> Self {
        KvStorage { k: Some(both), v: Some(both) }
    }
}

/// What a layer of the KV cache stores of a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvHeads {
    /// KV heads.
    pub num_kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
}

impl KvHeads {
    /// Elements of K, or of V, of a position.
    pub const fn width(self) -> usize {
        self.num_kv_heads * self.head_dim
    }

    /// First element, in a pool without scales, of the row of `kv_head` at `slot`.
    pub const fn row_start(self, slot: usize, kv_head: usize) -> usize {
        let (page, row) = (slot / PAGE_SIZE, slot % PAGE_SIZE);
        ((page * self.num_kv_heads + kv_head) * PAGE_SIZE + row) * self.head_dim
    }
}

/// The layers whose queries see a window of the positions before them: they have block tables of
/// their own, which pages leave with the window, and fewer pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowPools {
    /// Whether each layer of the cache is one.
    pub layers: Vec<bool>,
    /// Pages of each pool of theirs.
    pub num_pages: usize,
}

/// Layout and size of the paged KV cache.
///
/// Each layer has a K pool and a V pool, both `[num_pages, num_kv_heads]` pages of a head. Position
/// `p` of a sequence lives in page `block_table[p / PAGE_SIZE]`, row `p % PAGE_SIZE`; its *slot* is
/// `page * PAGE_SIZE + p % PAGE_SIZE`. Layers may differ in their heads: a page has as many
/// positions in all of them, and the same index in all that share a block table: those with a
/// window, and those without.
///
/// A page of a head is `[PAGE_SIZE, head_dim]` elements, then, where its type has scales,
/// `[num_scales, PAGE_SIZE]` of them in f16. Of 8 and 4 bits every whole 32-bit word holds its even
/// columns first, from the lowest bits on, then the odd ones. Keys of some types are rotated: see
/// [`CacheType::rotates_keys`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvLayout {
    /// The heads of each layer.
    pub layers: Vec<KvHeads>,
    /// Pages of each pool, of layers without a window.
    pub num_pages: usize,
    /// The layers with one, if there are any.
    pub windows: Option<WindowPools>,
    /// Element type of attention's operands, and of what `storage` leaves open.
    pub dtype: Dtype,
    /// How keys and values are stored.
    pub storage: KvStorage,
}

impl KvLayout {
    /// The cache of operations that have none, for plans of `bounds`.
    pub fn none(bounds: &Bounds, dtype: Dtype) -> Self {
        KvLayout {
            layers: Vec::new(),
            num_pages: bounds.max_pages_per_seq(),
            windows: None,
            dtype,
            storage: KvStorage::default(),
        }
    }

    /// The types of K and of V.
    pub fn types(&self) -> [CacheType; 2] {
        let operand = match self.dtype {
            Dtype::F16 => CacheType::F16,
            Dtype::BF16 => CacheType::BF16,
            _ => CacheType::F32,
        };
        let KvStorage { k, v } = self.storage;
        [k, v].map(|stored| stored.unwrap_or(operand))
    }

    /// Whether attention reads elements of the pools as they are, of K and of V.
    pub fn are_operands(&self) -> [bool; 2] {
        self.types().map(|stored| stored.dtype() == Some(self.dtype))
    }

    /// Whether attention reads elements of both pools as they are.
    pub fn is_plain(&self) -> bool {
        self.are_operands() == [true; 2]
    }

    /// Whether pages of `layer` leave with its window.
    pub fn has_window(&self, layer: usize) -> bool {
        self.windows.as_ref().is_some_and(|windows| windows.layers[layer])
    }

    /// Pages of a pool of layers with a window, or of the others.
    pub fn num_pages_of(&self, with_window: bool) -> usize {
        match &self.windows {
            Some(windows) if with_window => windows.num_pages,
            _ => self.num_pages,
        }
    }

    /// Pages of the pools of `layer`.
    pub fn pool_pages(&self, layer: usize) -> usize {
        self.num_pages_of(self.has_window(layer))
    }

    /// Elements of one pool of `layer`.
    pub fn pool_elems(&self, layer: usize) -> usize {
        self.pool_pages(layer) * PAGE_SIZE * self.layers[layer].width()
    }

    /// Elements of the largest pool.
    pub fn max_pool_elems(&self) -> usize {
        (0..self.layers.len()).map(|layer| self.pool_elems(layer)).max().unwrap_or(0)
    }

    /// Bytes of the K pool and of the V pool of `layer`.
    pub fn pool_bytes(&self, layer: usize) -> [usize; 2] {
        self.position_bytes(layer).map(|bytes| self.pool_pages(layer) * PAGE_SIZE * bytes)
    }

    /// Bytes of the whole cache: all layers, K and V.
    pub fn bytes(&self) -> usize {
        self.bytes_before(self.layers.len())
    }

    /// Bytes of the layers before `layer`, K and V.
    pub fn bytes_before(&self, layer: usize) -> usize {
        (0..layer).flat_map(|layer| self.pool_bytes(layer)).sum()
    }

    /// Bytes that one position takes in `layer`, K and V.
    pub fn position_bytes(&self, layer: usize) -> [usize; 2] {
        let KvHeads { num_kv_heads, head_dim } = self.layers[layer];
        self.types().map(|stored| num_kv_heads * stored.row_bytes(head_dim as u32) as usize)
    }

    /// Whether heads are whole numbers of blocks.
    ///
    /// # Errors
    /// [`PlanError::CacheBlocks`].
    pub(super) fn check(&self) -> Result<(), PlanError> {
        for (of, cache_type) in ["k", "v"].into_iter().zip(self.types()) {
            let block_elems = cache_type.block_elems() as usize;
            let mut heads = self.layers.iter().map(|heads| heads.head_dim);
            if let Some(head_dim) = heads.find(|head_dim| !head_dim.is_multiple_of(block_elems)) {
                return Err(PlanError::CacheBlocks { of, cache_type, head_dim });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_is_read_as_it_is_printed() {
        for cache_type in CacheType::ALL {
            assert_eq!(cache_type.to_string().parse(), Ok(KvStorage::from(cache_type)));
        }
        let error = "q5_0".parse::<KvStorage>().unwrap_err().to_string();
        assert_eq!(error, "cache type \"q5_0\": f32, f16, bf16, q8_0, fp8 or q4_0");
    }

    /// A layer of 8192 positions: Qwen2.5-0.5B, Phi-3 Mini.
    #[test]
    fn bytes_come_from_the_types() {
        let kib = |num_kv_heads, head_dim, storage| {
            let num_pages = 8192 / PAGE_SIZE;
            let dtype = Dtype::F16;
            let layers = vec![KvHeads { num_kv_heads, head_dim }];
            let layout = KvLayout { layers, num_pages, windows: None, dtype, storage };
            layout.bytes() >> 10
        };
        use CacheType::{F32, Fp8, Q4_0, Q8_0};
        for (storage, qwen, phi) in [
            (KvStorage::default(), 4 << 10, 96 << 10),
            (F32.into(), 8 << 10, 192 << 10),
            (Q8_0.into(), 4 * 34 * 16, 96 * 34 * 16),
            (Fp8.into(), 2 * 66 * 16, 48 * 98 * 1024 / 96),
            (Q4_0.into(), 4 * 18 * 16, 96 * 18 * 16),
            (KvStorage { k: Some(Q8_0), v: Some(Q4_0) }, 2 * (34 + 18) * 16, 48 * (34 + 18) * 16),
        ] {
            assert_eq!([kib(2, 64, storage), kib(32, 96, storage)], [qwen, phi], "{storage:?}");
        }
    }

    #[test]
    fn layers_have_pools_of_their_own_size() {
        let (local, global) = (
            KvHeads { num_kv_heads: 2, head_dim: 256 },
            KvHeads { num_kv_heads: 1, head_dim: 128 },
        );
        let layout = KvLayout {
            layers: vec![local, local, global, local],
            num_pages: 3,
            windows: None,
            dtype: Dtype::F16,
            storage: KvStorage { k: None, v: Some(CacheType::Q8_0) },
        };
        let positions = 3 * PAGE_SIZE;
        assert_eq!(layout.pool_elems(2), positions * 128);
        assert_eq!(layout.max_pool_elems(), positions * 512);
        assert_eq!(layout.pool_bytes(2), [positions * 256, positions * 4 * 34]);
        assert_eq!(layout.bytes_before(3), positions * (2 * (1024 + 16 * 34) + 256 + 4 * 34));
        assert_eq!(layout.bytes(), positions * (3 * (1024 + 16 * 34) + 256 + 4 * 34));
        let windows = WindowPools { layers: vec![true, true, false, true], num_pages: 2 };
        let layout = KvLayout { windows: Some(windows), ..layout };
        assert_eq!([0, 2].map(|layer| layout.pool_pages(layer)), [2, 3]);
        let of_windows = 2 * PAGE_SIZE * 3 * (1024 + 16 * 34);
        assert_eq!(layout.bytes(), of_windows + positions * (256 + 4 * 34));
    }
}
