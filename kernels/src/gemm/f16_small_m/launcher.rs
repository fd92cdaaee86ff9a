//! Which instance computes a linear layer of few rows, and its launch.

use super::epilogue::shared_bytes;
use super::gemm_16_small_m::{self, Instance};
use super::mainloop::{LOAD_K, TILE};
use crate::Rows;
use crate::element::Dtype;
use crate::gemm::{Linear16, Linear16Operands, Out16};
use crate::tile::element::Operand16;
use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError, arg_u32};
use cuda_std::warp::WARP_SIZE;

/// SMs of an H200.
const NUM_SMS: usize = 132;

/// Columns up to which 16 warps share k: two blocks of eight columns an SM, that hold all its warps.
const NARROW_N: usize = 2 * NUM_SMS * TILE as usize;

/// Columns from which on a block of 8 rows takes 32 of them: there are four blocks for each of the
/// two places an SM has, so that the last ones leave little idle.
const WIDE_N: usize = 4 * 2 * NUM_SMS * 32;

/// Largest k: offsets past its end stay in a `u32`.
const MAX_K: usize = i32::MAX as usize;

/// Most 16-byte loads of an operand: a lane counts them in a `u32`.
const MAX_LOADS: usize = i32::MAX as usize;

/// The name of `E` in symbols.
fn name_of<E: Operand16>() -> &'static str {
    if E::DTYPE == Dtype::Bf16 { "bf16" } else { "f16" }
}

/// Whether the instance's operands are of `E`.
fn is_of<E: Operand16>(instance: Instance) -> bool {
    instance.symbol().split('_').nth(1) == Some(name_of::<E>())
}

/// Most rows of the instance.
fn max_rows(instance: Instance) -> usize {
    instance.tiles_m() * TILE as usize
}

/// A linear layer of few rows, in elements of 16 bits.
#[derive(Clone, Copy, Debug)]
pub struct SmallM16(pub Linear16);

impl SmallM16 {
    /// Most rows.
    pub const MAX_ROWS: usize = 64;

    /// Whether there is a kernel for layers of up to `max_rows` rows of `k` columns with a norm in
    /// front: the normed rows stand in shared memory, of which any device gives a block 99 KiB.
    pub const fn fuses(max_rows: usize, k: usize) -> bool {
        let _ = (max_rows, k);
        false
    }

    /// The launch, with `num_rows` the device's count of rows, or `None` if there are no rows or no
    /// columns.
    ///
    /// # Errors
    /// [`LaunchError`] for more than [`SmallM16::MAX_ROWS`], rows of `x` or `weight` that do not
    /// start at multiples of 16 bytes, and sizes beyond a grid or a `u32`.
    pub fn launch<E: Operand16>(
        &self,
        num_rows: DevicePtr<u32>,
        operands: &Linear16Operands<E>,
    ) -> Result<Option<Launch>, LaunchError> {
        self.launch_instance(self.choose::<E>()?, num_rows, operands)
    }

    /// The launch of an instance of `E`: to compare them.
    ///
    /// # Errors
    /// As [`SmallM16::launch`]; also for more rows than the instance has.
    ///
    /// # Panics
    /// If the instance is of another element.
    pub fn launch_instance<E: Operand16>(
        &self,
        instance: Instance,
        num_rows: DevicePtr<u32>,
        operands: &Linear16Operands<E>,
    ) -> Result<Option<Launch>, LaunchError> {
        let x = self.0.plain_input(operands)?;
        let Linear16Operands { weight, bias, residual, out, .. } = operands;
        assert!(is_of::<E>(instance), "{} is not of {}", instance.symbol(), name_of::<E>());
        if self.0.max_rows > max_rows(instance) {
            let expected = "at most the instance's";
            return Err(LaunchError::Shape { what: "rows", value: self.0.max_rows, expected });
        }
        let x_stride = self.stride("row stride of x", &x, self.0.max_rows)?;
        let weight_stride = self.stride("row stride of the weight", weight, self.0.n)?;
        let bias = bias.unwrap_or(DevicePtr::null());
        let residual = residual.unwrap_or(Rows::new(DevicePtr::null(), 0));
        let (half, single, out_stride) = match out {
            Out16::Half(rows) => (rows.ptr.0, DevicePtr::null(), rows.stride_arg()?),
            Out16::F32(rows) => (0, rows.ptr, rows.stride_arg()?),
        };
        let (n, k) = (arg_u32("n", self.0.n)?, arg_u32("k", self.0.k)?);
        let residual_stride = residual.stride_arg()?;
        let geometry = self.geometry(instance)?;
        Ok(geometry.map(|geometry| {
            gemm_16_small_m::launch(
                instance,
                geometry,
                num_rows,
                n,
                k,
                DevicePtr::new(x.ptr.0),
                x_stride,
                DevicePtr::new(weight.ptr.0),
                weight_stride,
                bias,
                residual.ptr,
                residual_stride,
                DevicePtr::new(half),
                single,
                out_stride,
            )
        }))
    }

    /// How many warps share k decides the order of the sums: it must not depend on the rows.
    fn choose<E: Operand16>(&self) -> Result<Instance, LaunchError> {
        let warps = if self.0.n <= NARROW_N { 16 } else { 8 };
        let is_wide =
            self.0.n > NARROW_N && (self.0.max_rows > TILE as usize || self.0.n >= WIDE_N);
        let tiles_n = if is_wide { 4 } else { 1 };
        let mut instances = Instance::ALL.iter().copied();
        let instance = instances.find(|&instance| {
            is_of::<E>(instance)
                && instance.warps() == warps
                && instance.tiles_n() == tiles_n
                && self.0.max_rows <= max_rows(instance)
        });
        instance.ok_or(LaunchError::Shape {
            what: "rows",
            value: self.0.max_rows,
            expected: "at most 64",
        })
    }

    fn geometry(&self, instance: Instance) -> Result<Option<Geometry>, LaunchError> {
        let (tiles_m, tiles_n, warps) = (instance.tiles_m(), instance.tiles_n(), instance.warps());
        let blocks = self.0.n.div_ceil(tiles_n * TILE as usize);
        let shared_bytes = shared_bytes(tiles_m, tiles_n, warps);
        let num_threads = warps * WARP_SIZE as usize;
        Geometry::new([blocks, self.0.max_rows.min(1), 1], num_threads, shared_bytes)
    }

    /// The stride of an operand that lanes load 16 bytes of.
    fn stride<E>(
        &self,
        what: &'static str,
        rows: &Rows<E>,
        num_rows: usize,
    ) -> Result<u32, LaunchError> {
        let refuse = |what, value, expected| Err(LaunchError::Shape { what, value, expected });
        if !self.0.k.is_multiple_of(LOAD_K as usize) {
            return refuse("k", self.0.k, "a multiple of 8");
        }
        if !rows.is_aligned() {
            return refuse(what, rows.row_stride, "rows at multiples of 16 bytes");
        }
        if self.0.k > MAX_K {
            return refuse("k", self.0.k, "at most 2147483647");
        }
        let num_loads = num_rows.saturating_mul(rows.row_stride / LOAD_K as usize);
        if num_loads > MAX_LOADS {
            return refuse(what, rows.row_stride, "a matrix of at most 32 GiB");
        }
        rows.stride_arg()
    }
}
