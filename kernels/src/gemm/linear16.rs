//! Which kernel computes a linear layer of 16-bit operands, and its launch.
//!
//! Among the tiles of one target that do not split k the order in which an output is summed is one,
//! and [`SumOrder::Tiles`] asks for those: a row's outputs are the same whatever the number of rows
//! beside it. [`Swapped16`], for few rows of many columns, has that order too. [`SmallM16`] sums in an
//! order of its own, which the weight's shape decides, and [`SumOrder::FewRows`] asks for; with an
//! RMSNorm in front or a SwiGLU gate behind it has the bits of the operations one by one. Where no order
//! is asked for one row has a kernel of its own ([`Gemv16`]), which may have a norm and a gate too.

use super::f16_gemv::Gemv16;
use super::f16_sm80;
use super::f16_sm90::TileConfig;
use super::f16_sm90::swapped::Swapped16;
use super::f16_small_m::SmallM16;
use crate::Rows;
use crate::element::Dtype;
use crate::tile::element::Operand16;
use cuda_std::launch::{DevicePtr, Launch, LaunchError};
use cuda_std::tensor_map::{EncodedTensorMap, L2Promotion, Swizzle, TensorMapSpec};

/// The kernels that a device can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Compute capability 8.0 and newer.
    Sm80,
    /// Compute capability 9.0.
    Sm90a,
}

impl Target {
    /// Its name in PTX.
    pub const fn name(self) -> &'static str {
        match self {
            Target::Sm80 => "sm_80",
            Target::Sm90a => "sm_90a",
        }
    }
}

/// What a launch is to fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// The kernels that it can run.
    pub target: Target,
    /// Its multiprocessors.
    pub num_sms: usize,
    /// Whether kernels that overlap start before the launch in front of them has ended.
    pub overlaps: bool,
}

impl Gpu {
    /// An H100 or H200.
    pub const HOPPER: Gpu = Gpu { target: Target::Sm90a, num_sms: 132, overlaps: true };
}

/// Most rows of a layer with a norm in front or a gate behind.
pub const MAX_FUSED_ROWS: usize = 8;

/// What products are summed in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Accumulate {
    /// f32.
    #[default]
    F32,
    /// f16, of f16 operands, in half the registers: by tiles, a sum is rounded to 11 bits every 16
    /// products, and is infinite beyond 65504. GeForce GPUs multiply twice as fast so. The kernels
    /// for few rows wait for memory, and sum in f32 all the same.
    F16,
}

/// In whose order a linear layer is summed over k. Among the kernels of either the weight's shape
/// decides it, and the number of rows does not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SumOrder {
    /// That of the fastest kernel for so many rows.
    #[default]
    Fastest,
    /// That of the kernels for few rows.
    FewRows,
    /// That of tiles that do not split k.
    Tiles,
}

/// How the products of an output are summed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summation {
    /// What they are summed in.
    pub accumulate: Accumulate,
    /// In which order.
    pub order: SumOrder,
}

/// A linear layer of 16-bit operands.
#[derive(Clone, Copy, Debug)]
pub struct Linear16 {
    /// Upper bound of the rows.
    pub max_rows: usize,
    /// Columns of the output: rows of the weight, or half of them under a gate.
    pub n: usize,
    /// Columns of the input and of the weight.
    pub k: usize,
    /// How products are summed.
    pub summation: Summation,
    /// Whether the output is `silu(gate) * up`, as [`SiluMul`](crate::silu_mul::SiluMul) makes it
    /// of the outputs of a weight whose first `n` rows are gate's and whose last `n` are up's.
    pub gated: bool,
}

/// The operands of a linear layer, with memory for `max_rows` rows.
#[derive(Clone, Copy, Debug)]
pub struct Linear16Operands<E> {
    /// `[max_rows, k]`.
    pub x: Input16<E>,
    /// `[n, k]`; `[2 * n, k]` under a gate.
    pub weight: Rows<E>,
    /// `[n]`; `[2 * n]` under a gate.
    pub bias: Option<DevicePtr<f32>>,
    /// `[max_rows, n]`, of f32 outputs alone.
    pub residual: Option<Rows<f32>>,
    /// `[max_rows, n]`; of 16 bits under a gate.
    pub out: Out16<E>,
}

/// Inputs of a linear layer.
#[derive(Clone, Copy, Debug)]
pub enum Input16<E> {
    /// As they are.
    Half(Rows<E>),
    /// Behind an RMSNorm, as [`RmsNorm`](crate::rms_norm::RmsNorm) stores them rounded to the
    /// operands' type; [`Gemv16`] does not round them.
    Normed {
        /// What is normed.
        x: Rows<f32>,
        /// `[k]`.
        weight: DevicePtr<f32>,
        /// Added to the mean of squares.
        eps: f32,
    },
}

/// Outputs of a linear layer.
#[derive(Clone, Copy, Debug)]
pub enum Out16<E> {
    /// Rounded to the operands' type.
    Half(Rows<E>),
    /// As they are summed; may be the residual.
    F32(Rows<f32>),
}

