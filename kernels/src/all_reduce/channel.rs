//! The exchange of vectors between blocks of the same index, in lines that hold their flag.
//!
//! A rank stores its vectors in the workspace of every peer. There each channel has two buffers of
//! `[WORLD, 2, vectors]` lines, for even and odd epochs. A rank that sends in epoch `e + 2` has
//! received in epoch `e + 1` from each peer, which sent after its epoch `e` had ended: nobody reads
//! any more what the rank overwrites. With one buffer a rank would overwrite in epoch `e + 1` what a
//! peer may still read in epoch `e`.

use crate::all_reduce::next_epoch;
use crate::element::{Half, VEC_ELEMS};
use cuda_std::{peer, prelude::*, unroll};

/// Lines of a vector of 16 bytes.
pub(super) const VEC_LINES: usize = 2;

/// Lines of a channel for `vectors` vectors of each rank.
pub(super) const fn channel_lines(world: usize, vectors: usize) -> usize {
    2 * world * VEC_LINES * vectors
}

/// A block's channel in one epoch.
#[derive(Clone, Copy)]
pub(super) struct Channel<const WORLD: usize> {
    rank: usize,
    /// The lines of all channels in each rank's workspace, its own included.
    lines: [GlobalMut<u64>; WORLD],
    /// The first line of the epoch's buffer.
    first: usize,
    /// Vectors of a rank, at most.
    vectors: usize,
    epoch: u32,
}

impl<const WORLD: usize> Channel<WORLD> {
    /// Channel `index` in the epoch after `epoch`.
    #[inline(always)]
    pub fn after(
        epoch: u32,
        (index, rank): (u32, u32),
        lines: [GlobalMut<u64>; WORLD],
        vectors: usize,
    ) -> Self {
        let epoch = next_epoch(epoch);
        let buffer = 2 * index as usize + epoch as usize % 2;
        let first = buffer * channel_lines(WORLD, vectors) / 2;
        Channel { rank: rank as usize, lines, first, vectors, epoch }
    }

    /// The number of the epoch.
    #[inline(always)]
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// A line of what `source` sends. Lines of neighbouring vectors are neighbours: a warp's store
    /// is 512 contiguous bytes.
    #[inline(always)]
    fn line(&self, source: usize, half: usize, vector: usize) -> usize {
        self.first + (VEC_LINES * source + half) * self.vectors + vector
    }

    /// Sends a vector to all peers.
    ///
    /// # Safety
    /// 1. `vector` is under the channel's `vectors`, whose lines are in every workspace.
    /// 2. The vector is sent once an epoch.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn send(&self, vector: usize, [a, b, c, d]: [u32; 4]) {
        let (first, second) = (self.line(self.rank, 0, vector), self.line(self.rank, 1, vector));
        unroll!(p in 0..WORLD, {
            if p != self.rank {
                // SAFETY: the caller's promise.
                unsafe {
                    peer::store_flagged(self.lines[p], first, [a, b], self.epoch);
                    peer::store_flagged(self.lines[p], second, [c, d], self.epoch);
                }
            }
        });
    }

    /// Waits for the vector of every peer, and adds them and the rank's `own`, in the order of the
    /// ranks; those of `GROUP` ranks are in registers at a time.
    ///
    /// # Safety
    /// 1. `vector` is under the channel's `vectors`, and all ranks send it.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn receive_sum<E: Half, const GROUP: usize>(
        &self,
        vector: usize,
        own: [u32; 4],
    ) -> [f32; VEC_ELEMS as usize] {
        // SAFETY: the caller's promise.
        unsafe {
            let mut sum = sum_vectors::<E, GROUP>(self.receive(0, vector, own));
            let mut first = GROUP;
            while first < WORLD {
                add_vectors::<E, GROUP>(&mut sum, self.receive(first, vector, own));
                first += GROUP;
            }
            sum
        }
    }

    /// Waits for the vectors of the ranks `first .. first + GROUP`; that of the rank is its `own`.
    ///
    /// # Safety
    /// As [`Channel::receive_sum`].
    #[inline(always)]
    #[track_caller]
    unsafe fn receive<const GROUP: usize>(
        &self,
        first: usize,
        vector: usize,
        own: [u32; 4],
    ) -> [[u32; 4]; GROUP] {
        let (lines, [a, b, c, d]) = (self.own_lines(), own);
        let mut spins = peer::SpinLimit::new();
        loop {
            // All loads are issued before the first flag is tested.
            let mut loaded = [[Some([a, b]), Some([c, d])]; GROUP];
            unroll!(i in 0..GROUP, {
                let source = first + i;
                if source != self.rank {
                    // SAFETY: the caller's promise.
                    unsafe {
                        let line = |half| self.line(source, half, vector);
                        loaded[i][0] = peer::load_flagged(lines, line(0), self.epoch);
                        loaded[i][1] = peer::load_flagged(lines, line(1), self.epoch);
                    }
                }
            });
            let (mut vectors, mut arrived) = ([own; GROUP], true);
            unroll!(i in 0..GROUP, {
                match loaded[i] {
                    [Some([a, b]), Some([c, d])] => vectors[i] = [a, b, c, d],
                    _ => arrived = false,
                }
            });
            if arrived {
                return vectors;
            }
            spins.wait();
        }
    }

    /// The lines in the rank's own workspace.
    #[inline(always)]
    fn own_lines(&self) -> GlobalMut<u64> {
        select(&self.lines, self.rank)
    }
}

/// Element `index`, without an array in memory that is accessed by it.
#[inline(always)]
pub(super) fn select<T: Copy, const N: usize>(all: &[T; N], index: usize) -> T {
    let mut chosen = all[0];
    unroll!(i in 0..N, {
        if i == index {
            chosen = all[i];
        }
    });
    chosen
}

/// The sum of vectors, in order.
#[inline(always)]
pub(super) fn sum_vectors<E: Half, const N: usize>(
    vectors: [[u32; 4]; N],
) -> [f32; VEC_ELEMS as usize] {
    let mut sum = unpack::<E>(vectors[0]);
    unroll!(i in 0..N, {
        if i != 0 {
            add::<E>(&mut sum, vectors[i]);
        }
    });
    sum
}

/// Adds vectors to a sum, in order.
#[inline(always)]
fn add_vectors<E: Half, const N: usize>(
    sum: &mut [f32; VEC_ELEMS as usize],
    vectors: [[u32; 4]; N],
) {
    unroll!(i in 0..N, {
        add::<E>(sum, vectors[i]);
    });
}

#[inline(always)]
fn add<E: Half>(sum: &mut [f32; VEC_ELEMS as usize], vector: [u32; 4]) {
    let values = unpack::<E>(vector);
    unroll!(element in 0..8, {
        sum[element] += values[element];
    });
}

#[inline(always)]
fn unpack<E: Half>(pairs: [u32; 4]) -> [f32; VEC_ELEMS as usize] {
    let [[a, b], [c, d], [e, f], [g, h]] = pairs.map(E::unpack);
    [a, b, c, d, e, f, g, h]
}
