//! `wgmma.mma_async`, with operands in the layouts that the host prepares.

use cuda_std::prelude::*;
use cuda_std::warp::WARPGROUP_SIZE;
use cuda_std::wgmma::{
    self, Accumulator, AccumulatorFor, AccumulatorType, Element, FragmentA, KMajor, Major,
    MatrixDescriptor, MnMajor, Swizzle, column, row,
};
use cuda_std::{E4m3, E5m2};
use half::{bf16, f16};

/// Rows of an MMA.
pub const M: u32 = 64;

/// Layout of an operand in shared memory.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Swizzle of its descriptor.
    pub swizzle: Swizzle,
    /// See [`MatrixDescriptor::new`].
    pub leading_bytes: u32,
    /// See [`MatrixDescriptor::new`].
    pub stride_bytes: u32,
    /// Bytes from one MMA's operand to the next MMA's.
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

    /// The operand of MMA `step` in `tile`.
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

/// Arguments of both kernels: number of MMAs, part of the result to store, operands.
#[derive(Clone, Copy)]
struct Task {
    num_steps: u32,
    num_rows: u32,
    num_columns: u32,
    before: Global<f32>,
    out: GlobalMut<f32>,
}

impl Task {
    /// The initial accumulator, `[M, T::COLUMNS * REGS]`.
    ///
    /// # Safety
    /// 1. `before` has this length.
    #[inline(always)]
    #[track_caller]
    unsafe fn accumulator<T: AccumulatorType, const REGS: usize>(self) -> Accumulator<REGS, T> {
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

    /// Stores the first rows and columns of the result.
    ///
    /// # Safety
    /// 1. `out` is `[num_rows, num_columns]`.
    #[inline(always)]
    #[track_caller]
    unsafe fn store<T: AccumulatorType, const REGS: usize>(
        self,
        mut accumulator: Accumulator<REGS, T>,
    ) {
        let t = thread::thread_idx_x();
        accumulator.for_each(|i, register| {
            for j in 0..T::PER_REGISTER {
                let i = (i * T::PER_REGISTER + j) as u32;
                let (row, column) = (row(t, i), column(t, i));
                if row < self.num_rows && column < self.num_columns {
                    let at = (row * self.num_columns + column) as usize;
                    // SAFETY: each thread stores its own elements of `out`.
                    unsafe { self.out.set(at, T::unpack(*register, j)) };
                }
            }
        });
    }
}

/// Copies the operands to shared memory and makes them visible to the async proxy.
///
/// # Safety
/// 1. `image` holds `num_words`, and so does dynamic shared memory; all threads call it.
#[inline(always)]
#[track_caller]
unsafe fn place_operands(num_words: u32, image: Global<u32>) {
    // SAFETY: each thread copies its own words.
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

/// `D = before + A * B` by `num_steps` MMAs; without `accumulate` the first one starts from zero.
/// `image`, `[num_words]`, is copied to shared memory: A at its start and B at `b_start` bytes,
/// each of its [`Layout`]. `before` is `[M, T::COLUMNS * REGS]`, `out` `[num_rows, num_columns]`,
/// the first rows and columns of the result.
///
/// # Safety
/// 1. One warpgroup, with dynamic shared memory for the image, which contains the operands; the
///    views have these lengths.
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
    T: AccumulatorFor<E>,
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
    // SAFETY: the operands are in shared memory and not overwritten; the MMAs are waited for.
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

/// [`wgmma_shared()`] with A in registers: `fragments` is `[num_steps, 128, 4]`, and B is at the
/// start of shared memory.
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
pub unsafe fn wgmma_registers<E: Element, B: Major<E>, T: AccumulatorFor<E>, const REGS: usize>(
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
    // SAFETY: B is in shared memory and not overwritten; the MMAs are waited for.
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
            d.mma_rs(&a, b, accumulate != 0 || step > 0);
            wgmma::commit();
            wgmma::wait_group::<0>();
            step += 1;
        }
        task.store(d.wait::<0>());
    }
}
