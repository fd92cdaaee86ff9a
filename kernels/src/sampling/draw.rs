//! The third launch: the race of the kept tokens.
//!
//! Tokens of undecided bins are listed; the row's last block sorts the list and finds the last kept
//! token. A list that is too long, as of a row of equal logits, is not sorted: the last block bisects
//! over the row.

use super::best::{Best, BlockBests};
use super::histogram::{Undecided, bin_of};
use super::noise::GROUP_LEN;
use super::row::{Row, Sampling};
use super::tally::{TALLIES_LEN, Tally};
use super::{BLOCK_COLUMNS, NUM_THREADS, NUM_WARPS, UNROLL, mass};
use cuda_std::atomic::{Order, Scope};
use cuda_std::prelude::*;

/// Tokens of a list.
pub(super) const LIST_LEN: u32 = 4096;

/// Listed tokens of a thread of the last block.
const PER_THREAD: u32 = LIST_LEN / NUM_THREADS;

/// A token by its place in the order: its distance, then its id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct SortKey(u64);

impl SortKey {
    /// After every token.
    const END: SortKey = SortKey(u64::MAX);

    #[inline(always)]
    fn new(distance: f32, token: u32) -> Self {
        SortKey(u64::from(distance.to_bits()) << 32 | u64::from(token))
    }

    #[inline(always)]
    fn distance(self) -> f32 {
        f32::from_bits((self.0 >> 32) as u32)
    }

    #[inline(always)]
    fn token(self) -> u32 {
        self.0 as u32
    }

    /// A token alone; none at the end.
    #[inline(always)]
    fn tally(self) -> Tally {
        if self == SortKey::END {
            Tally::ZERO
        } else {
            Tally { count: 1, mass: mass(self.distance()) }
        }
    }
}

/// What a block of the row knows, once it has read its columns.
struct Race {
    sampling: Sampling,
    undecided: Undecided,
    maximum: f32,
}

impl Race {
    /// The token with its score if min-p keeps it.
    #[inline(always)]
    fn entry(&self, distance: f32, token: u32, bits: u32) -> Best {
        if self.sampling.keeps(distance) {
            Best::new(self.sampling.score(distance, bits), token)
        } else {
            Best::NONE
        }
    }

    /// As [`Race::entry`], with its bits.
    #[inline(always)]
    fn entry_at(&self, key: SortKey) -> Best {
        let token = key.token();
        self.entry(key.distance(), token, self.sampling.noise().bits(token))
    }

    /// Whether a token of an undecided bin is kept, by the tokens before it: `mass` is that of the
    /// tokens that top-k keeps.
    #[inline(always)]
    fn is_kept(&self, before: Tally, mass: u64) -> bool {
        before.count < self.sampling.top_k()
            && (!self.sampling.has_top_p() || before.mass < self.sampling.wanted_mass(mass))
    }

    /// The best of the block's columns whose bins are decided; those of the others go to the list.
    ///
    /// # Safety
    /// 1. `row` holds `vocab_size` elements; `list` has room for `LIST_LEN`, and `len` counts what the
    ///    row's blocks have appended.
    #[inline(always)]
    unsafe fn decided(&self, row: Row, (list, len): (GlobalMut<u64>, GlobalMut<u32>)) -> Best {
        let first = thread::block_idx_y() * BLOCK_COLUMNS + thread::thread_idx_x();
        let Undecided { first: first_bin, last: last_bin, .. } = self.undecided;
        let mut best = Best::NONE;
        unroll!(group in 0..(UNROLL / GROUP_LEN) as usize, {
            let group_first = first + group as u32 * GROUP_LEN * NUM_THREADS;
            // SAFETY: the caller's promise.
            let values = unsafe { row.load_from::<{ GROUP_LEN as usize }>(group_first) };
            let bits = self.sampling.noise().group(group_first);
            unroll!(i in 0..GROUP_LEN as usize, {
                let token = group_first + i as u32 * NUM_THREADS;
                let distance = self.maximum - values[i];
                if distance < f32::INFINITY {
                    let bin = bin_of(distance);
                    if bin < first_bin {
                        best = best.or(self.entry(distance, token, bits[i]));
                    } else if bin <= last_bin {
                        // SAFETY: the caller's promise; the index is inside by the check.
                        unsafe {
                            let index = len.fetch_add(0, 1, Order::Relaxed, Scope::Gpu);
                            if index < LIST_LEN {
                                list.set(index as usize, SortKey::new(distance, token).0);
                            }
                        }
                    }
                }
            });
        });
        best
    }

