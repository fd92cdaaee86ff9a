//! Tensor map specifications: which are rejected, and their encoding for the emulator.

use cuda_std::launch::Geometry;
use cuda_std::prelude::*;
use cuda_std::tensor_map::{
    Element, EncodedTensorMap, L2Promotion, Swizzle, TensorMapError, TensorMapSpec,
};

/// A matrix of f16, 100 rows of 4096, in boxes of 128 rows of 64.
fn matrix() -> TensorMapSpec {
    TensorMapSpec {
        address: 0x7f12_3456_7890,
        element: Element::F16,
        dims: vec![4096, 100],
        strides_bytes: vec![8192],
        box_dims: vec![64, 128],
        swizzle: Swizzle::B128,
        l2_promotion: L2Promotion::default(),
    }
}

/// `check` of the matrix after `change`.
fn check(change: impl FnOnce(&mut TensorMapSpec)) -> Result<(), TensorMapError> {
    let mut spec = matrix();
    change(&mut spec);
    spec.check()
}

#[test]
fn ranks_from_1_to_5_are_accepted() {
    for rank in 0..7 {
        let spec = TensorMapSpec {
            dims: vec![64; rank],
            strides_bytes: vec![128; rank.saturating_sub(1)],
            box_dims: vec![8; rank],
            swizzle: Swizzle::None,
            ..matrix()
        };
        let want = if (1..=5).contains(&rank) { Ok(()) } else { Err(TensorMapError::Rank(rank)) };
        assert_eq!(spec.check(), want);
    }
    let error = check(|spec| spec.strides_bytes.push(16));
    assert_eq!(error, Err(TensorMapError::NumStrides { given: 2, rank: 2 }));
    let error = check(|spec| spec.box_dims.truncate(1));
    assert_eq!(error, Err(TensorMapError::BoxRank { given: 1, rank: 2 }));
}

#[test]
fn addresses_and_strides_are_multiples_of_16() {
    for address in [0x1000, 0x1008, 0x1010, 0x1018, 0x100f] {
        let want = if address % 16 == 0 { Ok(()) } else { Err(TensorMapError::Address(address)) };
        assert_eq!(check(|spec| spec.address = address), want);
    }
    let most = (1 << 40) - 16;
    for (bytes, right) in
        [(0, true), (16, true), (8200, false), (8208, true), (most, true), (most + 16, false)]
    {
        let want = if right { Ok(()) } else { Err(TensorMapError::Stride { axis: 1, bytes }) };
        assert_eq!(check(|spec| spec.strides_bytes[0] = bytes), want);
    }
}

#[test]
fn dimensions_have_limits() {
    for (elems, right) in [(0, false), (1, true), (1 << 32, true), ((1 << 32) + 1, false)] {
        let want = if right { Ok(()) } else { Err(TensorMapError::Dim { axis: 1, elems }) };
        assert_eq!(check(|spec| spec.dims[1] = elems), want);
    }
    for (elems, right) in [(0, false), (1, true), (256, true), (257, false)] {
        let want = if right { Ok(()) } else { Err(TensorMapError::BoxDim { axis: 1, elems }) };
        assert_eq!(check(|spec| spec.box_dims[1] = elems), want);
    }
}

#[test]
fn rows_of_a_box_fit_the_swizzle() {
    use Swizzle::*;
    let rows = [
        (Element::F16, None, 4, false),
        (Element::F16, None, 8, true),
        (Element::F16, None, 12, false),
        (Element::F16, None, 256, true),
        (Element::U8, None, 24, false),
        (Element::U8, B32, 32, true),
        (Element::U8, B32, 48, false),
        (Element::Bf16, B64, 32, true),
        (Element::Bf16, B64, 40, false),
        (Element::F16, B128, 64, true),
        (Element::F16, B128, 72, false),
        (Element::F32, B128, 32, true),
        (Element::F32, B128, 36, false),
        (Element::U64, B128, 16, true),
        (Element::U64, B128, 18, false),
    ];
    for (element, swizzle, elems, right) in rows {
        let size = match element {
            Element::U8 => 1,
            Element::F16 | Element::Bf16 | Element::U16 => 2,
            Element::F32 | Element::U32 => 4,
            Element::U64 => 8,
        };
        let bytes = size * u64::from(elems);
        let got = check(|spec| {
            (spec.element, spec.swizzle, spec.box_dims[0]) = (element, swizzle, elems);
            assert_eq!(spec.box_bytes(), bytes * 128);
        });
        let want = if right { Ok(()) } else { Err(TensorMapError::BoxRow { bytes, swizzle }) };
        assert_eq!(got, want, "{element:?} {swizzle:?} {elems}");
    }
}

