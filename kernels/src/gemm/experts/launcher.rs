//! The launches of a mixture of experts.

mod route;
mod sum;
mod wgmma;

pub use route::{Route, RouteOperands, SharedExpert};

use super::chunk::{CHUNK_WORDS, NUM_THREADS, NUM_WARPS};
use super::e4m3::E4m3Rows;
use super::weight::{Dense, ROUND};
use super::{combine, few, group, linear_f32, many};
use crate::Rows;
use crate::activation::{gate_arg, num_parts};
use crate::element::{Number, VEC_ELEMS, type_of};
use crate::gemm::layer::Maps;
use crate::gemm::problem::refuse;
use crate::gemm::quantised::BlockFormat;
use crate::gemm::quantised::format::{TILE_ROWS, UNIT_K};
use crate::gemm::quantised::packed;
use crate::gemm::{Gpu, SumOrder};
use crate::operand::is_aligned;
use crate::tile::weight::SCALE_BLOCK;
use core::any::TypeId;
use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError, arg_u32};
use gpu_types::{Activation, Dtype};
use half::{bf16, f16};
use route::check_experts;

/// Choices an expert, if all have as many, below which chunks of eight are the faster: beside
/// [`many`], and beside [`wgmma`](super::wgmma).
const FEW_ROWS: usize = 4;
const FEW_ROWS_BESIDE_WGMMA: usize = 1;

/// Blocks of [`few`] that are resident at once, three an SM of an H100 or H200.
const RESIDENT_BLOCKS: usize = 3 * 132;

/// Alignment of parts of the workspace.
const ALIGN: usize = 256;

/// How the matrices of experts are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// Rows of the operands' type.
    Dense,
    /// Tiles of a format: each expert's begin with a row of tiles.
    Tiles(BlockFormat),
    /// Rows of E4M3; after those of all experts, from a multiple of 16 bytes on, a scale in f32 of
    /// each row, or of each block of 128 by 128, which are no two experts'.
    E4m3 {
        /// Whether blocks have scales.
        in_blocks: bool,
    },
}

/// A linear layer of the experts that tokens have chosen.
#[derive(Clone, Copy, Debug)]
pub struct ExpertLinear {
    /// Upper bound of the tokens.
    pub max_tokens: usize,
    /// Experts.
    pub num_experts: usize,
    /// Experts of a token.
    pub top_k: usize,
    /// Rows of an expert's matrix.
    pub n: usize,
    /// Columns of it.
    pub k: usize,
    /// How the matrices are stored.
    pub stored: Stored,
    /// The activation, if the products are `activation(gate) * up` of two weights.
    pub gate: Option<Activation>,
    /// In which order products are accumulated over k.
    pub order: SumOrder,
}

/// The operands of [`ExpertLinear`], with memory for `max_tokens` tokens.
#[derive(Clone, Copy, Debug)]
pub struct ExpertOperands<E> {
    /// The number of tokens.
    pub num_tokens: DevicePtr<u32>,
    /// `[max_tokens, top_k]`.
    pub experts: Rows<u32>,
    /// `[max_tokens, k]`, or with a row for each choice `[max_tokens, top_k * k]`.
    pub x: Rows<E>,
    /// Whether there is a row for each choice.
    pub x_by_choice: bool,
    /// The matrices of all experts.
    pub weight: DevicePtr<u8>,
    /// As many, with a gate.
    pub up: DevicePtr<u8>,
    /// `[num_experts * n]`, and as many of up with a gate; null for none.
    pub bias: [DevicePtr<f32>; 2],
    /// `[max_tokens, n]`, added to sums.
    pub residual: Option<Rows<f32>>,
    /// The outputs.
    pub out: ExpertOut<E>,
    /// [`ExpertLinear::workspace_bytes`], 256-byte aligned.
    pub workspace: u64,
    /// Whether the launches just before, of a layer of the same choices and
    /// [`ExpertLinear::grouping`], have grouped them in the workspace.
    pub is_grouped: bool,
}

/// The outputs of [`ExpertLinear`].
#[derive(Clone, Copy, Debug)]
pub enum ExpertOut<E> {
    /// The products, `[max_tokens, top_k * n]`.
    Products(Rows<E>),
    /// The sums of a token's products, `[max_tokens, n]`, each times its weight, `[max_tokens,
    /// top_k]`.
    Sums(Rows<f32>, Rows<E>),
    /// The same in f32.
    SumsF32(Rows<f32>, Rows<f32>),
}