/// Columns from which on operands are swapped whatever the rows, and rows of fewer columns that are
/// streamed. On an H200, in us, streamed and swapped (of 32 rows, and of 151936 columns, on another card):
///
/// | n, k | 8 rows | | 16 | | 32 | |
/// | --- | --- | --- | --- | --- | --- | --- |
/// | 9728, 896 | (6.2) | 6.1 | 6.5 | (6.3) | 8.1 | (6.7) |
/// | 9216, 3072 | (14.4) | 14.9 | 14.8 | (15.0) | 16.3 | (14.9) |
/// | 16384, 3072 | 23.9 | (24.0) | 25.2 | (24.3) | 26.2 | (23.7) |
/// | 12288, 4096 | 24.8 | (24.1) | 25.2 | (24.4) | 26.8 | (24.2) |
/// | 22016, 4096 | 42.3 | (42.0) | 43.7 | (42.5) | 45.4 | (41.5) |
/// | 32064, 3072 | 45.6 | (45.3) | 46.3 | (45.5) | | (44.3) |
/// | 32000, 4096 | 60.7 | (61.3) | 63.2 | (60.7) | | |
/// | 151936, 896 | 62.5 | (60.6) | 64.9 | | | (62.3) |
const SWAPPED_N: usize = 10_000;
const SWAPPED_ROWS: usize = 8;

/// Elements of a weight from which on tiles take what TMA does not stream.
const TILES_ELEMS: usize = 1 << 22;

/// Largest size: a coordinate of a box is an `i32`, and the last box may end past the tensor.
const MAX_SIZE: usize = i32::MAX as usize - 512;

/// Largest row stride: its bytes stay in a `u32`.
const MAX_STRIDE: usize = (1 << 30) - 1;

impl Linear16 {
    /// A layer whose products are summed in f32, in whatever order is fast.
    #[must_use]
    pub fn new(max_rows: usize, n: usize, k: usize) -> Self {
        Linear16 { max_rows, n, k, summation: Summation::default(), gated: false }
    }

    /// Why there is no launch of bf16 operands that are to be summed in f16.
    pub(super) const F16_SUMS_OF_BF16: LaunchError =
        LaunchError::Shape { what: "bits of a sum", value: 16, expected: "32 of bf16 operands" };

    /// The launch, with `num_rows` the device's count of rows, or `None` if there are no rows or no
    /// columns. `maps` encodes tensor maps.
    ///
    /// # Errors
    /// [`LaunchError`] for a k that is no multiple of 8, operands whose rows do not start at
    /// multiples of 16 bytes, a residual of 16-bit outputs, sums in f16 of bf16 operands, sizes
    /// beyond a grid or an `i32`, a norm or a gate where [`Linear16::fuses`] says no, a gate without
    /// a norm, and one of f32 outputs.
    pub fn launch<E: Operand16>(
        &self,
        gpu: Gpu,
        num_rows: DevicePtr<u32>,
        operands: &Linear16Operands<E>,
        maps: &mut dyn FnMut(&TensorMapSpec) -> EncodedTensorMap,
    ) -> Result<Option<Launch>, LaunchError> {
        self.check(operands)?;
        if self.summation.order == SumOrder::Fastest && self.max_rows <= 1 {
            return Gemv16(*self).launch(num_rows, operands);
        }
        if gpu.target == Target::Sm90a && self.is_swapped(gpu.num_sms, operands) {
            return Swapped16(*self).launch(gpu, num_rows, operands, maps);
        }
        let has_few_rows = match self.summation.order {
            SumOrder::Fastest => self.max_rows <= self.most_few_rows(gpu.target),
            SumOrder::FewRows => true,
            SumOrder::Tiles => false,
        };
        if has_few_rows {
            return SmallM16(*self).launch(gpu, num_rows, operands, maps);
        }
        match gpu.target {
            Target::Sm80 => f16_sm80::launch(self, gpu.num_sms, num_rows, operands),
            Target::Sm90a => {
                let config = TileConfig::fastest(self, gpu.num_sms);
                config.launch(self, gpu.num_sms, num_rows, operands, maps)
            }
        }
    }

    /// Whether [`Swapped16`] is the fastest: few rows, and as many columns as fill all SMs with tiles of 64.
    fn is_swapped<E>(&self, num_sms: usize, operands: &Linear16Operands<E>) -> bool {
        let Summation { accumulate, order } = self.summation;
        let sums_so = match order {
            SumOrder::Fastest => self.n >= SWAPPED_N || self.max_rows > SWAPPED_ROWS,
            SumOrder::FewRows => false,
            SumOrder::Tiles => accumulate == Accumulate::F32,
        };
        let is_plain = matches!(operands.x, Input16::Half(_)) && !self.gated;
        sums_so && is_plain && Swapped16(*self).fills(num_sms)
    }

