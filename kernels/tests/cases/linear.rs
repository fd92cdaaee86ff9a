//! Linear layers: of 16-bit operands, by every kernel; in f32, of weights in E4M3 and in blocks.

mod blocks;
mod choices;
mod e4m3;
mod quantised;
mod recorded;
mod small;
mod tiles;

use crate::harness::*;
use cuda_std::launch::DevicePtr;
use gpu_types::Activation;
use kernels::Rows;
use kernels::element::NarrowedFrom;
use kernels::gemm::config::TileConfig;
use kernels::gemm::kernels::small_m::gemm_16_small_m::Instance;
use kernels::gemm::kernels::{sm80, sm90};
use kernels::gemm::{
    Accumulate, Gemv16, Gpu, Input16, Linear16, Linear16Operands, Out16, SmallM16, Swapped16,
};
use kernels::tile::element::Operand16;
use oracle::{Accumulator, Approx, Element, Linear, Matrix, rms_norm};

/// Added to the mean of squares, which is 1/3: a scale without it is a third too large.
pub const EPS: f32 = 0.25;

/// A gate.
pub const SILU: Option<Activation> = Some(Activation::Silu);

/// An element of operands.
pub trait Half: Operand16 + Stored + NarrowedFrom<f32> {}

impl<E: Operand16 + Stored + NarrowedFrom<f32>> Half for E {}

/// What the outputs are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Out {
    Half,
    F32,
    /// f32 with a residual.
    Residual,
    /// f32 that overwrites the residual.
    InPlace,
}

/// A linear layer in a launch for more rows.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Rows of x, and of the launch.
    pub rows: [usize; 2],
    pub n: usize,
    pub k: usize,
    /// Row strides of the operands, less their widths; a multiple of 8.
    pub pad: usize,
    /// The same of outputs and residual.
    pub out_pad: usize,
    pub bias: bool,
    /// Whether x is in f32 and normed.
    pub normed: bool,
    pub gate: Option<Activation>,
    pub out: Out,
    /// What the weight's elements, from -1 to 1, are multiplied by.
    pub magnitude: f32,
    pub kernel: Kernel,
}