/// The kernel of a layer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kernel {
    F32,
    Few,
    Many,
    Wgmma,
}

/// Addresses in the workspace; null of what is not needed.
struct Workspace {
    chunks: u64,
    order: u64,
    products: u64,
    end: u64,
}

impl ExpertLinear {
    /// Bytes of workspace, for outputs that are sums of products of `elem_bytes`, or products.
    pub fn workspace_bytes(&self, elem_bytes: usize, are_sums: bool) -> usize {
        self.workspace(0, elem_bytes, are_sums).end as usize
    }

    fn workspace(&self, start: u64, elem_bytes: usize, are_sums: bool) -> Workspace {
        let mut end = start as usize;
        let mut take = |bytes: usize| {
            let at = end;
            end = at.saturating_add(bytes).next_multiple_of(ALIGN);
            at as u64
        };
        let (chunks, order) = match elem_bytes < size_of::<f32>() {
            true => {
                // Of the most chunks: what needs less for fewer rows must not need more.
                let words = (self.max_chunks(few::CHUNK_ROWS as usize) + 1) * CHUNK_WORDS as usize;
                (take(words * size_of::<u32>()), take(self.num_choices() * size_of::<u32>()))
            }
            false => (0, 0),
        };
        let products = self.num_choices().saturating_mul(self.n).saturating_mul(elem_bytes);
        let products = if are_sums { take(products) } else { 0 };
        Workspace { chunks, order, products, end: end as u64 }
    }

    /// Most choices.
    fn num_choices(&self) -> usize {
        self.max_tokens.saturating_mul(self.top_k)
    }

    /// Most chunks of so many rows.
    fn max_chunks(&self, rows: usize) -> usize {
        let choices = self.num_choices();
        (choices / rows + self.num_experts.min(choices)).min(choices)
    }

    /// Most choices of a chunk.
    fn chunk_rows(&self, kernel: Kernel) -> usize {
        (match kernel {
            Kernel::F32 => 1,
            Kernel::Few => few::CHUNK_ROWS,
            Kernel::Many => many::CHUNK_ROWS,
            // No more than tokens: each has an expert once.
            Kernel::Wgmma => self.wgmma_rows(),
        }) as usize
    }

    /// The kernel of operands `E` on `gpu`.
    fn kernel<E: Number>(&self, gpu: Gpu) -> Kernel {
        let has_wgmma = self.has_wgmma(gpu);
        let few_rows = if has_wgmma { FEW_ROWS_BESIDE_WGMMA } else { FEW_ROWS };
        let is_few = match self.order {
            SumOrder::Fastest => self.num_choices() < few_rows * self.num_experts,
            SumOrder::SmallBatch => true,
            SumOrder::Tiles => false,
        };
        match () {
            () if E::DTYPE == Dtype::F32 => Kernel::F32,
            () if is_few => Kernel::Few,
            () if has_wgmma => Kernel::Wgmma,
            () => Kernel::Many,
        }
    }

    /// The launches, none if there are no tokens or no columns.
    ///
    /// # Errors
    /// [`LaunchError`] for more than 513 experts, a k that is no multiple of 8 or of the format's
    /// blocks, rows of x that are not 16-byte aligned, and sizes beyond a grid or a `u32`; in f32
    /// for a gate, and tiles for operands that are not f16.
    pub fn launches<E: Number>(
        &self,
        gpu: Gpu,
        operands: &ExpertOperands<E>,
        maps: Maps<'_>,
    ) -> Result<Vec<Launch>, LaunchError> {
        check_experts(self.num_experts, self.top_k, group::MAX_EXPERTS as usize)?;
        if let ExpertOut::SumsF32(weights, out) = operands.out
            && self.sums_at_once(operands)
        {
            return Ok(self.launch_sum(operands, weights, out)?.into_iter().collect());
        }
        let (weights, products) = match operands.out {
            ExpertOut::Products(out) => (None, out),
            ExpertOut::Sums(weights, _) | ExpertOut::SumsF32(weights, _) => {
                (Some(weights), Rows::new(DevicePtr::null(), self.top_k * self.n))
            }
        };
        let at = self.workspace(operands.workspace, size_of::<E>(), weights.is_some());
        let products = match weights {
            Some(_) => Rows::new(DevicePtr::new(at.products), products.row_stride),
            None => products,
        };
        let kernel = self.kernel::<E>(gpu);
        let product = match kernel {
            Kernel::F32 => self.launch_f32(&operands.cast(), products.cast())?,
            Kernel::Few | Kernel::Many => self.launch_16(kernel, operands, products, &at)?,
            Kernel::Wgmma => self.launch_wgmma(gpu, operands, products, &at, maps)?,
        };
        let groups = match self.is_grouped(kernel) && !operands.is_grouped {
            true => self.launch_groups(kernel, operands, &at)?,
            false => None,
        };
        let sums = match operands.out {
            ExpertOut::Products(_) => None,
            ExpertOut::Sums(weights, out) => {
                self.launch_sums::<E, E>(operands, products, weights, out)?
            }
            ExpertOut::SumsF32(weights, out) => {
                self.launch_sums::<E, f32>(operands, products, weights, out)?
            }
        };
        Ok([groups, product, sums].into_iter().flatten().collect())
    }

