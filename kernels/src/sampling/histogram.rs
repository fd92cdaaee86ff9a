//! The second launch, for rows with top-k or top-p: a histogram of the distances, and with it the
//! bins that the last kept token can be in.

use super::best::BlockBests;
use super::row::{Row, Sampling};
use super::tally::{TALLIES_LEN, Tally};
use super::{NUM_THREADS, UNROLL, mass};
use crate::tile::last_block::is_last;
use cuda_std::atomic::{Order, Scope};
use cuda_std::prelude::*;

/// Bins of a distance of 1.
const BINS_PER_UNIT: f32 = 64.0;

/// Bins of a row. The last one has everything from a distance of 32 on, where no mass is left.
pub(super) const NUM_BINS: u32 = 2048;

/// Bins of a thread of the last block.
const BINS_PER_THREAD: u32 = NUM_BINS / NUM_THREADS;
const _: () = assert!(BINS_PER_THREAD == 2, "the last block loads two bins at once");

/// The bin of a finite distance.
#[inline(always)]
pub(super) fn bin_of(distance: f32) -> u32 {
    let bin = (distance * BINS_PER_UNIT) as u32;
    if bin < NUM_BINS { bin } else { NUM_BINS - 1 }
}

/// The bins that the last kept token can be in, and what is before them.
#[derive(Clone, Copy)]
pub(super) struct Undecided {
    /// All tokens of the bins before this one are kept.
    pub first: u32,
    /// No token of the bins after this one is kept.
    pub last: u32,
    /// Tokens of the bins before `first`.
    pub before: Tally,
    /// The mass of the row.
    pub row_mass: u64,
}

/// `u32` elements of an [`Undecided`].
pub(super) const UNDECIDED_LEN: usize = 8;

impl Undecided {
    /// Every token is kept.
    pub const NONE: Self =
        Undecided { first: NUM_BINS, last: NUM_BINS, before: Tally::ZERO, row_mass: 0 };

    /// That of `row`, at a multiple of 16 bytes.
    ///
    /// # Safety
    /// 1. The row's elements are written.
    #[inline(always)]
    pub unsafe fn load(undecided: Global<u32>, row: usize) -> Self {
        // SAFETY: the caller's promise.
        let ([first, last, count, _], [low, high, row_low, row_high]) = unsafe {
            let row = undecided.add(row * UNDECIDED_LEN);
            (row.get_vec(0), row.get_vec(4))
        };
        let u64_of = |low: u32, high: u32| u64::from(high) << 32 | u64::from(low);
        let before = Tally { count, mass: u64_of(low, high) };
        Undecided { first, last, before, row_mass: u64_of(row_low, row_high) }
    }

    /// # Safety
    /// 1. The row's elements are this thread's.
    #[inline(always)]
    unsafe fn store(self, undecided: GlobalMut<u32>, row: usize) {
        let Undecided { first, last, before: Tally { count, mass }, row_mass } = self;
        // SAFETY: the caller's promise.
        unsafe {
            let row = undecided.add(row * UNDECIDED_LEN);
            row.set_vec(0, [first, last, count, 0]);
            let [low, high] = [mass as u32, (mass >> 32) as u32];
            row.set_vec(4, [low, high, row_mass as u32, (row_mass >> 32) as u32]);
        }
    }
}

/// The histograms of all rows in global memory, zeros between the launches.
#[derive(Clone, Copy)]
struct Histogram {
    /// `[num_rows, NUM_BINS]`.
    masses: GlobalMut<u64>,
    /// `[num_rows, NUM_BINS]`.
    counts: GlobalMut<u32>,
}

impl Histogram {
    /// Adds the tallies of the block in shared memory.
    ///
    /// # Safety
    /// 1. `block_histogram` is complete, and all threads of the block call this.
    #[inline(always)]
    unsafe fn add(self, block_histogram: BlockHistogram) {
        let mut bin = thread::thread_idx_x();
        while bin < NUM_BINS {
            // SAFETY: inside by the check; other blocks add to the same elements.
            unsafe {
                let Tally { count, mass } = block_histogram.get(bin);
                if count > 0 {
                    self.counts.fetch_add(bin as usize, count, Order::Relaxed, Scope::Gpu);
                    self.masses.fetch_add(bin as usize, mass, Order::Relaxed, Scope::Gpu);
                }
            }
            bin += NUM_THREADS;
        }
    }

