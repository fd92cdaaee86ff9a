//! Operands of MMAs, the reference result with its error bound, and probes of how the hardware
//! accumulates.
//!
//! Products are exact. The ISA fixes neither the order nor the rounding of the accumulation.
//! According to measurements (arXiv:2403.00232, arXiv:2512.07004), a step of up to 16 products of
//! 16-bit elements aligns all summands to the largest exponent among them and truncates bits below
//! `2^-24` of it; for 8-bit elements on SM 90, bits below about `2^-13`.

use crate::inputs::random_words;
use crate::numbers::{F16, Format, Rounding, binade};
use crate::{Probe, Tolerance, Want};

/// An operand: rows of A or columns of B, along k.
#[derive(Clone, Debug)]
pub struct Operand {
    /// Format of the codes.
    pub format: Format,
    /// The codes, `[mn][k]`.
    pub codes: Vec<Vec<u16>>,
}

/// The distribution of an operand's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Draw {
    /// 1 to 4 and -1 to -4: accumulation is exact in every order.
    Whole,
    /// All numbers of the format of magnitudes 2^-6 to 4, both signs.
    Any,
}

impl Operand {
    /// A random operand, determined by `seed`.
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

    /// An operand of these values, which the format must represent exactly.
    pub fn from_values(format: Format, values: impl Iterator<Item = Vec<f64>>) -> Self {
        let code = |value: f64| {
            let code = format.round(value, Rounding::Nearest);
            assert_eq!(format.value(code), value);
            code
        };
        let codes = values.map(|row| row.into_iter().map(code).collect()).collect();
        Operand { format, codes }
    }

    /// The values of the codes.
    fn values(&self) -> Vec<Vec<f64>> {
        let row = |codes: &Vec<u16>| codes.iter().map(|&code| self.format.value(code)).collect();
        self.codes.iter().map(row).collect()
    }
}

/// What one instruction adds up, and in which type.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Products of one instruction.
    pub k: usize,
    /// Whether the accumulator is f16.
    pub in_f16: bool,
}

/// The reference value of an element of D.
#[derive(Clone, Copy, Debug)]
pub struct Element {
    /// The sum in f64: exact for [`Draw::Whole`], otherwise far more precise than f32.
    pub exact: f64,
    /// 2 to the power of the largest exponent that a partial sum can have.
    binade: f64,
    num_summands: usize,
    format: Format,
    in_f16: bool,
    /// The sum, rounded after each instruction.
    emulated: f64,
}

impl Element {
    /// `before` plus a row of A times a column of B.
    fn new(a: &[f64], b: &[f64], before: f64, format: Format, Step { k, in_f16 }: Step) -> Self {
        let products: Vec<f64> = a.iter().zip(b).map(|(a, b)| a * b).collect();
        let summands = || [before].into_iter().chain(products.iter().copied());
        let round = |sum: f64| match in_f16 {
            true => F16.value(F16.round(sum, Rounding::Nearest)),
            false => f64::from(sum as f32),
        };
        let add = |sum: f64, step: &[f64]| round(step.iter().fold(sum, |sum, one| sum + one));
        Element {
            exact: summands().sum(),
            binade: binade(summands().map(f64::abs).sum()),
            num_summands: 1 + a.len(),
            format,
            in_f16,
            emulated: products.chunks(k).fold(before, add),
        }
    }

    /// Error bound: every summand loses less than `2^-23` of the binade (`2^-12` for 8-bit
    /// elements), and so does every rounding, at most one per 8 products, or in f16 as many
    /// roundings to nearest.
    pub fn bound(self) -> f64 {
        let lost = if self.format.bits() == 16 { 2f64.powi(-23) } else { 2f64.powi(-12) };
        let num_roundings = (self.num_summands / 8) as f64;
        let in_f16 = if self.in_f16 { num_roundings * 2f64.powi(-11) } else { 0.0 };
        ((self.num_summands as f64 + num_roundings) * lost + in_f16) * self.binade
    }
}

/// The elements of `A * B^T + before`, row by row.
pub fn elements(a: &Operand, b: &Operand, before: &[f64], step: Step) -> Vec<Element> {
    let (rows, columns) = (a.values(), b.values());
    let places = rows.iter().flat_map(|row| columns.iter().map(move |column| (row, column)));
    places
        .zip(before)
        .map(|((row, column), &before)| Element::new(row, column, before, a.format, step))
        .collect()
}

/// Elements stored in f32, exact or within their bounds.
pub fn want(elements: &[Element], draw: Draw) -> Want {
    let tolerance = match draw {
        Draw::Whole => Tolerance::Ulps(0),
        Draw::Any => Tolerance::Steps {
            bounds: elements.iter().map(|element| element.bound()).collect(),
            emulated: elements.iter().map(|element| element.emulated).collect(),
        },
    };
    Want::F32(elements.iter().map(|element| element.exact).collect(), tolerance)
}

/// An accumulation whose result shows how the hardware accumulates.
pub struct Accumulation {
    label: &'static str,
    /// The initial accumulator.
    pub before: f64,
    /// Index along k and value of the nonzero products: the value times 1.
    products: &'static [(usize, f64)],
}

const fn power(exponent: i32) -> f64 {
    f64::from_bits(((1023 + exponent) as u64) << 52)
}

macro_rules! accumulation {
    ($label:literal, $before:expr, $products:expr) => {
        Accumulation { label: $label, before: $before, products: &$products }
    };
}