    /// The thread's best of the listed tokens that are kept.
    ///
    /// # Safety
    /// 1. All threads of the block call this; `keys` has `LIST_LEN` elements, of which the list has
    ///    `len`. `tallies` is as in [`Tally::scan_block`].
    #[inline(always)]
    unsafe fn best_in_list(
        &self,
        list: GlobalMut<u64>,
        len: u32,
        (keys, tallies): (Shared<u64>, Shared<u32>),
    ) -> Best {
        let first = thread::thread_idx_x() * PER_THREAD;
        // SAFETY: indices are inside by the loops' bounds; barriers are between writes and reads.
        unsafe {
            let mut i = thread::thread_idx_x();
            while i < LIST_LEN {
                keys.set(i, if i < len { list.get(i as usize) } else { SortKey::END.0 });
                i += NUM_THREADS;
            }
            sort(keys, len);
            let own = |i: u32| SortKey(keys.get(first + i));
            let mut tally = Tally::ZERO;
            for i in 0..PER_THREAD {
                tally = tally.plus(own(i).tally());
            }
            let (before, total) = tally.scan_block(tallies);
            let first_before = self.undecided.before.plus(before);

            let top_k = self.sampling.top_k();
            let all = self.undecided.before.count + total.count;
            let mut of_top_k = self.undecided.row_mass;
            if top_k <= all {
                let (mut kept, mut before) = (Tally::ZERO, first_before);
                for i in 0..PER_THREAD {
                    let tally = own(i).tally();
                    if before.count < top_k {
                        kept = kept.plus(tally);
                    }
                    before = before.plus(tally);
                }
                let (_, kept) = kept.scan_block(tallies);
                of_top_k = self.undecided.before.plus(kept).mass;
            }
            let (mut best, mut before) = (Best::NONE, first_before);
            for i in 0..PER_THREAD {
                let key = own(i);
                if key != SortKey::END && self.is_kept(before, of_top_k) {
                    best = best.or(self.entry_at(key));
                }
                before = before.plus(key.tally());
            }
            best
        }
    }

    /// The tokens of undecided bins up to `last`.
    ///
    /// # Safety
    /// 1. All threads of the block call this; `tallies` is as in [`Tally::scan_block`].
    #[inline(always)]
    unsafe fn up_to(&self, row: Row, last: SortKey, tallies: Shared<u32>) -> Tally {
        let mut tally = Tally::ZERO;
        let mut token = thread::thread_idx_x();
        while token < row.vocab_size {
            // SAFETY: inside by the check.
            if let Some(key) = unsafe { self.undecided_key(row, token) }
                && key <= last
            {
                tally = tally.plus(key.tally());
            }
            token += NUM_THREADS;
        }
        // SAFETY: the caller's promise.
        unsafe { self.undecided.before.plus(tally.scan_block(tallies).1) }
    }

    /// The key of a token, if its bin is undecided.
    ///
    /// # Safety
    /// 1. `token` is below `vocab_size`.
    #[inline(always)]
    unsafe fn undecided_key(&self, row: Row, token: u32) -> Option<SortKey> {
        // SAFETY: the caller's promise.
        let distance = self.maximum - unsafe { row.logits.get(token as usize) };
        let Undecided { first, last, .. } = self.undecided;
        let bin = bin_of(distance);
        let is_undecided = distance < f32::INFINITY && first <= bin && bin <= last;
        is_undecided.then(|| SortKey::new(distance, token))
    }