    /// The thread's bins, which are zeros afterwards.
    ///
    /// # Safety
    /// 1. This is the last block.
    #[inline(always)]
    unsafe fn take(self) -> [Tally; BINS_PER_THREAD as usize] {
        let bin = (thread::thread_idx_x() * BINS_PER_THREAD) as usize;
        // SAFETY: the thread's bins, which no other block accesses any more.
        unsafe {
            let [a, b] = self.counts.get_vec::<2>(bin);
            let [a_mass, b_mass] = self.masses.get_vec::<2>(bin);
            self.counts.set_vec(bin, [0_u32; 2]);
            self.masses.set_vec(bin, [0_u64; 2]);
            [Tally { count: a, mass: a_mass }, Tally { count: b, mass: b_mass }]
        }
    }
}

/// The histogram of a block's columns in shared memory.
#[derive(Clone, Copy)]
struct BlockHistogram {
    counts: Shared<u32>,
    /// Lower halves of the masses.
    low: Shared<u32>,
    /// Upper halves of the masses.
    high: Shared<u32>,
}

impl BlockHistogram {
    /// # Safety
    /// 1. All threads of the block call this.
    #[inline(always)]
    unsafe fn clear(self) {
        let mut bin = thread::thread_idx_x();
        while bin < NUM_BINS {
            // SAFETY: inside by the check; a bin of this thread.
            unsafe {
                self.counts.set(bin, 0);
                self.low.set(bin, 0);
                self.high.set(bin, 0);
            }
            bin += NUM_THREADS;
        }
    }

    /// Adds a token.
    ///
    /// # Safety
    /// 1. A barrier is between [`BlockHistogram::clear`] and this.
    #[inline(always)]
    unsafe fn add(self, distance: f32) {
        let (bin, mass) = (bin_of(distance), mass(distance));
        // SAFETY: `bin` is inside.
        unsafe {
            self.counts.fetch_add(bin, 1, Order::Relaxed, Scope::Block);
            let low = mass as u32;
            let old = self.low.fetch_add(bin, low, Order::Relaxed, Scope::Block);
            let carry = u32::from(old.wrapping_add(low) < old);
            let high = (mass >> 32) as u32 + carry;
            if high > 0 {
                self.high.fetch_add(bin, high, Order::Relaxed, Scope::Block);
            }
        }
    }

    /// # Safety
    /// 1. A barrier is between [`BlockHistogram::add`] and this.
    #[inline(always)]
    unsafe fn get(self, bin: u32) -> Tally {
        // SAFETY: the caller's promise.
        unsafe {
            let mass = u64::from(self.high.get(bin)) << 32 | u64::from(self.low.get(bin));
            Tally { count: self.counts.get(bin), mass }
        }
    }
}

