//! Linear layers: of weights of every kind, by every kernel and by the layer's own choice.

mod choices;
mod layers;
mod recorded;
mod small;
mod tiles;
pub mod weights;

use crate::harness::*;
use cuda_std::launch::{DevicePtr, Launch};
use gpu_types::Activation;
use kernels::Rows;
use kernels::element::NarrowedFrom;
use kernels::gemm::config::TileConfig;
use kernels::gemm::kernels::small_m::gemm_16_small_m::Instance;
use kernels::gemm::kernels::{sm80, sm90};
use kernels::gemm::layer::{self, Layer, Part};
use kernels::gemm::quantised::BlockFormat;
use kernels::gemm::{
    Accumulate, Fp8Accumulate, Gemv16, Gpu, Input16, Linear16, Linear16Operands, LinearFp8,
    LinearFp8Operands, Out16, SmallM16, SumOrder, Summation, Swapped16, WeightScales,
};
use kernels::tile::element::Operand16;
use oracle::{Accumulator, Approx, Element, Linear, Matrix, rms_norm};
use weights::Codes;

/// Added to the mean of squares, which is 1/3: a scale without it is a third too large.
pub const EPS: f32 = 0.25;

/// A gate.
pub const SILU: Option<Activation> = Some(Activation::Silu);

/// An element of operands.
pub trait Half: Operand16 + HostElement + NarrowedFrom<f32> {}

impl<E: Operand16 + HostElement + NarrowedFrom<f32>> Half for E {}

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

/// How the weight is stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Weight {
    /// Rows of the operands' type.
    Dense,
    /// Rows in E4M3, with scales of rows or of blocks.
    E4m3 { in_blocks: bool },
    /// Tiles of a format.
    Tiles(BlockFormat),
}

/// A linear layer in a launch for more rows.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Rows of x, and of the launch.
    pub rows: [usize; 2],
    pub n: usize,
    pub k: usize,
    /// Row strides of x and the weight, less their widths; a multiple of 8, of 16 in E4M3. A
    /// [`Kernel::Layer`] has no gaps in the weight.
    pub pad: usize,
    /// The same of outputs and residual.
    pub out_pad: usize,
    pub bias: bool,
    /// Whether x is in f32 and normed.
    pub normed: bool,
    pub gate: Option<Activation>,
    pub out: Out,
    pub weight: Weight,
    /// What elements of a dense weight, from -1 to 1, and factors of blocks are multiplied by.
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
    /// The same of rows in E4M3.
    Fp8(Fp8Accumulate, &'static TileConfig, usize),
    Swapped(usize),
    /// Small batches, with weights by TMA.
    Streamed(usize),
    /// Small batches without TMA.
    SmallM(usize),
    /// An instance of that.
    Instance(Instance),
    Gemv,
    /// The launches that the host makes.
    Layer(SumOrder, Gpu),
}