    /// The first key up to which there are tokens enough.
    ///
    /// # Safety
    /// 1. As [`Race::up_to`].
    #[inline(always)]
    unsafe fn bisect(
        &self,
        row: Row,
        is_enough: impl Fn(Tally) -> bool,
        tallies: Shared<u32>,
    ) -> SortKey {
        let (mut low, mut high) = (0, SortKey::END.0);
        while low < high {
            let middle = low + (high - low) / 2;
            // SAFETY: the caller's promise; all threads have the same bounds.
            if is_enough(unsafe { self.up_to(row, SortKey(middle), tallies) }) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        SortKey(low)
    }

    /// The thread's best of the kept tokens of undecided bins, without a list.
    ///
    /// # Safety
    /// 1. As [`Race::up_to`].
    #[inline(always)]
    unsafe fn best_in_row(&self, row: Row, tallies: Shared<u32>) -> Best {
        let sampling = &self.sampling;
        // SAFETY: the caller's promise; tokens are below `vocab_size` by the loop's bound.
        unsafe {
            let top_k = sampling.top_k();
            let mut last = match top_k {
                u32::MAX => SortKey::END,
                _ => self.bisect(row, |tally| tally.count >= top_k, tallies),
            };
            if sampling.has_top_p() {
                let of_top_k = match last {
                    SortKey::END => self.undecided.row_mass,
                    _ => self.up_to(row, last, tallies).mass,
                };
                let wanted = sampling.wanted_mass(of_top_k);
                let of_top_p = self.bisect(row, |tally| tally.mass >= wanted, tallies);
                last = if of_top_p < last { of_top_p } else { last };
            }
            let mut best = Best::NONE;
            let mut token = thread::thread_idx_x();
            while token < row.vocab_size {
                if let Some(key) = self.undecided_key(row, token)
                    && key <= last
                {
                    best = best.or(self.entry_at(key));
                }
                token += NUM_THREADS;
            }
            best
        }
    }
}

/// Sorts the first `len` keys by a bitonic network.
///
/// # Safety
/// 1. All threads of the block call this; `keys` has `LIST_LEN` elements, at least `len`, and those
///    from `len` on are [`SortKey::END`].
#[inline(always)]
unsafe fn sort(keys: Shared<u64>, len: u32) {
    let padded_len = len.next_power_of_two();
    let mut size = 2;
    while size <= padded_len {
        let mut stride = size / 2;
        while stride > 0 {
            thread::sync_threads();
            let mut pair = thread::thread_idx_x();
            while pair < padded_len / 2 {
                let low = 2 * pair - pair % stride;
                // SAFETY: `low + stride` is below `padded_len`; each pair is one thread's.
                unsafe {
                    let (a, b) = (keys.get(low), keys.get(low + stride));
                    let is_ascending = low & size == 0;
                    if (a > b) == is_ascending {
                        keys.set(low, b);
                        keys.set(low + stride, a);
                    }
                }
                pair += NUM_THREADS;
            }
            stride /= 2;
        }
        size *= 2;
    }
    thread::sync_threads();
}

/// A block takes `BLOCK_COLUMNS` columns of a row; the row's last block has the race's end.
///
/// # Safety
/// 1. As [`sample_histogram_f32`](super::histogram::sample_histogram_f32()), which has written
///    `undecided` for rows with top-k or top-p; `bests` holds rows of `2 * grid_dim_y`, `lists` of
///    `LIST_LEN`, `lens` and `counters` one zero each, `drawn` an element, and `out` one
///    from element `num_rows[1]` on.
#[kernel(launch_bounds(NUM_THREADS, 1), overlaps)]
pub unsafe fn sample_draw_f32(
    num_rows: Global<u32>,
    sampling: Global<u32>,
    vocab_size: u32,
    logits: Global<f32>,
    stride: u32,
    maxima: GlobalMut<u32>,
    undecided: GlobalMut<u32>,
    bests: GlobalMut<u32>,
    lists: GlobalMut<u64>,
    lens: GlobalMut<u32>,
    counters: GlobalMut<u32>,
    drawn: GlobalMut<u32>,
    out: GlobalMut<u32>,
) {
    let row = thread::block_idx_x() as usize;
    let num_blocks = thread::grid_dim_y();
    // SAFETY: two elements, step inputs: no launch of the step writes them.
    let (num_rows, first_out) = unsafe { (num_rows.get(0), num_rows.get(1) as usize) };
    grid::wait_for_dependencies();
    grid::launch_dependents();
    // SAFETY: the row is inside by the check; barriers are between the phases.
    unsafe {
        if row >= num_rows as usize {
            return;
        }
        let row_sampling = Sampling::load(sampling, row);
        let is_greedy = row_sampling.is_greedy();
        if is_greedy && thread::block_idx_y() > 0 {
            return;
        }
        let best_in_row = |all: GlobalMut<u32>| BlockBests {
            partials: all.add(2 * row * num_blocks as usize),
            num_blocks,
        };
        let largest = best_in_row(maxima).reduce_for_block(shared_array![u32; 2]);
        let (Some(maximum), false) = (largest.finite(), is_greedy) else {
            if thread::block_idx_y() == 0 && thread::thread_idx_x() == 0 {
                out.set(first_out + row, largest.output());
                drawn.set(row, largest.token());
            }
            return;
        };
        let is_truncated = row_sampling.is_truncated();
        let race = Race {
            sampling: row_sampling,
            undecided: match is_truncated {
                true => Undecided::load(undecided.as_global(), row),
                false => Undecided::NONE,
            },
            maximum,
        };
        let row_of = Row { logits: logits.add(row * stride as usize), vocab_size };
        let (list, len) = (lists.add(row * LIST_LEN as usize), lens.add(row));
        let best = race.decided(row_of, (list, len));
        let shared = shared_array![u32; 2 * NUM_WARPS as usize + 1];
        if !best_in_row(bests).finish(best, (counters, row), shared) {
            return;
        }
        let mut best = best_in_row(bests).reduce();
        if is_truncated {
            // Loaded again, which frees registers meanwhile.
            let race = Race {
                sampling: Sampling::load(sampling, row),
                undecided: Undecided::load(undecided.as_global(), row),
                maximum,
            };
            let num_listed = len.get(0);
            let tallies = shared_array![u32; TALLIES_LEN as usize];
            let keys = shared_array![u64; LIST_LEN as usize];
            let listed = match num_listed <= LIST_LEN {
                true => race.best_in_list(list, num_listed, (keys, tallies)),
                false => race.best_in_row(row_of, tallies),
            };
            best = best.or(listed).reduce_block(shared);
            if thread::thread_idx_x() == 0 {
                len.set(0, 0);
            }
        }
        if thread::thread_idx_x() == 0 {
            out.set(first_out + row, best.output());
            drawn.set(row, best.token());
        }
    }
}