    /// Most choices of a group, where a launch groups those of experts.
    pub fn grouping<E: Number>(&self, gpu: Gpu) -> Option<usize> {
        let kernel = self.kernel::<E>(gpu);
        self.is_grouped(kernel).then(|| self.chunk_rows(kernel))
    }

    /// Whether a launch before that of `kernel` groups the choices.
    fn is_grouped(&self, kernel: Kernel) -> bool {
        match kernel {
            Kernel::F32 => false,
            Kernel::Few | Kernel::Many => self.num_choices() > NUM_THREADS as usize,
            Kernel::Wgmma => true,
        }
    }

    fn launch_groups<E>(
        &self,
        kernel: Kernel,
        operands: &ExpertOperands<E>,
        at: &Workspace,
    ) -> Result<Option<Launch>, LaunchError> {
        let args = group::group_experts::Args {
            num_tokens: operands.num_tokens,
            top_k: arg_u32("experts of a token", self.top_k)?,
            experts: operands.experts.ptr,
            experts_stride: operands.experts.stride_arg()?,
            chunk_rows: self.chunk_rows(kernel) as u32,
            chunks: DevicePtr::new(at.chunks),
            order: DevicePtr::new(at.order),
        };
        let grid = [self.num_experts, self.max_tokens.min(1), 1];
        let geometry = Geometry::new(grid, group::NUM_THREADS as usize, 0)?;
        Ok(geometry.map(|geometry| args.launch(geometry)))
    }

    /// The products in f32.
    fn launch_f32(
        &self,
        operands: &ExpertOperands<f32>,
        products: Rows<f32>,
    ) -> Result<Option<Launch>, LaunchError> {
        if self.gate.is_some() || self.stored != Stored::Dense {
            return refuse("operand bits", 32, "16 with a gate or a weight in blocks");
        }
        let args = linear_f32::experts_f32::Args {
            num_tokens: operands.num_tokens,
            top_k: self.top_k as u32,
            experts: operands.experts.ptr,
            experts_stride: operands.experts.stride_arg()?,
            n: arg_u32("n", self.n)?,
            k: arg_u32("k", self.k)?,
            x: operands.x.ptr,
            x_stride: operands.x.stride_arg()?,
            x_choice_stride: self.x_choice_stride(operands.x_by_choice),
            weight: DevicePtr::new(operands.weight.0),
            bias: operands.bias[0],
            out: products.ptr,
            out_stride: products.stride_arg()?,
            out_choice_stride: self.n as u32,
        };
        let grid = [self.num_choices(), self.n.div_ceil(linear_f32::COLUMNS as usize), 1];
        let geometry = Geometry::new(grid, NUM_THREADS as usize, 0)?;
        Ok(geometry.map(|geometry| args.launch(geometry)))
    }

    fn x_choice_stride(&self, x_by_choice: bool) -> u32 {
        if x_by_choice { self.k as u32 } else { 0 }
    }