/// Probes for 16-bit elements: which bits are lost, how results are rounded, and how many products
/// are one step.
pub const PROBES_OF_16_BITS: [Accumulation; 16] = [
    accumulation!("1 + 2^-23", 1.0, [(0, power(-23))]),
    accumulation!("1 + 2^-24 + 2^-24", 1.0, [(0, power(-24)), (1, power(-24))]),
    accumulation!("-1 - 2^-24 - 2^-24", -1.0, [(0, -power(-24)), (1, -power(-24))]),
    accumulation!("1 - 2^-24", 1.0, [(0, -power(-24))]),
    accumulation!("2^24 + 1 + 1 + 1", power(24), [(0, 1.0), (1, 1.0), (2, 1.0)]),
    accumulation!("-2^24 - 1 - 1 - 1", -power(24), [(0, -1.0), (1, -1.0), (2, -1.0)]),
    accumulation!("2^24 + 1", power(24), [(0, 1.0)]),
    accumulation!("2^15 - 2^15 + 2^-8", 0.0, [(0, power(15)), (1, -power(15)), (2, power(-8))]),
    accumulation!("2^15 - 2^15 + 2^-9", 0.0, [(0, power(15)), (1, -power(15)), (2, power(-9))]),
    accumulation!("2^15 - 2^15 + 2^-10", 0.0, [(0, power(15)), (1, -power(15)), (2, power(-10))]),
    accumulation!(
        "2^15 - 2^15, + 2^-12 at k = 4",
        0.0,
        [(0, power(15)), (1, -power(15)), (4, power(-12))]
    ),
    accumulation!(
        "2^15 - 2^15, + 2^-12 at k = 8",
        0.0,
        [(0, power(15)), (1, -power(15)), (8, power(-12))]
    ),
    accumulation!("(2^15) - 2^15 + 2^-12", power(15), [(0, -power(15)), (1, power(-12))]),
    accumulation!("(2^15) - 2^15, + 2^-12 at k = 8", power(15), [(0, -power(15)), (8, power(-12))]),
    accumulation!("2^-24, subnormal", 0.0, [(3, power(-24))]),
    accumulation!("(2^-140), subnormal", power(-140), []),
];

/// Probes for 8-bit elements.
pub const PROBES_OF_8_BITS: [Accumulation; 16] = [
    accumulation!("2^8 - 2^8 + 2^-3", 0.0, [(0, power(8)), (1, -power(8)), (2, power(-3))]),
    accumulation!("2^8 - 2^8 + 2^-4", 0.0, [(0, power(8)), (1, -power(8)), (2, power(-4))]),
    accumulation!("2^8 - 2^8 + 2^-5", 0.0, [(0, power(8)), (1, -power(8)), (2, power(-5))]),
    accumulation!("2^8 - 2^8 + 2^-6", 0.0, [(0, power(8)), (1, -power(8)), (2, power(-6))]),
    accumulation!("2^8 - 2^8 + 2^-7", 0.0, [(0, power(8)), (1, -power(8)), (2, power(-7))]),
    accumulation!("2^8 - 2^8 + 2^-9", 0.0, [(0, power(8)), (1, -power(8)), (2, power(-9))]),
    accumulation!(
        "2^8 - 2^8, + 2^-9 at k = 8",
        0.0,
        [(0, power(8)), (1, -power(8)), (8, power(-9))]
    ),
    accumulation!(
        "2^8 - 2^8, + 2^-9 at k = 16",
        0.0,
        [(0, power(8)), (1, -power(8)), (16, power(-9))]
    ),
    accumulation!("(1) + 2^-9", 1.0, [(0, power(-9))]),
    accumulation!("(2^4) + 2^-8", power(4), [(0, power(-8))]),
    accumulation!("(2^4) + 2^-9", power(4), [(0, power(-9))]),
    accumulation!("(2^5) + 2^-9", power(5), [(0, power(-9))]),
    accumulation!("(2^6) + 2^-9", power(6), [(0, power(-9))]),
    accumulation!("(-2^6) - 2^-9", -power(6), [(0, -power(-9))]),
    accumulation!("(1 + 2^-23) + 0", 1.0 + power(-23), []),
    accumulation!("(1 + 2^-23) + 1", 1.0 + power(-23), [(0, 1.0)]),
];

/// The accumulations as rows of `A * B + before`, with columns of ones in B, and their probes.
pub fn probes(
    accumulations: &[Accumulation],
    format: Format,
    k: usize,
    n: usize,
) -> (Operand, Operand, Want) {
    let row = |accumulation: &Accumulation| {
        let mut row = vec![0.0; k];
        accumulation.products.iter().for_each(|&(at, value)| row[at] = value);
        row
    };
    let a = Operand::from_values(format, accumulations.iter().map(row));
    let b = Operand::from_values(format, (0..n).map(|_| vec![1.0; k]));
    let before: Vec<f64> = accumulations.iter().map(|one| one.before).collect();
    let one_column = Operand { codes: vec![b.codes[0].clone()], ..b };
    let elements = elements(&a, &one_column, &before, Step { k, in_f16: false });
    let probe = |(one, element): (&Accumulation, Element)| Probe {
        label: one.label,
        exact: element.exact,
        bound: element.bound(),
    };
    let want = Want::Probes(accumulations.iter().zip(elements).map(probe).collect());
    (a, b, want)
}
