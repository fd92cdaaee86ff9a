//! `cuTensorMapEncodeTiled`, which `cust_raw` does not declare.

use std::ffi::{c_int, c_void};

/// Most dimensions of a tensor.
const MAX_RANK: usize = 5;

/// `CU_TENSOR_MAP_INTERLEAVE_NONE`.
const INTERLEAVE_NONE: c_int = 0;
/// `CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE`: out-of-bounds elements are zero.
const OOB_FILL_NONE: c_int = 0;

/// Map, data type, rank, address, dimensions, strides, box, element strides, interleave, swizzle, L2
/// promotion, out-of-bounds fill.
pub(crate) type EncodeTiled = unsafe extern "C" fn(
    *mut OpaqueMap,
    c_int,
    u32,
    *mut c_void,
    *const u64,
    *const u64,
    *const u32,
    *const u32,
    c_int,
    c_int,
    c_int,
    c_int,
) -> c_int;

/// A `CUtensorMap`.
#[repr(C, align(64))]
pub(crate) struct OpaqueMap([u8; 128]);

/// The function of the address from `dlsym`.
pub(crate) fn function(address: *mut c_void) -> Option<EncodeTiled> {
    // SAFETY: a null pointer is `None`; otherwise the type is that of `cuTensorMapEncodeTiled` since CUDA 12.0.
    unsafe { std::mem::transmute::<*mut c_void, Option<EncodeTiled>>(address) }
}

/// A tensor in global memory and the box of it that one copy moves: dimensions innermost first, element strides of 1,
/// no interleave, zeros out of bounds.
#[derive(Clone, Copy, Debug)]
pub struct TiledTensorMap<'a> {
    /// Address of the tensor on the device.
    pub address: u64,
    /// Type of the elements, a `CUtensorMapDataType`.
    pub data_type: u32,
    /// Elements of the tensor in each dimension.
    pub dims: &'a [u64],
    /// Bytes from an element to the next of dimension 1, 2, ...
    pub strides_bytes: &'a [u64],
    /// Elements of the box in each dimension.
    pub box_dims: &'a [u32],
    /// Swizzle of the box in shared memory, a `CUtensorMapSwizzle`.
    pub swizzle: u32,
    /// Size of an L2 fetch, a `CUtensorMapL2promotion`.
    pub l2_promotion: u32,
}

/// Why a tensor map was not encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The driver has no such function.
    #[error("the NVIDIA driver has no cuTensorMapEncodeTiled; update it")]
    Unsupported,
    /// The ranks of dimensions, strides and box do not agree.
    #[error(
        "{rank} dimensions, {strides} strides and a box of {box_rank}: expected 1 to {MAX_RANK} dimensions, one \
         stride fewer, and a box of as many"
    )]
    Shape {
        /// Dimensions of the tensor.
        rank: usize,
        /// Strides.
        strides: usize,
        /// Dimensions of the box.
        box_rank: usize,
    },
    /// The driver's code, a `CUresult`.
    #[error("cuTensorMapEncodeTiled returned {0}")]
    Refused(i32),
}

