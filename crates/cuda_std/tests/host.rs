//! Types of the host and of the device alike: pairs, matrix descriptors, accumulators.

use cuda_std::prelude::*;
use cuda_std::wgmma::{Accumulator, KMajor, MatrixDescriptor, Swizzle, column, row};
use cuda_std::{Bf16x2, E4m3, E4m3x2, F16x2, convert};
use half::{bf16, f16};

#[test]
fn bf16_to_f32_is_exact() {
    for code in 0..=u16::MAX {
        let got = convert::bf16_to_f32(bf16::from_bits(code));
        assert_eq!(got.to_bits(), u32::from(code) << 16);
    }
}

#[test]
fn a_pair_has_its_first_number_in_the_lower_half() {
    let (one, two) = (f16::from_f32(1.0), f16::from_f32(-2.0));
    let pair = F16x2::new(one, two);
    assert_eq!((pair.to_bits(), pair.lo(), pair.hi()), (0xc000_3c00, one, two));
    assert_eq!((F16x2::splat(one).to_bits(), (-pair).to_bits()), (0x3c00_3c00, 0x4000_bc00));
    let (one, two) = (bf16::from_f32(1.0), bf16::from_f32(-2.0));
    let pair = Bf16x2::new(one, two);
    assert_eq!((pair.to_bits(), pair.lo(), pair.hi()), (0xc000_3f80, one, two));
    let pair = E4m3x2::new(E4m3::from_bits(0x12), E4m3::from_bits(0x34));
    assert_eq!((pair.to_bits(), pair.hi().to_bits()), (0x3412, 0x34));
}

#[test]
fn descriptors_are_the_isa_pages_bits() {
    // SAFETY: no element is accessed.
    let tile = |address| unsafe { Shared::<f16>::from_address(address) };
    let k_major = MatrixDescriptor::k_major(tile(0x8400), Swizzle::B128);
    assert_eq!(k_major.bits(), 0x4000_0040_0001_0840);
    assert_eq!(k_major.advance(32).bits(), 0x4000_0040_0001_0842);
    let narrow = |swizzle| MatrixDescriptor::k_major(tile(0x200), swizzle).bits();
    assert_eq!(narrow(Swizzle::B64), 2 << 62 | 32 << 32 | 1 << 16 | 0x20);
    assert_eq!(narrow(Swizzle::B32), 3 << 62 | 16 << 32 | 1 << 16 | 0x20);
    let v = MatrixDescriptor::mn_major(tile(0x3_8c00), 0x4000, Swizzle::B128);
    assert_eq!(v.bits(), 1 << 62 | 64 << 32 | 0x400 << 16 | 0x38c0);
    assert_eq!(v.advance(2048).bits(), v.bits() + 128);
    let bare: MatrixDescriptor<f16, KMajor> =
        MatrixDescriptor::new(tile(0x10), 256, 128, Swizzle::None);
    assert_eq!(bare.bits(), 8 << 32 | 16 << 16 | 1);
}

#[test]
fn every_register_is_one_element() {
    let mut seen = vec![false; 64 * 256];
    for (thread, register) in (0..128).flat_map(|t| (0..128).map(move |i| (t, i))) {
        let element = row(thread, register) * 256 + column(thread, register);
        assert!(!std::mem::replace(&mut seen[element as usize], true));
    }
    // Figure "Register fragment layout for accumulator matrix D", read at three places.
    assert_eq!((row(0, 0), column(0, 0)), (0, 0));
    assert_eq!((row(5, 3), column(5, 3)), (9, 3));
    assert_eq!((row(127, 6), column(127, 6)), (63, 14));
    // The second warpgroup has another accumulator.
    assert_eq!((row(133, 3), column(133, 3)), (9, 3));
}

#[test]
fn registers_are_listed_in_order() {
    let numbers: [f32; 48] = std::array::from_fn(|i| i as f32);
    let mut accumulator = Accumulator::from_values(numbers);
    let mut next = 0;
    accumulator.for_each(|i, value| {
        assert_eq!((i, *value), (next, next as f32));
        next += 1;
    });
    accumulator.for_each_16_columns(|j, registers| {
        assert_eq!(registers[..], numbers[8 * j..8 * j + 8]);
        next += 8;
    });
    assert_eq!(next, 96);
    accumulator.scale_rows([2.0, -1.0]);
    let got = accumulator.values();
    assert_eq!(got[..8], [0.0, 2.0, -2.0, -3.0, 8.0, 10.0, -6.0, -7.0]);
}
