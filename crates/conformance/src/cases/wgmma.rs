//! Warpgroup MMAs: every width, layout and element type.

use conformance_kernels::wgmma::{M, wgmma_registers, wgmma_shared};
use cuda_std::launch::Geometry;
use cuda_std::wgmma::Swizzle;

use crate::inputs::{random_words, words_of_bytes};
use crate::mma_reference::{
    self, Accumulation, Draw, Operand, PROBES_OF_8_BITS, PROBES_OF_16_BITS, Step,
};
use crate::numbers::{BF16, E4M3, E5M2, F16, Format};
use crate::operands::{OperandLayout, fragments};
use crate::{Buffer, Case, Want};

const SWIZZLES: [Swizzle; 4] = [Swizzle::None, Swizzle::B32, Swizzle::B64, Swizzle::B128];

/// All cases.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for &instance in wgmma_shared::Instance::ALL {
        let symbol = instance.symbol();
        let n = columns(symbol, instance.regs());
        let product = Product::random(symbol, n);
        let Some((a_mn, b_mn)) = majors(symbol) else {
            let operand_layouts =
                [Swizzle::B128; 2].map(|swizzle| OperandLayout { mn_major: false, swizzle });
            cases.push(product(symbol.to_owned(), operand_layouts, Draw::Whole).shared(instance));
            if n == 128 {
                cases.push(
                    product(format!("{symbol}_any"), operand_layouts, Draw::Any).shared(instance),
                );
                cases.extend(layouts(symbol, (false, false), |name, operand_layouts| {
                    product(name, operand_layouts, Draw::Whole).shared(instance)
                }));
            }
            continue;
        };
        cases.extend(layouts(symbol, (a_mn, b_mn), |name, operand_layouts| {
            product(name, operand_layouts, Draw::Whole).shared(instance)
        }));
    }
    for &instance in wgmma_registers::Instance::ALL {
        let symbol = instance.symbol();
        let product = Product::random(symbol, columns(symbol, instance.regs()));
        let mn_major = symbol.ends_with("_mn");
        let is_width = symbol.contains("_n");
        for swizzle in SWIZZLES {
            if !is_width || swizzle == Swizzle::B128 {
                let name = format!("{symbol}_{}", label(swizzle));
                let operand_layouts = [OperandLayout { mn_major, swizzle }; 2];
                cases.push(product(name, operand_layouts, Draw::Whole).registers(instance));
            }
        }
    }
    cases.extend(probes());
    cases
}

/// Which operands of an instance are MN-major, by its name.
fn majors(symbol: &str) -> Option<(bool, bool)> {
    let majors = [("_k_mn", (false, true)), ("_mn_k", (true, false)), ("_mn_mn", (true, true))];
    majors.into_iter().find(|(suffix, _)| symbol.ends_with(suffix)).map(|(_, majors)| majors)
}

/// Every swizzle of B, with the same and with the next swizzle of A.
fn layouts(
    symbol: &str,
    (a_mn, b_mn): (bool, bool),
    case: impl Fn(String, [OperandLayout; 2]) -> Case,
) -> Vec<Case> {
    let pairs = (0..4).flat_map(|i| [(i, i), ((i + 1) % 4, i)]);
    let of_pair = |(a, b): (usize, usize)| {
        let (a, b) = (SWIZZLES[a], SWIZZLES[b]);
        let name = format!("{symbol}_{}_{}", label(a), label(b));
        case(
            name,
            [
                OperandLayout { mn_major: a_mn, swizzle: a },
                OperandLayout { mn_major: b_mn, swizzle: b },
            ],
        )
    };
    pairs.map(of_pair).collect()
}

fn label(swizzle: Swizzle) -> &'static str {
    match swizzle {
        Swizzle::None => "none",
        Swizzle::B32 => "b32",
        Swizzle::B64 => "b64",
        Swizzle::B128 => "b128",
    }
}

/// The element type and its size in bytes.
fn elements(symbol: &str) -> (Format, usize) {
    let types = [("_bf16", BF16, 2), ("_f16", F16, 2), ("_e4m3", E4M3, 1), ("_e5m2", E5M2, 1)];
    let (_, format, size) = types
        .into_iter()
        .find(|(name, ..)| symbol.contains(name))
        .expect("a symbol names its elements");
    (format, size)
}

/// Whether the accumulator is f16, two values per register.
fn accumulates_in_f16(symbol: &str) -> bool {
    symbol.contains("_in_f16")
}

/// Columns of an accumulator with this number of registers.
fn columns(symbol: &str, registers: usize) -> usize {
    if accumulates_in_f16(symbol) { 4 * registers } else { 2 * registers }
}

/// A matrix product to launch.
struct Product {
    name: String,
    a: Operand,
    b: Operand,
    operand_layouts: [OperandLayout; 2],
    /// The initial accumulator, row by row.
    before: Vec<f64>,
    accumulate: bool,
    want: Want,
    num_rows: u32,
    num_columns: u32,
}