impl TiledTensorMap<'_> {
    /// Calls `encode_tiled`.
    pub(crate) fn encode(&self, encode_tiled: EncodeTiled) -> Result<[u8; 128], EncodeError> {
        let TiledTensorMap {
            address,
            data_type,
            dims,
            strides_bytes,
            box_dims,
            swizzle,
            l2_promotion,
        } = *self;
        let rank = dims.len();
        let (strides, box_rank) = (strides_bytes.len(), box_dims.len());
        if !(1..=MAX_RANK).contains(&rank) || strides != rank - 1 || box_rank != rank {
            return Err(EncodeError::Shape { rank, strides, box_rank });
        }
        let mut map = OpaqueMap([0; 128]);
        // SAFETY: the function reads `rank` dimensions, box dimensions and element strides, and one stride fewer;
        // it writes the map, which is aligned to 64 bytes. It does not read the address, which is the device's.
        let code = unsafe {
            encode_tiled(
                &mut map,
                data_type as c_int,
                rank as u32,
                std::ptr::without_provenance_mut(address as usize),
                dims.as_ptr(),
                strides_bytes.as_ptr(),
                box_dims.as_ptr(),
                [1; MAX_RANK].as_ptr(),
                INTERLEAVE_NONE,
                swizzle as c_int,
                l2_promotion as c_int,
                OOB_FILL_NONE,
            )
        };
        match code {
            0 => Ok(map.0),
            code => Err(EncodeError::Refused(code)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fake of the driver's function: writes its arguments in order, in words of 8 bytes.
    unsafe extern "C" fn writes_arguments(
        map: *mut OpaqueMap,
        data_type: c_int,
        rank: u32,
        address: *mut c_void,
        dims: *const u64,
        strides: *const u64,
        box_dims: *const u32,
        element_strides: *const u32,
        interleave: c_int,
        swizzle: c_int,
        l2_promotion: c_int,
        fill: c_int,
    ) -> c_int {
        if !map.addr().is_multiple_of(64) {
            return 1;
        }
        let rank = rank as usize;
        // SAFETY: the slices are as long as the driver may read them.
        let (dims, strides, box_dims, element_strides) = unsafe {
            (
                std::slice::from_raw_parts(dims, rank),
                std::slice::from_raw_parts(strides, rank - 1),
                std::slice::from_raw_parts(box_dims, rank),
                std::slice::from_raw_parts(element_strides, rank),
            )
        };
        let mut words = vec![data_type as u64, rank as u64, address.addr() as u64];
        words.extend(dims.iter().chain(strides));
        words.extend(box_dims.iter().chain(element_strides).map(|&word| u64::from(word)));
        words.extend([interleave, swizzle, l2_promotion, fill].map(|word| word as u64));
        for (at, word) in words.iter().enumerate() {
            // SAFETY: at most 16 words for two dimensions, the map's 128 bytes.
            unsafe { (&raw mut (*map).0).cast::<u64>().add(at).write(*word) };
        }
        0
    }

    unsafe extern "C" fn refuses(
        _: *mut OpaqueMap,
        _: c_int,
        _: u32,
        _: *mut c_void,
        _: *const u64,
        _: *const u64,
        _: *const u32,
        _: *const u32,
        _: c_int,
        _: c_int,
        _: c_int,
        _: c_int,
    ) -> c_int {
        1
    }

    const MATRIX: TiledTensorMap<'_> = TiledTensorMap {
        address: 0x7f00_0000_1000,
        data_type: 6,
        dims: &[4096, 100],
        strides_bytes: &[8192],
        box_dims: &[64, 128],
        swizzle: 3,
        l2_promotion: 2,
    };

    #[test]
    fn every_argument_is_passed_in_its_place() {
        let map = MATRIX.encode(writes_arguments).unwrap();
        let (words, _) = map.as_chunks::<8>();
        let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let want = [6, 2, 0x7f00_0000_1000, 4096, 100, 8192, 64, 128, 1, 1, 0, 3, 2, 0, 0, 0];
        assert_eq!(words, want);
    }

    #[test]
    fn maps_that_cannot_be_encoded_are_errors() {
        assert_eq!(MATRIX.encode(refuses), Err(EncodeError::Refused(1)));
        let short = TiledTensorMap { strides_bytes: &[], ..MATRIX };
        let shape = EncodeError::Shape { rank: 2, strides: 0, box_rank: 2 };
        assert_eq!(short.encode(writes_arguments), Err(shape));
        let empty = TiledTensorMap { dims: &[], box_dims: &[], strides_bytes: &[], ..MATRIX };
        assert!(matches!(empty.encode(writes_arguments), Err(EncodeError::Shape { rank: 0, .. })));
        assert!(function(std::ptr::null_mut()).is_none());
    }
}
