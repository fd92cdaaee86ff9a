//! Operands of matrix products, what a sum of products may be off, and sums that tell how the
//! hardware adds.
//!
//! The products are exact. Neither the order nor the rounding of a sum is fixed by the ISA. What
//! measurements tell (arXiv:2403.00232, arXiv:2512.07004): in a step of up to 16 products of 16-bit
//! elements all summands are aligned to the greatest exponent among them, and bits under `2^-24` of
//! it are cut off; of 8-bit elements on SM 90, bits under about `2^-13`.

use crate::inputs::random_words;
use crate::numbers::{Format, Rounding, binade};
use crate::{Probe, Tolerance, Want};

/// Rows or columns of an operand, each along k: codes of `format`.
#[derive(Clone, Debug)]
pub struct Operand {
    /// What the codes are.
    pub format: Format,
    /// The codes, `[mn][k]`.
    pub codes: Vec<Vec<u16>>,
}

/// What an operand is drawn from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Draw {
    /// 1 to 4 and -1 to -4: every sum in every order is exact.
    Whole,
    /// All numbers of the format between 2^-6 and 4, both signs.
    Any,
}

impl Operand {
    /// A random operand, another one for another `seed`.
    pub fn random(format: Format, (mn, k): (usize, usize), draw: Draw, seed: u64) -> Self {
        let mut words = random_words(seed);
        let mut code = || {
            let word = words.next().expect("random words do not end");
            let magnitude = match draw {
                Draw::Whole => f64::from(1 + word % 4),
                Draw::Any => {
                    (1.0 + f64::from(word >> 16) / 65536.0) * 2f64.powi(1 - (word >> 8 & 7) as i32)
                }
            };
            let value = if word & 0x80 == 0 { magnitude } else { -magnitude };
            format.round(value, Rounding::Nearest)
        };
        let codes = (0..mn).map(|_| (0..k).map(|_| code()).collect()).collect();
        Operand { format, codes }
    }

    /// An operand of these values, each of which the format has.
    pub fn of_values(format: Format, values: impl Iterator<Item = Vec<f64>>) -> Self {
        let code = |value: f64| {
            let code = format.round(value, Rounding::Nearest);
            assert_eq!(format.value(code), value);
            code
        };
        let codes = values.map(|row| row.into_iter().map(code).collect()).collect();
        Operand { format, codes }
    }

    /// The numbers of the codes.
    fn values(&self) -> Vec<Vec<f64>> {
        let row = |codes: &Vec<u16>| codes.iter().map(|&code| self.format.value(code)).collect();
        self.codes.iter().map(row).collect()
    }
}

/// An element of a product as it should be.
#[derive(Clone, Copy, Debug)]
pub struct Element {
    /// The sum in f64: exact of [`Draw::Whole`], else far closer than an f32.
    pub exact: f64,
    /// 2 to the power of the greatest exponent that a partial sum can have.
    binade: f64,
    num_summands: usize,
    format: Format,
}

impl Element {
    /// `before` and the products of a row of A and a column of B.
    fn new(a: &[f64], b: &[f64], before: f64, format: Format) -> Self {
        let summands = || [before].into_iter().chain(a.iter().zip(b).map(|(a, b)| a * b));
        Element {
            exact: summands().sum(),
            binade: binade(summands().map(f64::abs).sum()),
            num_summands: 1 + a.len(),
            format,
        }
    }

    /// How far off a sum in f32 may be: every summand loses less than `2^-23` of the binade, of
    /// 8-bit elements `2^-12`, and so does every rounding, behind 8 products at the earliest.
    pub fn bound(self) -> f64 {
        let lost = if self.format.bits() == 16 { 2f64.powi(-23) } else { 2f64.powi(-12) };
        (self.num_summands + self.num_summands / 8) as f64 * lost * self.binade
    }

    /// How far off a sum in f16 may be: in steps of at least 8 products, each of which rounds to
    /// nearest.
    pub fn bound_in_f16(self) -> f64 {
        self.bound() + (self.num_summands / 8) as f64 * 2f64.powi(-11) * self.binade
    }
}

/// The elements of `A * B^T`, row by row, on top of `before`.
pub fn elements(a: &Operand, b: &Operand, before: &[f64]) -> Vec<Element> {
    let (rows, columns) = (a.values(), b.values());
    let places = rows.iter().flat_map(|row| columns.iter().map(move |column| (row, column)));
    places
        .zip(before)
        .map(|((row, column), &before)| Element::new(row, column, before, a.format))
        .collect()
}

/// Elements in f32, to the last bit or within their bounds.
pub fn want(elements: &[Element], draw: Draw) -> Want {
    let tolerance = match draw {
        Draw::Whole => Tolerance::Ulps(0),
        Draw::Any => Tolerance::Each(elements.iter().map(|element| element.bound()).collect()),
    };
    Want::F32(elements.iter().map(|element| element.exact).collect(), tolerance)
}

/// Sums in f16, as elements in f32, to the last bit or within their bounds.
pub fn want_in_f16(elements: &[Element], draw: Draw) -> Want {
    let tolerance = match draw {
        Draw::Whole => Tolerance::Ulps(0),
        Draw::Any => {
            Tolerance::Each(elements.iter().map(|element| element.bound_in_f16()).collect())
        }
    };
    Want::F32(elements.iter().map(|element| element.exact).collect(), tolerance)
}

