//! `atom` and `red` on global and shared memory: without contention, and with contention.

use cuda_std::atomic::{Order, Scope};
use cuda_std::prelude::*;
use half::f16;

/// Threads of a block.
pub const NUM_THREADS: u32 = 64;

/// Operands of one thread's sequence of operations.
pub const NUM_OPERANDS: u32 = 8;

/// Old values that one sequence returns.
pub const NUM_OLD: u32 = 11;

/// Cells that threads contend for: sum, minimum, maximum, and, or, exclusive or, product, count.
pub const NUM_CELLS: u32 = 8;

/// All operations in sequence, each thread of a block on its own cell: `cell` at `i`. `operands` is
/// `[NUM_THREADS, NUM_OPERANDS]`, `old` `[NUM_THREADS, NUM_OLD]`.
macro_rules! sequence {
    ($cells:ident[$i:expr], $operands:ident, $old:ident, $t:ident) => {{
        let operand = |k: u32| $operands.get(($t * NUM_OPERANDS + k) as usize);
        let keep = |k: u32, value| $old.set(($t * NUM_OLD + k) as usize, value);
        keep(0, $cells.fetch_add($i, operand(0), Order::Relaxed, Scope::Block));
        keep(1, $cells.fetch_min($i, operand(1), Order::Acquire, Scope::Gpu));
        keep(2, $cells.fetch_max($i, operand(2), Order::Release, Scope::System));
        keep(3, $cells.fetch_and($i, operand(3), Order::AcqRel, Scope::Block));
        keep(4, $cells.fetch_or($i, operand(4), Order::Relaxed, Scope::Gpu));
        keep(5, $cells.fetch_xor($i, operand(5), Order::Acquire, Scope::System));
        keep(6, $cells.swap($i, operand(6), Order::Release, Scope::Block));
        let taken = (operand(6), operand(7));
        let (Ok(old) | Err(old)) = $cells.compare_exchange($i, taken, Order::AcqRel, Scope::Gpu);
        keep(7, old);
        let refused = (!operand(7), operand(0));
        let (Ok(old) | Err(old)) =
            $cells.compare_exchange($i, refused, Order::Relaxed, Scope::System);
        keep(8, old);
        keep(9, $cells.load_acquire($i, Scope::Gpu));
        $cells.store_release($i, operand(0), Scope::Gpu);
        keep(10, $cells.load_relaxed($i, Scope::Block));
        $cells.store_relaxed($i, operand(1), Scope::System);
    }};
}

/// All threads on the same cells. Cell 6 becomes the product, by a compare-and-exchange loop. Cell
/// 7 counts; the old count is an index into `tickets`.
macro_rules! contend {
    ($cells:ident[$($index:tt)*], $x:expr, $tickets:ident, $first_ticket:expr) => {{
        let (order, scope, x) = (Order::Relaxed, Scope::Gpu, $x);
        $cells.fetch_add(0 $($index)*, x, order, scope);
        $cells.fetch_min(1 $($index)*, x, order, scope);
        $cells.fetch_max(2 $($index)*, x, order, scope);
        $cells.fetch_and(3 $($index)*, x | 1, order, scope);
        $cells.fetch_or(4 $($index)*, x & 0x0f0f_0f0f, order, scope);
        $cells.fetch_xor(5 $($index)*, x, order, scope);
        let mut seen = $cells.load_relaxed(6 $($index)*, scope);
        loop {
            let product = seen.wrapping_mul(x | 1);
            match $cells.compare_exchange(6 $($index)*, (seen, product), order, scope) {
                Ok(_) => break,
                Err(other) => seen = other,
            }
        }
        let ticket = $cells.fetch_add(7 $($index)*, 1, order, scope);
        $tickets.set($first_ticket + ticket as usize, 1);
    }};
}

/// Both kernels on global memory.
macro_rules! global {
    ($element:ty, $sequence:ident, $contended:ident) => {
        /// Every operation, each thread on its own cell.
        ///
        /// # Safety
        /// 1. One block; `cells` is `[NUM_THREADS]`, `operands` `[NUM_THREADS, NUM_OPERANDS]`,
        ///    `old` `[NUM_THREADS, NUM_OLD]`.
        #[kernel(launch_bounds(NUM_THREADS))]
        pub unsafe fn $sequence(
            cells: GlobalMut<$element>,
            operands: Global<$element>,
            old: GlobalMut<$element>,
        ) {
            let t = thread::thread_idx_x();
            // SAFETY: one cell per thread, with its operands and old values.
            unsafe { sequence!(cells[t as usize], operands, old, t) }
        }

        /// Every thread of the grid on the same cells.
        ///
        /// # Safety
        /// 1. `cells` is `[NUM_CELLS]`; `x` and `tickets` hold one element per thread.
        #[kernel(launch_bounds(NUM_THREADS))]
        pub unsafe fn $contended(
            x: Global<$element>,
            cells: GlobalMut<$element>,
            tickets: GlobalMut<u32>,
        ) {
            // SAFETY: one element per thread; the cells are accessed only by atomic operations.
            unsafe { contend!(cells[], x.get(thread::index_1d() as usize), tickets, 0) }
        }
    };
}