    /// The products in f16 or bf16, by [`few`] or [`many`].
    fn launch_16<E: Number>(
        &self,
        kernel: Kernel,
        operands: &ExpertOperands<E>,
        products: Rows<E>,
        at: &Workspace,
    ) -> Result<Option<Launch>, LaunchError> {
        self.check(operands)?;
        let ExpertOperands { num_tokens, experts, x, x_by_choice, weight, up, .. } = *operands;
        let [bias, up_bias] = operands.bias;
        let [scales_at, scale_stride] = self.scales()?;
        let weight_type = self.weight_type::<E>()?;
        let is_it = |i: many::experts_many::Instance| i.w() == weight_type;
        let instance = many::experts_many::Instance::find(is_it).expect("all weights");
        let tiles = instance.tiles();
        let chunks = self.max_chunks(self.chunk_rows(kernel));
        let (k_warps, is_few) = (self.k_warps(), kernel == Kernel::Few);
        let columns = match is_few {
            true => (NUM_WARPS as usize / k_warps / num_parts(self.gate)) * TILE_ROWS as usize,
            false => many::block_columns(tiles) as usize / num_parts(self.gate),
        };
        let columns = self.n.div_ceil(columns);
        let words = if is_few { few::SHARED_WORDS } else { many::shared_words(tiles) };
        let shared_bytes = words as usize * size_of::<u32>();
        let grid = [columns.saturating_mul(chunks), 1, 1];
        let geometry = Geometry::new(grid, NUM_THREADS as usize, shared_bytes)?;
        let (top_k, n, k) = (self.top_k as u32, arg_u32("n", self.n)?, arg_u32("k", self.k)?);
        let (experts_stride, x_stride) = (experts.stride_arg()?, x.stride_arg()?);
        let (columns, gate) = (arg_u32("n", columns)?, gate_arg(self.gate));
        let (x, x_choice_stride) = (DevicePtr::new(x.ptr.0), self.x_choice_stride(x_by_choice));
        let (experts, out_stride) = (experts.ptr, products.stride_arg()?);
        let (chunks, order) = match self.is_grouped(kernel) {
            true => (DevicePtr::new(at.chunks), DevicePtr::new(at.order)),
            false => (DevicePtr::null(), DevicePtr::null()),
        };
        let out = products.untyped_ptr();
        let Some(geometry) = geometry else { return Ok(None) };
        if is_few {
            let args = few::experts_few::Args {
                num_tokens,
                top_k,
                experts,
                experts_stride,
                chunks,
                order,
                columns,
                n,
                k,
                k_warps_log2: k_warps.ilog2(),
                gate,
                x,
                x_stride,
                x_choice_stride,
                weight,
                up,
                scales_at,
                scale_stride,
                bias,
                up_bias,
                out,
                out_stride,
                out_choice_stride: n,
            };
            let is_it = |i: few::experts_few::Instance| i.w() == weight_type;
            let instance = few::experts_few::Instance::find(is_it).expect("all weights");
            return Ok(Some(args.launch(instance, geometry)));
        }
        let args = many::experts_many::Args {
            num_tokens,
            top_k,
            experts,
            experts_stride,
            chunks,
            order,
            columns,
            n,
            k,
            gate,
            x,
            x_stride,
            x_choice_stride,
            weight,
            up,
            scales_at,
            scale_stride,
            bias,
            up_bias,
            out,
            out_stride,
            out_choice_stride: n,
        };
        Ok(Some(args.launch(instance, geometry)))
    }

    /// The kernels' type of the weight.
    fn weight_type<E: Number>(&self) -> Result<TypeId, LaunchError> {
        match self.stored {
            Stored::Tiles(format) if E::DTYPE == Dtype::F16 => packed::format_type(format),
            Stored::E4m3 { .. } if E::DTYPE == Dtype::F16 => Ok(TypeId::of::<E4m3Rows>()),
            Stored::Tiles(_) => refuse("operand bits", 16, "f16 for a weight in blocks"),
            Stored::E4m3 { .. } => refuse("operand bits", 16, "f16 for a weight in E4M3"),
            Stored::Dense if E::DTYPE == Dtype::F16 => Ok(TypeId::of::<Dense<f16>>()),
            Stored::Dense => Ok(TypeId::of::<Dense<bf16>>()),
        }
    }

    /// Where the scales of E4M3 are: the kernels' arguments, zeros where there are none.
    fn scales(&self) -> Result<[u32; 2], LaunchError> {
        let Stored::E4m3 { in_blocks } = self.stored else { return Ok([0; 2]) };
        let elems = self.num_experts.saturating_mul(self.n).saturating_mul(self.k);
        let blocks = self.k.div_ceil(SCALE_BLOCK as usize);
        let stride = if in_blocks { arg_u32("k", blocks)? } else { 0 };
        Ok([arg_u32("bytes of all experts", elems.div_ceil(16))?, stride])
    }