    /// Rows up to which the kernels for few rows are the fastest; more than 32 they take without TMA.
    fn most_few_rows(&self, target: Target) -> usize {
        match target {
            Target::Sm90a if self.n.saturating_mul(self.k) >= TILES_ELEMS => {
                SmallM16::MAX_STREAMED_ROWS
            }
            _ => SmallM16::MAX_ROWS,
        }
    }

    /// Whether there is a kernel for layers of up to `max_rows` rows of `k` columns with a norm in
    /// front, with or without a gate behind.
    pub const fn fuses(max_rows: usize, k: usize) -> bool {
        SmallM16::fuses(max_rows, k)
    }

    /// Rows of the weight: a gate takes two for each column of the output.
    pub(super) const fn weight_rows(&self) -> usize {
        if self.gated { self.n.saturating_mul(2) } else { self.n }
    }

    /// The input of a layer that has nothing fused to it.
    pub(super) fn plain_input<E: Operand16>(
        &self,
        operands: &Linear16Operands<E>,
    ) -> Result<Rows<E>, LaunchError> {
        match operands.x {
            Input16::Half(x) if !self.gated => Ok(x),
            _ => Err(LaunchError::Shape {
                what: "rows",
                value: self.max_rows,
                expected: "at most 8 of a fused layer",
            }),
        }
    }

    /// Whether a kernel can compute this.
    pub(super) fn check<E: Operand16>(
        &self,
        operands: &Linear16Operands<E>,
    ) -> Result<(), LaunchError> {
        let Linear16Operands { x, weight, residual, out, .. } = operands;
        for (what, value) in [("rows", self.max_rows), ("n", self.weight_rows()), ("k", self.k)] {
            if value > MAX_SIZE {
                return refuse(what, value, "at most 2147483135");
            }
        }
        if E::DTYPE == Dtype::Bf16 && self.summation.accumulate == Accumulate::F16 {
            return Err(Self::F16_SUMS_OF_BF16);
        }
        if self.k == 0 || !self.k.is_multiple_of(8) {
            return refuse("k", self.k, "a multiple of 8");
        }
        check_rows(weight)?;
        let x_stride = match x {
            Input16::Half(_) if self.gated => {
                return refuse("input bits", 16, "32, which a norm takes, under a gate");
            }
            Input16::Normed { .. } if residual.is_some() => {
                return refuse("residuals", 1, "none behind a norm");
            }
            Input16::Half(x) => {
                check_rows(x)?;
                x.row_stride
            }
            Input16::Normed { x, weight, .. } => {
                check_rows(x)?;
                check_address(*weight)?;
                x.row_stride
            }
        };
        let out_stride = match out {
            Out16::Half(_) if residual.is_some() => {
                return refuse("output bits", 16, "32 where a residual is added");
            }
            Out16::F32(_) if self.gated => {
                return refuse("output bits", 32, "16 behind a gate");
            }
            Out16::Half(out) => out.row_stride,
            Out16::F32(out) => out.row_stride,
        };
        let residual_stride = residual.map_or(0, |residual| residual.row_stride);
        for stride in [x_stride, weight.row_stride, out_stride, residual_stride] {
            if stride > MAX_STRIDE {
                return refuse("row stride", stride, "at most 1073741823");
            }
        }
        Ok(())
    }
}

/// The map of a matrix of `[rows, columns]` in boxes of `[rows, columns]`, swizzled by 128 bytes.
pub(super) fn tensor_map<E: Operand16>(
    matrix: &Rows<E>,
    sizes: [usize; 2],
    box_sizes: [usize; 2],
) -> TensorMapSpec {
    let [rows, columns] = sizes.map(|size| size as u64);
    let [box_rows, box_columns] = box_sizes.map(|size| size as u32);
    TensorMapSpec {
        address: matrix.ptr.0,
        element: E::TENSOR_MAP,
        dims: vec![columns, rows],
        strides_bytes: vec![(matrix.row_stride * size_of::<E>()) as u64],
        box_dims: vec![box_columns, box_rows],
        swizzle: Swizzle::B128,
        l2_promotion: L2Promotion::B128,
    }
}

fn refuse(what: &'static str, value: usize, expected: &'static str) -> Result<(), LaunchError> {
    Err(LaunchError::Shape { what, value, expected })
}

/// Refuses rows that do not all start at multiples of 16 bytes.
fn check_rows<T>(rows: &Rows<T>) -> Result<(), LaunchError> {
    if !(rows.row_stride * size_of::<T>()).is_multiple_of(16) {
        let expected = if size_of::<T>() == 2 { "a multiple of 8" } else { "a multiple of 4" };
        return refuse("row stride", rows.row_stride, expected);
    }
    check_address(rows.ptr)
}

fn check_address<T>(ptr: DevicePtr<T>) -> Result<(), LaunchError> {
    if !ptr.0.is_multiple_of(16) {
        return refuse("address", ptr.0 as usize, "a multiple of 16");
    }
    Ok(())
}