/// The values of a case; rows are the same for every count of them.
#[derive(Clone)]
pub struct Operands {
    pub x: Matrix,
    /// The rows of x, if they are in E4M3.
    pub x_codes: Codes,
    pub norm_weight: Vec<f32>,
    pub weight: Matrix,
    /// The weight as it is stored, if that is not dense.
    pub codes: Codes,
    pub bias: Vec<f32>,
    pub residual: Matrix,
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
        weight: Weight::Dense,
        magnitude: 1.0,
        kernel: Kernel::Gemv,
    };

    pub fn weight_rows(&self) -> usize {
        if self.gate.is_some() { 2 * self.n } else { self.n }
    }

    pub fn operands<E: Element>(&self) -> Operands {
        let &Case { rows: [rows, _], n, k, magnitude, .. } = self;
        let shape = [self.weight_rows(), k];
        let (weight, codes) = match self.weight {
            Weight::Dense => {
                let mut weight = Matrix::random::<f32>(shape[0], k, 2);
                let scaled = |w: &mut f64| *w = E::rounded(magnitude * *w as f32).into();
                weight.values.iter_mut().for_each(scaled);
                (weight, Codes::default())
            }
            Weight::E4m3 { in_blocks } => weights::e4m3(shape, in_blocks, 2),
            Weight::Tiles(format) => weights::tiles(format, shape, |factor| magnitude * factor),
        };
        let (x, x_codes) = match self.kernel {
            Kernel::Fp8(..) => weights::e4m3([rows, k], false, 1),
            _ if self.normed => (Matrix::random::<f32>(rows, k, 1), Codes::default()),
            _ => (Matrix::random::<E>(rows, k, 1), Codes::default()),
        };
        Operands {
            x,
            x_codes,
            norm_weight: random(k, 3).into_iter().map(|x| 1.0 + x / 2.0).collect(),
            weight,
            codes,
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

    /// The largest relative error of a product.
    fn product_rounding<E: Element>(&self) -> f64 {
        // A norm in f32 can round to another number; GEMV rounds nothing before the store.
        let is_rounded = self.normed && !matches!(self.kernel, Kernel::Gemv);
        let of_norm = if is_rounded { E::ROUNDING } else { 0.0 };
        let is_copied = match self.kernel {
            Kernel::Layer(order, _) => order != SumOrder::Fastest || self.rows[1] > 16,
            _ => false,
        };
        match self.weight {
            Weight::Dense => of_norm / 4.0,
            // Elements are rounded to f16.
            _ if is_copied => E::ROUNDING,
            Weight::E4m3 { .. } => of_norm / 2.0 + 1e-6,
            Weight::Tiles(_) => of_norm / 2.0 + 4e-6,
        }
    }

    /// The outputs `[rows, n]`.
    pub fn oracle<E: Element>(&self, operands: &Operands) -> Vec<Approx> {
        let Operands { norm_weight, weight, bias, residual, .. } = operands;
        let is_rounded = !matches!(self.kernel, Kernel::Gemv);
        let normed = self.normed.then(|| normed::<E>(&operands.x, norm_weight, is_rounded));
        let has_residual = matches!(self.out, Out::Residual | Out::InPlace);
        let linear = Linear {
            x: normed.as_ref().unwrap_or(&operands.x),
            weight,
            bias: self.bias.then_some(bias),
            residual: has_residual.then_some(residual),
            accumulator: self.accumulator(),
            product_rounding: self.product_rounding::<E>(),
        };
        let outputs = linear.gated_outputs::<E>(self.gate);
        if self.out == Out::Half { stored::<E>(outputs) } else { outputs }
    }

    /// The layer as the host has it.
    pub fn layer<E: HostElement>(&self, order: SumOrder) -> Layer {
        let &Case { rows: [_, max_rows], n, k, gate, .. } = self;
        let weight = match self.weight {
            Weight::Dense => layer::Weight::Dense,
            Weight::E4m3 { in_blocks } => layer::Weight::E4m3 { in_blocks, rounds_rows: false },
            Weight::Tiles(format) => {
                let part = Part { rows: n, format: Some(format) };
                layer::Weight::Tiles(vec![part; self.weight_rows() / n.max(1)])
            }
        };
        let input = if self.normed { layer::Input::Normed } else { layer::Input::Stored };
        let summation = Summation { order, ..Summation::default() };
        Layer { max_rows, n, k, operand: E::DTYPE, input, weight, gate, summation }
    }

    /// The operands in memory; the scales of rows in E4M3 are the workspace.
    fn memory<E: HostElement>(&self, device: &mut Device, operands: &Operands) -> layer::Operands {
        let &Case { rows: [num_rows, max_rows], n, k, pad, out_pad, normed, .. } = self;
        let num_rows_ptr = device.u32s("num_rows", &[num_rows as u32]);
        let mut x = operands.x.first(num_rows);
        // TMA loads whole boxes: rows past the last one are NaN.
        let is_dense = self.weight == Weight::Dense;
        let by_tma =
            matches!(self.kernel, Kernel::Sm90(..) | Kernel::Swapped(_) | Kernel::Layer(..));
        if by_tma && is_dense {
            x.rows = max_rows;
            x.values.resize(max_rows * k, f64::NAN);
        }
        let x = match self.kernel {
            Kernel::Fp8(..) => operands.x_codes.rows(device, "x", k, (k + pad, max_rows)),
            _ if normed => device.matrix::<f32>("x", &x, (k + 4, max_rows)).cast(),
            _ => device.matrix::<E>("x", &x, (k + pad, max_rows)).cast(),
        };
        let (stride, workspace) = match self.kernel {
            Kernel::Layer(order, _) => {
                let bytes = self.layer::<E>(order).workspace_bytes();
                (k, device.poisoned::<u8>("workspace", bytes).0)
            }
            Kernel::Fp8(..) => {
                let mut scales = operands.x_codes.scales.clone();
                scales.resize(max_rows, f32::NAN);
                (k + pad, device.f32s("x_scales", &scales).0)
            }
            _ => (k + pad, 0),
        };
        let at = (stride, self.weight_rows());
        let weight: Rows<()> = match self.weight {
            Weight::Dense => device.matrix::<E>("weight", &operands.weight, at).cast(),
            Weight::E4m3 { .. } => operands.codes.rows(device, "weight", k, at),
            Weight::Tiles(format) => {
                let parts = operands.codes.bytes.chunks(operands.codes.bytes.len() / at.1 * n);
                let packed = parts.flat_map(|part| weights::pack(format, [n, k], part));
                Rows::new(device.bytes("weight", &packed.collect::<Vec<_>>()), 0)
            }
        };
        let stride = n + out_pad;
        // One more than that of the output, so that at most one of them is even.
        let residual_stride = if self.out == Out::Residual { stride + 1 } else { stride };
        let residual: Option<Rows<f32>> =
            matches!(self.out, Out::Residual | Out::InPlace).then(|| {
                let rows = operands.residual.first(num_rows);
                device.matrix("residual", &rows, (residual_stride, max_rows))
            });
        let out = match (self.out, residual) {
            (Out::Half, _) => device.out::<E>("out", (stride, max_rows)).cast(),
            (Out::InPlace, Some(residual)) => residual.cast(),
            _ => device.out::<f32>("out", (stride, max_rows)).cast(),
        };
        layer::Operands {
            num_rows: num_rows_ptr,
            x,
            norm: normed.then(|| (device.f32s("norm weight", &operands.norm_weight), EPS)),
            gate: None,
            weight: weight.ptr.0,
            scales: device.f32s("scales", &operands.codes.scales),
            bias: self.bias.then(|| device.f32s("bias", &operands.bias)),
            residual,
            out,
            out_is_f32: self.out != Out::Half,
            workspace,
        }
    }

    /// The last kernel's symbol and the outputs, of what `launches` gives.
    #[track_caller]
    pub fn run_by<E: HostElement>(
        &self,
        operands: &Operands,
        seed: u64,
        launches: impl FnOnce(&layer::Operands) -> Vec<Launch>,
    ) -> (&'static str, Vec<f32>) {
        let mut device = Device::default();
        let at = self.memory::<E>(&mut device, operands);
        let mut symbol = "";
        for launch in launches(&at) {
            symbol = launch.symbol;
            let conflicts = device.run_next(launch, seed).bank_conflicts;
            let is_smooth = !matches!(self.weight, Weight::Tiles(_)) && !symbol.contains("_sm90");
            assert!(conflicts == 0 || !is_smooth, "{symbol}: {conflicts} bank conflicts");
        }
        let got = match at.out_is_f32 {
            true => device.read_rows::<f32>(at.out.cast(), self.rows, self.n),
            false => device.read_rows::<E>(at.out.cast(), self.rows, self.n),
        };
        (symbol, got)
    }

    /// The launches that the host makes in f32.
    pub fn run_f32(&self, operands: &Operands, seed: u64) -> (&'static str, Vec<f32>) {
        let Kernel::Layer(order, gpu) = self.kernel else { panic!("not a layer") };
        let layer = self.layer::<f32>(order);
        self.run_by::<f32>(operands, seed, |at| layer.launches(gpu, at, &mut tensor_map).unwrap())
    }

    /// The last kernel's symbol and the outputs.
    #[track_caller]
    pub fn run<E: Half>(&self, operands: &Operands, seed: u64) -> (&'static str, Vec<f32>) {
        self.run_by::<E>(operands, seed, |at| match self.kernel {
            Kernel::Layer(order, gpu) => {
                let launches = self.layer::<E>(order).launches(gpu, at, &mut tensor_map);
                launches.expect("a right shape")
            }
            _ => vec![made(self.launch::<E>(at, seed))],
        })
    }

    /// The launch of the case's kernel.
    fn launch<E: Half>(&self, at: &layer::Operands, seed: u64) -> Launched {
        let &Case { rows: [_, max_rows], n, k, pad, gate, .. } = self;
        let &layer::Operands { num_rows, bias, residual, .. } = at;
        let x = match at.norm {
            Some((weight, eps)) => Input16::Normed { x: at.x.cast(), weight, eps },
            None => Input16::Half(at.x.cast()),
        };
        let out = match at.out_is_f32 {
            true => Out16::F32(at.out.cast()),
            false => Out16::Half(at.out.cast()),
        };
        let weight = Rows::<E>::new(DevicePtr::new(at.weight), k + pad);
        let operands = &Linear16Operands { x, weight, bias, residual, out };
        let linear = Linear16 { gate, ..Linear16::new(max_rows, n, k) };
        // Where launches overlap, loads of weights are issued before those of x.
        let hopper = |num_sms| Gpu { num_sms, overlaps: seed.is_multiple_of(2), ..Gpu::HOPPER };
        let maps = &mut tensor_map;
        match self.kernel {
            Kernel::Sm80(tile) => sm80::launch(tile, &linear, num_rows, operands),
            Kernel::Sm90(tile, sms) => sm90::launch(tile, &linear, sms, num_rows, operands, maps),
            Kernel::Fp8(accumulate, tile, num_sms) => {
                let weight_scales = match self.weight {
                    Weight::E4m3 { in_blocks: true } => WeightScales::Blocks(at.scales),
                    _ => WeightScales::Rows(at.scales),
                };
                let (x, weight) = (at.x.cast(), weight.cast());
                let x_scales = DevicePtr::new(at.workspace);
                let operands =
                    LinearFp8Operands { x, x_scales, weight, weight_scales, bias, residual, out };
                let linear = LinearFp8 { max_rows, n, k, accumulate };
                linear.launch_in(tile, num_sms, num_rows, &operands, maps)
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
            Kernel::Layer(..) => unreachable!("several launches"),
        }
    }

    /// Compares the outputs of a kernel with the oracle.
    #[track_caller]
    pub fn compare<E: Element>(&self, operands: &Operands, symbol: &str, got: &[f32]) {
        let want = self.oracle::<E>(operands);
        let case = format!("{symbol} of {self:?}");
        assert_right(&case, got, &want);
        if self.gate.is_none() {
            assert_telling(&case, &want);
        }
    }

    /// Compares the outputs with the oracle, and returns them.
    #[track_caller]
    pub fn check_with<E: Half>(&self, operands: &Operands, seed: u64) -> Vec<f32> {
        let (symbol, got) = self.run::<E>(operands, seed);
        self.compare::<E>(operands, &format!("{symbol}, seed {seed},"), &got);
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
