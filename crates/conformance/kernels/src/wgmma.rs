//! `wgmma.mma_async`: products of a warpgroup, operands as the host lays them out.

use cuda_std::prelude::*;
use cuda_std::warp::WARPGROUP_SIZE;
use cuda_std::wgmma::{
    self, Accumulator, Element, FragmentA, KMajor, Major, MatrixDescriptor, MnMajor, Sum, SumOf,
    Swizzle, column, row,
};
use cuda_std::{E4m3, E5m2};
use half::{bf16, f16};

/// Rows of a product.
pub const M: u32 = 64;

/// How an operand lies in shared memory.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// What its descriptor says.
    pub swizzle: Swizzle,
    /// See [`MatrixDescriptor::new`].
    pub leading_bytes: u32,
    /// See [`MatrixDescriptor::new`].
    pub stride_bytes: u32,
    /// From the start of a product's operand to that of the next one.
    pub advance_bytes: u32,
}

impl Layout {
    /// The layout as a kernel's parameter; offsets are multiples of 16 below 2^20.
    pub fn pack(self) -> u64 {
        let field = |bytes: u32| u64::from(bytes / 16);
        self.swizzle as u64
            | field(self.leading_bytes) << 16
            | field(self.stride_bytes) << 32
            | field(self.advance_bytes) << 48
    }

    #[inline(always)]
    fn unpack(packed: u64) -> Self {
        let bytes = |shift: u32| (packed >> shift) as u32 % (1 << 16) * 16;
        let swizzle = match packed % 4 {
            0 => Swizzle::None,
            1 => Swizzle::B128,
            2 => Swizzle::B64,
            _ => Swizzle::B32,
        };
        let (leading_bytes, stride_bytes, advance_bytes) = (bytes(16), bytes(32), bytes(48));
        Layout { swizzle, leading_bytes, stride_bytes, advance_bytes }
    }

    /// The operand of product `step` behind `tile`.
    #[inline(always)]
    fn descriptor<E: Element, M: Major<E>>(
        self,
        tile: Shared<E>,
        step: u32,
    ) -> MatrixDescriptor<E, M> {
        MatrixDescriptor::new(tile, self.leading_bytes, self.stride_bytes, self.swizzle)
            .advance(step * self.advance_bytes)
    }
}

/// What both kernels are told: products, the part of the result that is stored, operands.
#[derive(Clone, Copy)]
struct Task {
    num_steps: u32,
    num_rows: u32,
    num_columns: u32,
    before: Global<f32>,
    out: GlobalMut<f32>,
}

impl Task {
    /// The accumulator before, `[M, T::COLUMNS * REGS]`.
    ///
    /// # Safety
    /// 1. `before` holds it.
    #[inline(always)]
    #[track_caller]
    unsafe fn accumulator<T: Sum, const REGS: usize>(self) -> Accumulator<REGS, T> {
        let t = thread::thread_idx_x();
        let mut accumulator = Accumulator::zero();
        accumulator.for_each(|i, register| {
            *register = T::pack(|j| {
                let i = (i * T::PER_REGISTER + j) as u32;
                let at = row(t, i) * (T::COLUMNS * REGS) as u32 + column(t, i);
                // SAFETY: the caller's promise.
                unsafe { self.before.get(at as usize) }
            });
        });
        accumulator
    }

    /// Writes the first rows and columns of the result.
    ///
    /// # Safety
    /// 1. `out` is `[num_rows, num_columns]`.
    #[inline(always)]
    #[track_caller]
    unsafe fn store<T: Sum, const REGS: usize>(self, mut accumulator: Accumulator<REGS, T>) {
        let t = thread::thread_idx_x();
        accumulator.for_each(|i, register| {
            for j in 0..T::PER_REGISTER {
                let i = (i * T::PER_REGISTER + j) as u32;
                let (row, column) = (row(t, i), column(t, i));
                if row < self.num_rows && column < self.num_columns {
                    let at = (row * self.num_columns + column) as usize;
                    // SAFETY: an element of `out`, the thread's own.
                    unsafe { self.out.set(at, T::unpack(*register, j)) };
                }
            }
        });
    }
}

/// Copies the operands to shared memory, for products to read.
///
/// # Safety
/// 1. `image` holds `num_words`, and so does dynamic shared memory; all threads call it.
#[inline(always)]
#[track_caller]
unsafe fn place_operands(num_words: u32, image: Global<u32>) {
    // SAFETY: a word a thread.
    unsafe {
        let smem: Shared<u32> = dynamic_shared_mem();
        let mut i = thread::thread_idx_x();
        while i < num_words {
            smem.set(i, image.get(i as usize));
            i += WARPGROUP_SIZE;
        }
    }
    fence::proxy_async_shared();
    thread::sync_threads();
}