#[test]
fn an_error_names_the_value_and_the_expected_values() {
    let error = check(|spec| spec.box_dims[0] = 72).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the box has rows of 144 bytes: expected a multiple of 16, at most 128 as its swizzle is \
         B128"
    );
    let error = check(|spec| spec.strides_bytes[0] = 8200).unwrap_err();
    assert_eq!(
        error.to_string(),
        "dimension 1 has a stride of 8200 bytes: expected a multiple of 16 below 2^40"
    );
}

#[test]
fn the_emulator_gets_every_field() {
    let spec = TensorMapSpec {
        dims: vec![0x0102_0304, 0x1_0000_0000, 7],
        strides_bytes: vec![0x12_3456_7890, 0x20],
        box_dims: vec![0x40, 0x100, 3],
        element: Element::Bf16,
        swizzle: Swizzle::B64,
        ..matrix()
    };
    #[rustfmt::skip]
    let fields: [(usize, &[u8]); 17] = [
        (0, b"simt-map"),
        (8, &[0x90, 0x78, 0x56, 0x34, 0x12, 0x7f, 0, 0]),
        (16, &[2, 3, 2, 0, 0, 0, 0, 0]),
        (24, &[4, 3, 2, 1, 0, 0, 0, 0]),
        (32, &[0, 0, 0, 0, 1, 0, 0, 0]),
        (40, &[7, 0, 0, 0, 0, 0, 0, 0]),
        (48, &[1, 0, 0, 0, 0, 0, 0, 0]),
        (56, &[1, 0, 0, 0, 0, 0, 0, 0]),
        (64, &[0x90, 0x78, 0x56, 0x34, 0x12, 0, 0, 0]),
        (72, &[0x20, 0, 0, 0, 0, 0, 0, 0]),
        (80, &[0; 16]),
        (96, &[0x40, 0, 0, 0]),
        (100, &[0, 1, 0, 0]),
        (104, &[3, 0, 0, 0]),
        (108, &[1, 0, 0, 0]),
        (112, &[1, 0, 0, 0]),
        (116, &[0; 12]),
    ];
    let EncodedTensorMap(map) = spec.emulated();
    let mut end = 0;
    for (at, bytes) in fields {
        assert_eq!((at, &map[at..at + bytes.len()]), (end, bytes));
        end = at + bytes.len();
    }
    assert_eq!(end, 128);
}

/// The codes of `cuda.h`, and those of the emulator.
#[test]
fn elements_and_swizzles_have_their_codes() {
    let elements = [
        (Element::U8, 0, 0),
        (Element::F16, 6, 1),
        (Element::Bf16, 9, 2),
        (Element::F32, 7, 3),
        (Element::U16, 1, 4),
        (Element::U32, 2, 5),
        (Element::U64, 4, 6),
    ];
    for (element, driver, emulator) in elements {
        let spec = TensorMapSpec { element, ..matrix() };
        assert_eq!((element.driver_code(), spec.emulated().0[16]), (driver, emulator));
    }
    for (number, swizzle) in
        [Swizzle::None, Swizzle::B32, Swizzle::B64, Swizzle::B128].into_iter().enumerate()
    {
        let spec = TensorMapSpec { swizzle, ..matrix() };
        assert_eq!((swizzle as usize, spec.emulated().0[18]), (number, number as u8));
    }
}

#[kernel(launch_bounds(32))]
unsafe fn prefetch(_rows: u32, map: TensorMap) {
    map.prefetch();
}

#[test]
fn a_map_parameter_is_aligned_to_64_bytes() {
    let geometry = Geometry { grid: [1, 1, 1], block: [32, 1, 1], shared_bytes: 0 };
    let map = matrix().emulated();
    let launch = prefetch::Args { _rows: 7, map }.launch(geometry);
    assert_eq!(launch.arg_offsets, [0, 64]);
    assert_eq!(launch.args[64..], map.0);
    assert!(format!("{map:?}").starts_with("73696d742d6d6170"));
    assert_ne!(map, EncodedTensorMap::NONE);
    launch.emulate(&mut simt::Memory::new(), 0).unwrap();
}