/// A sum that tells how the hardware adds: the accumulator before, and products at places of k.
pub struct Sum {
    label: &'static str,
    /// The accumulator before.
    pub before: f64,
    /// Place and value of the products that are not zero: the value times 1.
    products: &'static [(usize, f64)],
}

const fn power(exponent: i32) -> f64 {
    f64::from_bits(((1023 + exponent) as u64) << 52)
}

macro_rules! sum {
    ($label:literal, $before:expr, $products:expr) => {
        Sum { label: $label, before: $before, products: &$products }
    };
}

/// Of 16-bit elements: from where on bits are lost, which way sums are rounded, and how many
/// products are one step.
pub const SUMS_OF_16_BITS: [Sum; 16] = [
    sum!("1 + 2^-23", 1.0, [(0, power(-23))]),
    sum!("1 + 2^-24 + 2^-24", 1.0, [(0, power(-24)), (1, power(-24))]),
    sum!("-1 - 2^-24 - 2^-24", -1.0, [(0, -power(-24)), (1, -power(-24))]),
    sum!("1 - 2^-24", 1.0, [(0, -power(-24))]),
    sum!("2^24 + 1 + 1 + 1", power(24), [(0, 1.0), (1, 1.0), (2, 1.0)]),
    sum!("-2^24 - 1 - 1 - 1", -power(24), [(0, -1.0), (1, -1.0), (2, -1.0)]),
    sum!("2^24 + 1", power(24), [(0, 1.0)]),
    sum!("2^15 - 2^15 + 2^-8", 0.0, [(0, power(15)), (1, -power(15)), (2, power(-8))]),
    sum!("2^15 - 2^15 + 2^-9", 0.0, [(0, power(15)), (1, -power(15)), (2, power(-9))]),
    sum!("2^15 - 2^15 + 2^-10", 0.0, [(0, power(15)), (1, -power(15)), (2, power(-10))]),
    sum!("2^15 - 2^15, + 2^-12 at k = 4", 0.0, [(0, power(15)), (1, -power(15)), (4, power(-12))]),
    sum!("2^15 - 2^15, + 2^-12 at k = 8", 0.0, [(0, power(15)), (1, -power(15)), (8, power(-12))]),
    sum!("(2^15) - 2^15 + 2^-12", power(15), [(0, -power(15)), (1, power(-12))]),
    sum!("(2^15) - 2^15, + 2^-12 at k = 8", power(15), [(0, -power(15)), (8, power(-12))]),
    sum!("2^-24, subnormal", 0.0, [(3, power(-24))]),
    sum!("(2^-140), subnormal", power(-140), []),
];

/// Of 8-bit elements.
pub const SUMS_OF_8_BITS: [Sum; 16] = [
    sum!("2^8 - 2^8 + 2^-3", 0.0, [(0, power(8)), (1, -power(8)), (2, power(-3))]),
    sum!("2^8 - 2^8 + 2^-4", 0.0, [(0, power(8)), (1, -power(8)), (2, power(-4))]),
    sum!("2^8 - 2^8 + 2^-5", 0.0, [(0, power(8)), (1, -power(8)), (2, power(-5))]),
    sum!("2^8 - 2^8 + 2^-6", 0.0, [(0, power(8)), (1, -power(8)), (2, power(-6))]),
    sum!("2^8 - 2^8 + 2^-7", 0.0, [(0, power(8)), (1, -power(8)), (2, power(-7))]),
    sum!("2^8 - 2^8 + 2^-9", 0.0, [(0, power(8)), (1, -power(8)), (2, power(-9))]),
    sum!("2^8 - 2^8, + 2^-9 at k = 8", 0.0, [(0, power(8)), (1, -power(8)), (8, power(-9))]),
    sum!("2^8 - 2^8, + 2^-9 at k = 16", 0.0, [(0, power(8)), (1, -power(8)), (16, power(-9))]),
    sum!("(1) + 2^-9", 1.0, [(0, power(-9))]),
    sum!("(2^4) + 2^-8", power(4), [(0, power(-8))]),
    sum!("(2^4) + 2^-9", power(4), [(0, power(-9))]),
    sum!("(2^5) + 2^-9", power(5), [(0, power(-9))]),
    sum!("(2^6) + 2^-9", power(6), [(0, power(-9))]),
    sum!("(-2^6) - 2^-9", -power(6), [(0, -power(-9))]),
    sum!("(1 + 2^-23) + 0", 1.0 + power(-23), []),
    sum!("(1 + 2^-23) + 1", 1.0 + power(-23), [(0, 1.0)]),
];

/// The sums as rows of `A * B + before`, of which every column of B is ones; and what they tell.
pub fn probes(sums: &[Sum], format: Format, k: usize, n: usize) -> (Operand, Operand, Want) {
    let row = |sum: &Sum| {
        let mut row = vec![0.0; k];
        sum.products.iter().for_each(|&(at, value)| row[at] = value);
        row
    };
    let a = Operand::of_values(format, sums.iter().map(row));
    let b = Operand::of_values(format, (0..n).map(|_| vec![1.0; k]));
    let before: Vec<f64> = sums.iter().map(|sum| sum.before).collect();
    let one_column = Operand { codes: vec![b.codes[0].clone()], ..b };
    let probes = sums.iter().zip(elements(&a, &one_column, &before)).map(|(sum, element)| Probe {
        label: sum.label,
        exact: element.exact,
        bound: element.bound(),
    });
    let want = Want::Probes(probes.collect());
    (a, b, want)
}