/// `D = before + A * B`, `num_steps` products; without `accumulate` the first one starts from zero.
/// `image`, `[num_words]`, goes to shared memory: A at its start and B at `b_start` bytes, of
/// [`Layout`]s. `before` is `[M, T::COLUMNS * REGS]`, `out` `[num_rows, num_columns]`, the first of
/// the result.
///
/// # Safety
/// 1. One warpgroup, with dynamic shared memory for the image, in which the operands lie; the views
///    are that long.
#[rustfmt::skip]
#[kernel(
    launch_bounds(WARPGROUP_SIZE, 1),
    target(sm_90a),
    instances(
        wgmma_f16_n8 = <f16, KMajor, KMajor, f32, 4>,
        wgmma_f16_n16 = <f16, KMajor, KMajor, f32, 8>,
        wgmma_f16_n32 = <f16, KMajor, KMajor, f32, 16>,
        wgmma_f16_n64 = <f16, KMajor, KMajor, f32, 32>,
        wgmma_f16_n96 = <f16, KMajor, KMajor, f32, 48>,
        wgmma_f16_n128 = <f16, KMajor, KMajor, f32, 64>,
        wgmma_f16_n192 = <f16, KMajor, KMajor, f32, 96>,
        wgmma_f16_n256 = <f16, KMajor, KMajor, f32, 128>,
        wgmma_bf16_n8 = <bf16, KMajor, KMajor, f32, 4>,
        wgmma_bf16_n16 = <bf16, KMajor, KMajor, f32, 8>,
        wgmma_bf16_n32 = <bf16, KMajor, KMajor, f32, 16>,
        wgmma_bf16_n64 = <bf16, KMajor, KMajor, f32, 32>,
        wgmma_bf16_n96 = <bf16, KMajor, KMajor, f32, 48>,
        wgmma_bf16_n128 = <bf16, KMajor, KMajor, f32, 64>,
        wgmma_bf16_n192 = <bf16, KMajor, KMajor, f32, 96>,
        wgmma_bf16_n256 = <bf16, KMajor, KMajor, f32, 128>,
        wgmma_e4m3_n8 = <E4m3, KMajor, KMajor, f32, 4>,
        wgmma_e4m3_n16 = <E4m3, KMajor, KMajor, f32, 8>,
        wgmma_e4m3_n32 = <E4m3, KMajor, KMajor, f32, 16>,
        wgmma_e4m3_n64 = <E4m3, KMajor, KMajor, f32, 32>,
        wgmma_e4m3_n96 = <E4m3, KMajor, KMajor, f32, 48>,
        wgmma_e4m3_n128 = <E4m3, KMajor, KMajor, f32, 64>,
        wgmma_e4m3_n192 = <E4m3, KMajor, KMajor, f32, 96>,
        wgmma_e4m3_n256 = <E4m3, KMajor, KMajor, f32, 128>,
        wgmma_e5m2_n8 = <E5m2, KMajor, KMajor, f32, 4>,
        wgmma_e5m2_n16 = <E5m2, KMajor, KMajor, f32, 8>,
        wgmma_e5m2_n32 = <E5m2, KMajor, KMajor, f32, 16>,
        wgmma_e5m2_n64 = <E5m2, KMajor, KMajor, f32, 32>,
        wgmma_e5m2_n96 = <E5m2, KMajor, KMajor, f32, 48>,
        wgmma_e5m2_n128 = <E5m2, KMajor, KMajor, f32, 64>,
        wgmma_e5m2_n192 = <E5m2, KMajor, KMajor, f32, 96>,
        wgmma_e5m2_n256 = <E5m2, KMajor, KMajor, f32, 128>,
        wgmma_f16_k_mn = <f16, KMajor, MnMajor, f32, 64>,
        wgmma_f16_mn_k = <f16, MnMajor, KMajor, f32, 64>,
        wgmma_f16_mn_mn = <f16, MnMajor, MnMajor, f32, 64>,
        wgmma_bf16_k_mn = <bf16, KMajor, MnMajor, f32, 64>,
        wgmma_bf16_mn_k = <bf16, MnMajor, KMajor, f32, 64>,
        wgmma_bf16_mn_mn = <bf16, MnMajor, MnMajor, f32, 64>,
        wgmma_f16_in_f16_n16 = <f16, KMajor, KMajor, f16, 4>,
        wgmma_f16_in_f16_n32 = <f16, KMajor, KMajor, f16, 8>,
        wgmma_f16_in_f16_n64 = <f16, KMajor, KMajor, f16, 16>,
        wgmma_f16_in_f16_n128 = <f16, KMajor, KMajor, f16, 32>,
        wgmma_f16_in_f16_n192 = <f16, KMajor, KMajor, f16, 48>,
        wgmma_f16_in_f16_n256 = <f16, KMajor, KMajor, f16, 64>
    )
)]
pub unsafe fn wgmma_shared<
    E: Element,
    A: Major<E>,
    B: Major<E>,
    T: SumOf<E>,
    const REGS: usize,