/// A block takes `UNROLL * NUM_THREADS` columns of a row; the row's last block finds the undecided bins.
///
/// # Safety
/// 1. `num_rows` is one element; `sampling` holds that many rows of `ROW_SAMPLING_LEN`, `logits` of
///    `vocab_size` (not 0) elements at its stride, `maxima` of `2 * grid_dim_y` that
///    `sample_maximum_f32` has written, `undecided` of `UNDECIDED_LEN`; `masses` and `counts` are as
///    many of `NUM_BINS` zeros, `counters` as many zeros. `sampling` and `undecided` are at multiples
///    of 16 bytes, `masses` too, `counts` of 8.
/// 2. The grid is that of `sample_maximum_f32`.
#[kernel(launch_bounds(NUM_THREADS, 1), overlaps)]
pub unsafe fn sample_histogram_f32(
    num_rows: Global<u32>,
    sampling: Global<u32>,
    vocab_size: u32,
    logits: Global<f32>,
    stride: u32,
    maxima: GlobalMut<u32>,
    masses: GlobalMut<u64>,
    counts: GlobalMut<u32>,
    counters: GlobalMut<u32>,
    undecided: GlobalMut<u32>,
) {
    let row = thread::block_idx_x() as usize;
    let num_blocks = thread::grid_dim_y();
    // SAFETY: one element, a step input: no launch of the step writes it.
    let num_rows = unsafe { num_rows.get(0) };
    grid::wait_for_dependencies();
    grid::launch_dependents();
    // SAFETY: the row is inside by the check; bins and threads are by their loops' bounds. Barriers
    // are between the phases.
    unsafe {
        if row >= num_rows as usize {
            return;
        }
        let sampling = Sampling::load(sampling, row);
        if sampling.is_greedy() || !sampling.is_truncated() {
            return;
        }
        let row_of = Row { logits: logits.add(row * stride as usize), vocab_size };
        let values = row_of.load(thread::block_idx_y());
        let partials = maxima.add(2 * row * num_blocks as usize);
        let largest = BlockBests { partials, num_blocks }.reduce_for_block(shared_array![u32; 2]);
        let Some(maximum) = largest.finite() else { return };
        let block_histogram = BlockHistogram {
            counts: shared_array![u32; NUM_BINS as usize],
            low: shared_array![u32; NUM_BINS as usize],
            high: shared_array![u32; NUM_BINS as usize],
        };
        block_histogram.clear();
        thread::sync_threads();
        unroll!(step in 0..UNROLL as usize, {
            let distance = maximum - values[step];
            if distance < f32::INFINITY {
                block_histogram.add(distance);
            }
        });
        thread::sync_threads();
        let bins = row * NUM_BINS as usize;
        let histogram = Histogram { masses: masses.add(bins), counts: counts.add(bins) };
        histogram.add(block_histogram);
        if !is_last(counters, row, num_blocks, shared_array![u32; 1]) {
            return;
        }
        let [a, b] = histogram.take();
        let tallies = shared_array![u32; TALLIES_LEN as usize];
        let (before, total) = a.plus(b).scan_block(tallies);
        let found = Found { bins: [before, before.plus(a), before.plus(a).plus(b)], total };
        let result = found.undecided(&sampling, tallies);
        if thread::thread_idx_x() == 0 {
            result.store(undecided, row);
        }
    }
}

/// What a thread of the last block knows.
struct Found {
    /// The tokens before the thread's bins, before its second, and through it.
    bins: [Tally; BINS_PER_THREAD as usize + 1],
    total: Tally,
}

impl Found {
    /// The bin where `is_reached` begins to hold, and the tokens before it; the last bin's end if it
    /// never does.
    ///
    /// # Safety
    /// 1. All threads of the block call this, with the same `shared` of [`TALLIES_LEN`] elements at
    ///    a multiple of 16 bytes.
    #[inline(always)]
    unsafe fn first_bin(
        &self,
        is_reached: impl Fn(Tally) -> bool,
        shared: Shared<u32>,
    ) -> (u32, Tally) {
        let first = thread::thread_idx_x() * BINS_PER_THREAD;
        let [before, between, through] = self.bins;
        // SAFETY: one thread writes at most, after a barrier that is after the last use.
        unsafe {
            thread::sync_threads();
            if thread::thread_idx_x() == 0 {
                let Tally { count, mass } = self.total;
                shared.set_vec(0, [count, mass as u32, (mass >> 32) as u32, NUM_BINS]);
            }
            thread::sync_threads();
            if !is_reached(before) && is_reached(through) {
                let in_first = is_reached(between);
                let (bin, Tally { count, mass }) =
                    if in_first { (first, before) } else { (first + 1, between) };
                shared.set_vec(0, [count, mass as u32, (mass >> 32) as u32, bin]);
            }
            thread::sync_threads();
            let [count, low, high, bin] = shared.get_vec(0);
            (bin, Tally { count, mass: u64::from(high) << 32 | u64::from(low) })
        }
    }

    /// The undecided bins.
    ///
    /// # Safety
    /// 1. As [`Found::first_bin`].
    #[inline(always)]
    unsafe fn undecided(&self, sampling: &Sampling, shared: Shared<u32>) -> Undecided {
        let row_mass = self.total.mass;
        // SAFETY: the caller's promise.
        unsafe {
            let top_k = sampling.top_k();
            let (last, before) = self.first_bin(|tally| tally.count >= top_k, shared);
            if !sampling.has_top_p() {
                return Undecided { first: last, last, before, row_mass };
            }
            // Top-k keeps at least this much: the last token of top-p is not before the bin that
            // reaches its share.
            let wanted = sampling.wanted_mass(before.mass);
            let (first, before) = self.first_bin(|tally| tally.mass >= wanted, shared);
            // Where top-k leaves nothing out, top-p's bin is known.
            let last = if last == NUM_BINS { first } else { last };
            Undecided { first, last, before, row_mass }
        }
    }
}