/// The kernel of a case; numbers are those of SMs.
#[derive(Clone, Copy, Debug)]
pub enum Kernel {
    /// A tile by `mma.sync`.
    Sm80(&'static TileConfig),
    /// A tile by `wgmma`.
    Sm90(&'static TileConfig, usize),
    Swapped(usize),
    /// Small batches, with weights by TMA.
    Streamed(usize),
    /// Small batches without TMA.
    SmallM(usize),
    /// An instance of that.
    Instance(Instance),
    Gemv,
    /// The launcher's choice.
    Chosen(Gpu),
}

/// The values of a case; rows are the same for every count of them.
pub struct Operands {
    pub x: Matrix,
    pub norm_weight: Vec<f32>,
    pub weight: Matrix,
    pub bias: Vec<f32>,
    pub residual: Matrix,
}

/// What an epilogue reads and writes.
pub struct Terms<E> {
    pub bias: Option<DevicePtr<f32>>,
    pub residual: Option<Rows<f32>>,
    pub out: Out16<E>,
}

impl<E: Element> Terms<E> {
    /// Terms of a layer with such outputs `[rows, n]` at a stride.
    pub fn new(
        device: &mut Device,
        out: Out,
        (rows, stride): ([usize; 2], usize),
        bias: Option<&[f32]>,
        residual: &Matrix,
    ) -> Self {
        // One more than that of the output, so that at most one of them is even.
        let residual_stride = if out == Out::Residual { stride + 1 } else { stride };
        let residual = matches!(out, Out::Residual | Out::InPlace).then(|| {
            device.matrix("residual", &residual.first(rows[0]), (residual_stride, rows[1]))
        });
        let out = match (out, residual) {
            (Out::Half, _) => Out16::Half(device.out("out", (stride, rows[1]))),
            (Out::InPlace, Some(residual)) => Out16::F32(residual),
            _ => Out16::F32(device.out("out", (stride, rows[1]))),
        };
        Terms { bias: bias.map(|bias| device.f32s("bias", bias)), residual, out }
    }

    /// The outputs; nothing else is written.
    #[track_caller]
    pub fn read(&self, device: &Device, rows: [usize; 2], n: usize) -> Vec<f32> {
        match self.out {
            Out16::F32(out) => device.read_rows(out, rows, n),
            Out16::Half(out) => device.read_rows(out, rows, n),
        }
    }
}

/// The rows of `x`, normed and rounded.
pub fn normed<E: Element>(x: &Matrix, weight: &[f32], is_rounded: bool) -> Matrix {
    let row = |row: usize| {
        let row: Vec<f32> = x.row(row).iter().map(|&x| x as f32).collect();
        let value = |x: Approx| {
            if is_rounded { E::rounded(x.value as f32).into() } else { x.value }
        };
        rms_norm(&row, weight, EPS).into_iter().map(value)
    };
    Matrix { values: (0..x.rows).flat_map(row).collect(), ..*x }
}

impl Case {
    /// A layer of one row with bias, residual and padded strides.
    pub const ONE_ROW: Case = Case {
        rows: [1, 1],
        n: 17,
        k: 104,
        pad: 8,
        out_pad: 3,
        bias: true,
        normed: false,
        gate: None,
        out: Out::InPlace,
        magnitude: 1.0,
        kernel: Kernel::Gemv,
    };

    pub fn weight_rows(&self) -> usize {
        if self.gate.is_some() { 2 * self.n } else { self.n }
    }

    pub fn operands<E: Half>(&self) -> Operands {
        let &Case { rows: [rows, _], n, k, .. } = self;
        let mut weight = Matrix::random::<f32>(self.weight_rows(), k, 2);
        let scaled = |w: &mut f64| *w = E::rounded(self.magnitude * *w as f32).into();
        weight.values.iter_mut().for_each(scaled);
        Operands {
            x: if self.normed {
                Matrix::random::<f32>(rows, k, 1)
            } else {
                Matrix::random::<E>(rows, k, 1)
            },
            norm_weight: random(k, 3).into_iter().map(|x| 1.0 + x / 2.0).collect(),
            weight,
            bias: random(self.weight_rows(), 4),
            residual: Matrix::random::<f32>(rows, n, 5),
        }
    }

    fn accumulator(&self) -> Accumulator {
        let is_f16 = |tile: &TileConfig| tile.accumulate == Accumulate::F16;
        match self.kernel {
            Kernel::Sm80(tile) | Kernel::Sm90(tile, _) if is_f16(tile) => Accumulator::F16,
            _ => Accumulator::F32,
        }
    }

    /// The outputs `[rows, n]`.
    pub fn oracle<E: Half>(&self, operands: &Operands) -> Vec<Approx> {
        let Operands { norm_weight, weight, bias, residual, .. } = operands;
        // GEMV rounds nothing before the store; a norm in f32 can round to another number.
        let is_rounded = !matches!(self.kernel, Kernel::Gemv);
        let normed = self.normed.then(|| normed::<E>(&operands.x, norm_weight, is_rounded));
        let has_residual = matches!(self.out, Out::Residual | Out::InPlace);
        let linear = Linear {
            x: normed.as_ref().unwrap_or(&operands.x),
            weight,
            bias: self.bias.then_some(bias),
            residual: has_residual.then_some(residual),
            accumulator: self.accumulator(),
            product_rounding: if self.normed && is_rounded { E::ROUNDING / 4.0 } else { 0.0 },
        };
        let outputs = linear.gated_outputs::<E>(self.gate);
        if self.out == Out::Half { stored::<E>(outputs) } else { outputs }
    }

    /// The kernel's symbol and the outputs.
    #[track_caller]
    pub fn run<E: Half>(&self, operands: &Operands, seed: u64) -> (&'static str, Vec<f32>) {
        let &Case { rows: [num_rows, max_rows], n, k, pad, out_pad, .. } = self;
        let mut device = Device::default();
        let num_rows_ptr = device.u32s("num_rows", &[num_rows as u32]);
        // TMA loads whole boxes: rows past the last one are NaN.
        let by_tma =
            matches!(self.kernel, Kernel::Sm90(..) | Kernel::Swapped(_) | Kernel::Chosen(_));
        let mut x = operands.x.first(num_rows);
        if by_tma {
            x.rows = max_rows;
            x.values.resize(max_rows * k, f64::NAN);
        }
        let x = if self.normed {
            let x = device.matrix("x", &x, (k + 4, max_rows));
            Input16::Normed {
                x,
                weight: device.f32s("norm weight", &operands.norm_weight),
                eps: EPS,
            }
        } else {
            Input16::Half(device.matrix::<E>("x", &x, (k + pad, max_rows)))
        };
        let weight = device.matrix("weight", &operands.weight, (k + pad, self.weight_rows()));
        let bias = self.bias.then_some(&operands.bias[..]);
        let (residual, at) = (&operands.residual, (self.rows, n + out_pad));
        let terms = Terms::new(&mut device, self.out, at, bias, residual);
        let Terms { bias, residual, out } = terms;
        let operands = Linear16Operands { x, weight, bias, residual, out };
        let launch = self.launch(num_rows_ptr, &operands, seed);
        let symbol = match self.kernel {
            Kernel::Sm90(..) | Kernel::Chosen(_) => {
                let launch = made(launch);
                let symbol = symbol(&launch);
                device.run(Ok(Some(launch)), seed);
                symbol
            }
            _ => device.run_smoothly(launch, seed),
        };
        (symbol, terms.read(&device, self.rows, n))
    }

    fn launch<E: Half>(
        &self,
        num_rows: DevicePtr<u32>,
        operands: &Linear16Operands<E>,
        seed: u64,
    ) -> Launched {
        let &Case { rows: [_, max_rows], n, k, gate, .. } = self;
        let linear = Linear16 { gate, ..Linear16::new(max_rows, n, k) };
        // Where launches overlap, loads of weights are issued before those of x.
        let hopper = |num_sms| Gpu { num_sms, overlaps: seed.is_multiple_of(2), ..Gpu::HOPPER };
        let maps = &mut tensor_map;
        match self.kernel {
            Kernel::Sm80(tile) => sm80::launch(tile, &linear, num_rows, operands),
            Kernel::Sm90(tile, num_sms) => {
                sm90::launch(tile, &linear, num_sms, num_rows, operands, maps)
            }
            Kernel::Swapped(sms) => Swapped16(linear).launch(hopper(sms), num_rows, operands, maps),
            Kernel::Streamed(sms) => {
                SmallM16(linear).launch_streamed(hopper(sms), num_rows, operands, maps)
            }
            Kernel::SmallM(num_sms) => {
                let no_maps = &mut |_: &_| unreachable!();
                SmallM16(linear).launch(Gpu { num_sms, ..A100 }, num_rows, operands, no_maps)
            }
            Kernel::Instance(instance) => {
                SmallM16(linear).launch_instance(instance, num_rows, operands)
            }
            Kernel::Gemv => Gemv16(linear).launch(num_rows, operands),
            Kernel::Chosen(gpu) => linear.launch(gpu, num_rows, operands, maps),
        }
    }

    /// Compares the outputs with the oracle, and returns them.
    #[track_caller]
    pub fn check_with<E: Half>(&self, operands: &Operands, seed: u64) -> Vec<f32> {
        let (symbol, got) = self.run::<E>(operands, seed);
        let want = self.oracle::<E>(operands);
        let case = format!("{symbol}, seed {seed}, of {self:?}");
        assert_right(&case, &got, &want);
        if self.gate.is_none() {
            assert_telling(&case, &want);
        }
        got
    }

    #[track_caller]
    pub fn check<E: Half>(&self, seed: u64) -> Vec<f32> {
        self.check_with::<E>(&self.operands::<E>(), seed)
    }

    /// Under all seeds the same bits, which are right.
    #[track_caller]
    pub fn check_order<E: Half>(&self) {
        let operands = self.operands::<E>();
        assert_same_bits(&format!("{self:?}"), |seed| self.check_with::<E>(&operands, seed));
    }
}