>(
    num_steps: u32,
    num_rows: u32,
    num_columns: u32,
    accumulate: u32,
    a_layout: u64,
    b_layout: u64,
    b_start: u32,
    num_words: u32,
    image: Global<u32>,
    before: Global<f32>,
    out: GlobalMut<f32>,
) {
    let task = Task { num_steps, num_rows, num_columns, before, out };
    let (a_layout, b_layout) = (Layout::unpack(a_layout), Layout::unpack(b_layout));
    // SAFETY: the operands are placed, and stay as they are; the products are waited for.
    unsafe {
        place_operands(num_words, image);
        let a_tile = dynamic_shared_mem::<E>();
        let b_tile = dynamic_shared_mem::<E>().offset(b_start / size_of::<E>() as u32);
        let mut d = task.accumulator::<T, REGS>().start();
        let mut step = 0;
        while step < task.num_steps {
            let a = a_layout.descriptor::<E, A>(a_tile, step);
            let b = b_layout.descriptor::<E, B>(b_tile, step);
            wgmma::fence();
            d.mma(a, b, accumulate != 0 || step > 0);
            wgmma::commit();
            step += 1;
        }
        task.store(d.wait::<0>());
    }
}

/// As [`wgmma_shared()`], with A in registers: `fragments` is `[num_steps, 128, 4]`, and B lies at
/// the start of shared memory.
///
/// # Safety
/// As [`wgmma_shared()`].
#[rustfmt::skip]
#[kernel(
    launch_bounds(WARPGROUP_SIZE, 1),
    target(sm_90a),
    instances(
        wgmma_registers_f16_n8 = <f16, KMajor, f32, 4>,
        wgmma_registers_f16_n16 = <f16, KMajor, f32, 8>,
        wgmma_registers_f16_n32 = <f16, KMajor, f32, 16>,
        wgmma_registers_f16_n64 = <f16, KMajor, f32, 32>,
        wgmma_registers_f16_n72 = <f16, KMajor, f32, 36>,
        wgmma_registers_f16_n96 = <f16, KMajor, f32, 48>,
        wgmma_registers_f16_n128 = <f16, KMajor, f32, 64>,
        wgmma_registers_f16_n192 = <f16, KMajor, f32, 96>,
        wgmma_registers_f16_n256 = <f16, KMajor, f32, 128>,
        wgmma_registers_f16_mn = <f16, MnMajor, f32, 64>,
        wgmma_registers_bf16_k = <bf16, KMajor, f32, 64>,
        wgmma_registers_bf16_mn = <bf16, MnMajor, f32, 64>,
        wgmma_registers_e4m3_k = <E4m3, KMajor, f32, 64>,
        wgmma_registers_e5m2_k = <E5m2, KMajor, f32, 64>,
        wgmma_registers_f16_in_f16_k = <f16, KMajor, f16, 32>
    )
)]
pub unsafe fn wgmma_registers<E: Element, B: Major<E>, T: SumOf<E>, const REGS: usize>(
    num_steps: u32,
    num_rows: u32,
    num_columns: u32,
    accumulate: u32,
    b_layout: u64,
    num_words: u32,
    image: Global<u32>,
    fragments: Global<u32>,
    before: Global<f32>,
    out: GlobalMut<f32>,
) {
    let task = Task { num_steps, num_rows, num_columns, before, out };
    let b_layout = Layout::unpack(b_layout);
    // SAFETY: B is placed, and stays as it is; the products are waited for.
    unsafe {
        place_operands(num_words, image);
        let tile = dynamic_shared_mem::<E>();
        let mut d = task.accumulator::<T, REGS>().start();
        let mut step = 0;
        while step < task.num_steps {
            let at = 4 * (step * WARPGROUP_SIZE + thread::thread_idx_x());
            let a = FragmentA::new(fragments.get_vec(at as usize));
            let b = b_layout.descriptor::<E, B>(tile, step);
            wgmma::fence();
            d.mma_rs(a, b, accumulate != 0 || step > 0);
            wgmma::commit();
            wgmma::wait_group::<0>();
            step += 1;
        }
        task.store(d.wait::<0>());
    }
}