/// Both kernels on shared memory.
macro_rules! shared {
    ($element:ty, $sequence:ident, $contended:ident) => {
        /// Every operation, each thread on its own cell, which is loaded from and stored to
        /// `cells`.
        ///
        /// # Safety
        /// 1. One block; `cells` is `[NUM_THREADS]`, `operands` `[NUM_THREADS, NUM_OPERANDS]`,
        ///    `old` `[NUM_THREADS, NUM_OLD]`.
        #[kernel(launch_bounds(NUM_THREADS))]
        pub unsafe fn $sequence(
            cells: GlobalMut<$element>,
            operands: Global<$element>,
            old: GlobalMut<$element>,
        ) {
            let t = thread::thread_idx_x();
            // SAFETY: one cell per thread, with its operands and old values.
            unsafe {
                let smem = shared_array![$element; NUM_THREADS as usize];
                smem.set(t, cells.get(t as usize));
                sequence!(smem[t], operands, old, t);
                cells.set(t as usize, smem.get(t));
            }
        }

        /// All threads of a block on the block's cells, which are loaded from and stored to
        /// `cells`.
        ///
        /// # Safety
        /// 1. `cells` is `[num_blocks, NUM_CELLS]`; `x` and `tickets` hold one element per thread.
        #[kernel(launch_bounds(NUM_THREADS))]
        pub unsafe fn $contended(
            x: Global<$element>,
            cells: GlobalMut<$element>,
            tickets: GlobalMut<u32>,
        ) {
            let t = thread::thread_idx_x();
            let own = (thread::block_idx_x() * NUM_CELLS + t) as usize;
            // SAFETY: one element per thread; between the barriers the cells are accessed only by
            // atomic operations.
            unsafe {
                let smem = shared_array![$element; NUM_CELLS as usize];
                if t < NUM_CELLS {
                    smem.set(t, cells.get(own));
                }
                thread::sync_threads();
                let i = thread::index_1d() as usize;
                contend!(smem[], x.get(i), tickets, i - t as usize);
                thread::sync_threads();
                if t < NUM_CELLS {
                    cells.set(own, smem.get(t));
                }
            }
        }
    };
}

global!(u32, atomic_global_u32, atomic_global_contended_u32);
global!(i32, atomic_global_i32, atomic_global_contended_i32);
global!(u64, atomic_global_u64, atomic_global_contended_u64);
shared!(u32, atomic_shared_u32, atomic_shared_contended_u32);
shared!(i32, atomic_shared_i32, atomic_shared_contended_i32);

/// Every thread adds its element to cell `i % NUM_CELLS` of `global` and of the block's shared
/// memory, which is initialised to zeros and stored to `shared`; both are `[NUM_CELLS]`.
///
/// # Safety
/// 1. One block; `x` holds one element per thread.
#[kernel(launch_bounds(NUM_THREADS))]
pub unsafe fn atomic_add_f32(x: Global<f32>, global: GlobalMut<f32>, shared: GlobalMut<f32>) {
    let t = thread::thread_idx_x();
    // SAFETY: one element per thread; between the barriers the cells are accessed only by atomic
    // operations.
    unsafe {
        let smem = shared_array![f32; NUM_CELLS as usize];
        if t < NUM_CELLS {
            smem.set(t, 0.0);
        }
        thread::sync_threads();
        let (x, cell) = (x.get(t as usize), t % NUM_CELLS);
        global.fetch_add(cell as usize, x, Order::Relaxed, Scope::Gpu);
        smem.fetch_add(cell, x, Order::Relaxed, Scope::Block);
        thread::sync_threads();
        if t < NUM_CELLS {
            shared.set(t as usize, smem.get(t));
        }
    }
}

/// [`atomic_add_f32()`] with two f16 per operation.
///
/// # Safety
/// 1. One block; `x` holds two elements per thread, `global` and `shared` `2 * NUM_CELLS`.
#[kernel(launch_bounds(NUM_THREADS))]
pub unsafe fn atomic_add_f16x2(x: Global<f16>, global: GlobalMut<f16>, shared: GlobalMut<f16>) {
    let t = thread::thread_idx_x();
    // SAFETY: two elements per thread; between the barriers the cells are accessed only by atomic
    // operations.
    unsafe {
        let smem = shared_array![f16; 2 * NUM_CELLS as usize];
        if t < NUM_CELLS {
            smem.set_vec(2 * t, [f16::from_bits(0); 2]);
        }
        thread::sync_threads();
        let (x, cell) = (x.get_vec(2 * t as usize), 2 * (t % NUM_CELLS));
        global.fetch_add_x2(cell as usize, x, Order::Relaxed, Scope::Gpu);
        smem.fetch_add_x2(cell, x, Order::Relaxed, Scope::Block);
        thread::sync_threads();
        if t < NUM_CELLS {
            shared.set_vec(2 * t as usize, smem.get_vec::<2>(2 * t));
        }
    }
}