impl Product {
    /// A product of random operands with `n` columns.
    fn random(
        symbol: &'static str,
        n: usize,
    ) -> impl Fn(String, [OperandLayout; 2], Draw) -> Product {
        move |name, operand_layouts, draw| {
            let (format, size) = elements(symbol);
            let num_steps = operand_layouts
                .map(OperandLayout::num_steps)
                .into_iter()
                .min()
                .expect("two operands");
            let k = num_steps * 32 / size;
            let a = Operand::random(format, (M as usize, k), draw, 80 + n as u64);
            let b = Operand::random(format, (n, k), draw, 81 + n as u64);
            // Without it the first MMA starts from zero and ignores the accumulator.
            let accumulate = n.is_multiple_of(32);
            let whole = random_words(82).map(|word| f64::from(word % 64) - 32.0);
            let before: Vec<f64> = whole.take(M as usize * n).collect();
            let zeros = vec![0.0; before.len()];
            let start = if accumulate { &before } else { &zeros };
            let step = Step { k: 32 / size, in_f16: accumulates_in_f16(symbol) };
            let want = mma_reference::want(&mma_reference::elements(&a, &b, start, step), draw);
            let (num_rows, num_columns) = (M, n as u32);
            Product { name, a, b, operand_layouts, before, accumulate, want, num_rows, num_columns }
        }
    }

    fn n(&self) -> usize {
        self.b.codes.len()
    }

    fn k(&self) -> usize {
        self.a.codes[0].len()
    }

    fn size(&self) -> usize {
        self.a.format.bits() as usize / 8
    }

    fn num_steps(&self) -> u32 {
        (self.k() * self.size() / 32) as u32
    }

    fn before(&self) -> Buffer {
        let words: Vec<u32> = self.before.iter().map(|&x| (x as f32).to_bits()).collect();
        Buffer::words(&words)
    }

    /// Both operands in shared memory.
    fn shared(self, instance: wgmma_shared::Instance) -> Case {
        let (n, k, size, num_steps) = (self.n(), self.k(), self.size(), self.num_steps());
        let [a, b] = self.operand_layouts;
        let mut image = Vec::new();
        a.write(&self.a, size, 0, &mut image);
        let b_start = image.len().next_multiple_of(1024);
        b.write(&self.b, size, b_start, &mut image);
        let (image, geometry) = in_shared_memory(image);
        let (a_layout, b_layout) = (a.layout(M as usize, k).pack(), b.layout(n, k).pack());
        let (num_words, accumulate) = (image.len() as u32, u32::from(self.accumulate));
        let (num_rows, num_columns) = (self.num_rows, self.num_columns);
        let buffers = vec![Buffer::words(&image), self.before(), Buffer::Out(self.want)];
        Case::new(self.name, buffers, move |p| {
            let (image, before, out, b_start) = (p.at(0), p.at(1), p.at(2), b_start as u32);
            wgmma_shared::Args {
                num_steps,
                num_rows,
                num_columns,
                accumulate,
                a_layout,
                b_layout,
                b_start,
                num_words,
                image,
                before,
                out,
            }
            .launch(instance, geometry)
        })
    }

    /// A in registers.
    fn registers(self, instance: wgmma_registers::Instance) -> Case {
        let (n, k, size, num_steps) = (self.n(), self.k(), self.size(), self.num_steps());
        let [_, b] = self.operand_layouts;
        let mut image = Vec::new();
        b.write(&self.b, size, 0, &mut image);
        let (image, geometry) = in_shared_memory(image);
        let b_layout = b.layout(n, k).pack();
        let (num_words, accumulate) = (image.len() as u32, u32::from(self.accumulate));
        let (num_rows, num_columns) = (self.num_rows, self.num_columns);
        let buffers = vec![
            Buffer::words(&image),
            Buffer::words(&fragments(&self.a, size)),
            self.before(),
            Buffer::Out(self.want),
        ];
        Case::new(self.name, buffers, move |p| {
            let (image, fragments, before, out) = (p.at(0), p.at(1), p.at(2), p.at(3));
            wgmma_registers::Args {
                num_steps,
                num_rows,
                num_columns,
                accumulate,
                b_layout,
                num_words,
                image,
                fragments,
                before,
                out,
            }
            .launch(instance, geometry)
        })
    }
}

/// The image's words, and a geometry with shared memory for it.
fn in_shared_memory(mut image: Vec<u8>) -> (Vec<u32>, Geometry) {
    image.resize(image.len().next_multiple_of(4), 0);
    let shared_bytes = image.len() as u32;
    (words_of_bytes(&image), Geometry { grid: [1; 3], block: [128, 1, 1], shared_bytes })
}

/// How the tensor cores accumulate, with both operands in shared memory.
fn probes() -> [Case; 2] {
    use wgmma_shared::Instance;
    let probe = |name: &str, instance: Instance, sums: &[Accumulation], k| {
        let (n, (format, _)) = (2 * instance.regs(), elements(instance.symbol()));
        let (mut a, b, want) = mma_reference::probes(sums, format, k, n);
        a.codes.resize(M as usize, vec![0; k]);
        let mut before: Vec<f64> = sums.iter().flat_map(|sum| vec![sum.before; n]).collect();
        before.resize(M as usize * n, 0.0);
        let operand_layouts = [OperandLayout { mn_major: false, swizzle: Swizzle::B32 }; 2];
        let (num_rows, num_columns, accumulate) = (sums.len() as u32, 1, true);
        let name = name.to_owned();
        Product { name, a, b, operand_layouts, before, accumulate, want, num_rows, num_columns }
            .shared(instance)
    };
    [
        probe("wgmma_probe_f16", Instance::wgmma_f16_n8, &PROBES_OF_16_BITS, 16),
        probe("wgmma_probe_e4m3", Instance::wgmma_e4m3_n8, &PROBES_OF_8_BITS, 32),
    ]
}