    fn check<E>(&self, operands: &ExpertOperands<E>) -> Result<(), LaunchError> {
        if self.n == 0 || self.k == 0 {
            return Ok(());
        }
        if !operands.x.is_aligned() {
            return refuse(
                "row stride",
                operands.x.row_stride,
                "rows of x that are 16-byte aligned",
            );
        }
        match self.stored {
            Stored::Tiles(format) => {
                let rows = self.n.next_multiple_of(TILE_ROWS as usize);
                let rows = rows.saturating_mul(self.num_experts);
                packed::check(format, rows, self.k, operands.weight)
            }
            Stored::Dense if self.k.is_multiple_of(VEC_ELEMS as usize) => Ok(()),
            Stored::Dense => refuse("k", self.k, "a multiple of 8"),
            Stored::E4m3 { .. } if !self.k.is_multiple_of(16) => {
                refuse("k", self.k, "a multiple of 16")
            }
            Stored::E4m3 { in_blocks: true } if !self.n.is_multiple_of(SCALE_BLOCK as usize) => {
                refuse("n", self.n, "a multiple of 128 where blocks have scales")
            }
            Stored::E4m3 { .. } if !is_aligned(operands.weight) => {
                refuse("address", operands.weight.0 as usize, "a multiple of 16")
            }
            Stored::E4m3 { .. } => Ok(()),
        }
    }

    /// Warps that split k: at least two, if they have rounds of units to themselves; of those with
    /// which none has fewer than others the most with which all blocks of a token are resident at
    /// once, or the fewest. They decide the order of the sums, so they must not depend on the rows.
    fn k_warps(&self) -> usize {
        let most = NUM_WARPS as usize / num_parts(self.gate);
        let rounds = (self.k / (UNIT_K as usize * ROUND)).max(1);
        let rounds_of_any = self.k.div_ceil(UNIT_K as usize * ROUND);
        let padded = |warps: &usize| rounds_of_any.next_multiple_of(*warps);
        let mut warps: Vec<usize> =
            [8, 4, 2].into_iter().filter(|w| *w <= most.min(rounds)).collect();
        let least = warps.iter().map(padded).min();
        warps.retain(|warps| Some(padded(warps)) == least);
        let is_resident = |warps: &usize| {
            let blocks = self.n.div_ceil(most / warps * TILE_ROWS as usize);
            blocks.saturating_mul(self.top_k) <= RESIDENT_BLOCKS
        };
        let resident = warps.iter().find(|warps| is_resident(warps));
        *resident.or(warps.last()).unwrap_or(&1)
    }

    fn launch_sums<E: Number, O: Number>(
        &self,
        operands: &ExpertOperands<E>,
        products: Rows<E>,
        weights: Rows<f32>,
        out: Rows<O>,
    ) -> Result<Option<Launch>, LaunchError> {
        let residual = operands.residual.unwrap_or(Rows::new(DevicePtr::null(), 0));
        let is_aligned = out.is_aligned() && residual.is_aligned();
        let args = combine::combine_experts::Args {
            num_tokens: operands.num_tokens,
            top_k: self.top_k as u32,
            width: arg_u32("n", self.n)?,
            products: products.untyped_ptr(),
            weights: weights.ptr,
            weights_stride: weights.stride_arg()?,
            residual: residual.ptr,
            residual_stride: residual.stride_arg()?,
            out: out.untyped_ptr(),
            out_stride: out.stride_arg()?,
            aligned: (self.n.is_multiple_of(VEC_ELEMS as usize) && is_aligned).into(),
        };
        let blocks = self.n.div_ceil((VEC_ELEMS * combine::NUM_THREADS) as usize);
        let grid = [self.max_tokens, blocks, 1];
        let geometry = Geometry::new(grid, combine::NUM_THREADS as usize, 0)?;
        let types = [type_of(E::DTYPE), type_of(O::DTYPE)];
        let is_it = |i: combine::combine_experts::Instance| [Some(i.t()), Some(i.o())] == types;
        let instance = combine::combine_experts::Instance::find(is_it).expect("all outputs");
        Ok(geometry.map(|geometry| args.launch(instance, geometry)))
    }
}

impl<E> ExpertOperands<E> {
    /// The same memory, of another type, with products for outputs.
    fn cast<F>(&self) -> ExpertOperands<F> {
        let ExpertOperands { num_tokens, experts, x_by_choice, weight, .. } = *self;
        let ExpertOperands { up, bias, residual, workspace, is_grouped, .. } = *self;
        let out = ExpertOut::Products(Rows::new(DevicePtr::null(), 0));
        ExpertOperands {
            num_tokens,
            experts,
            x: self.x.cast(),
            x_by_choice,
            weight,
            up,
            bias,
            residual,
            out,
            workspace,
            is_grouped,
        }
    }
}
