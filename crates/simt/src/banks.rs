//! Counts bank conflicts of shared memory.
//!
//! Lanes run one after the other here. The accesses that a warp would make at once are the n-th
//! ones of each lane at the same source line. The hardware serves them in phases: all lanes for
//! accesses of at most 4 bytes, 16 lanes for 8 bytes, 8 lanes for 16 bytes and for each matrix of
//! `ldmatrix` and `stmatrix`. A phase takes as many passes as the number of different words in the
//! worst bank; all but the first are conflicts.

use crate::clock::WARP_SIZE;
use std::collections::VecDeque;
use std::panic::Location;

/// Banks, each of four bytes.
const NUM_BANKS: usize = 32;
const BANK_BYTES: usize = 4;

/// An access of one lane.
#[derive(Clone, Copy)]
struct Access {
    lane: usize,
    address: u64,
    len: usize,
}

/// The shared memory accesses of a warp that are not yet counted.
#[derive(Default)]
pub(crate) struct WarpAccesses {
    sites: Vec<Site>,
    /// Buffers of visits that are counted, for later ones.
    spare: Vec<Vec<Access>>,
}

/// A source line that accesses shared memory.
struct Site {
    location: &'static Location<'static>,
    /// How often each lane was there.
    visits: [usize; WARP_SIZE],
    /// Visits that all lanes have made.
    complete: usize,
    /// For each visit since then the accesses of lanes.
    pending: VecDeque<Vec<Access>>,
}

impl WarpAccesses {
    /// Notes an access of one of the warp's `num_lanes` lanes; gives the conflicts of the visit
    /// that it completes.
    pub fn note(
        &mut self,
        (lane, num_lanes): (usize, usize),
        location: &'static Location<'static>,
        (address, len): (u64, usize),
    ) -> u64 {
        let known = self.sites.iter().position(|site| std::ptr::eq(site.location, location));
        let site = known.unwrap_or_else(|| {
            let (visits, pending) = ([0; WARP_SIZE], VecDeque::new());
            self.sites.push(Site { location, visits, complete: 0, pending });
            self.sites.len() - 1
        });
        let site = &mut self.sites[site];
        let visit = site.visits[lane] - site.complete;
        site.visits[lane] += 1;
        if visit == site.pending.len() {
            let room = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(WARP_SIZE));
            site.pending.push_back(room);
        }
        let accesses = &mut site.pending[visit];
        accesses.push(Access { lane, address, len });
        // Each lane's visits are in order, so the first pending visit is completed first.
        if accesses.len() < num_lanes {
            return 0;
        }
        site.complete += 1;
        site.pending.pop_front().map_or(0, |mut accesses| {
            let passes = conflicts(&accesses);
            accesses.clear();
            self.spare.push(accesses);
            passes
        })
    }

    /// The conflicts of visits that only some lanes have made.
    pub fn finish(self) -> u64 {
        let pending = self.sites.into_iter().flat_map(|site| site.pending);
        pending.map(|accesses| conflicts(&accesses)).sum()
    }
}

/// Passes that these accesses take, minus one for each phase.
fn conflicts(accesses: &[Access]) -> u64 {
    let widest = accesses.iter().map(|access| access.len).max().unwrap_or(0);
    let lanes_per_phase = NUM_BANKS / widest.div_ceil(BANK_BYTES).clamp(1, NUM_BANKS);
    (0..WARP_SIZE)
        .step_by(lanes_per_phase)
        .map(|first| {
            let lanes = first..first + lanes_per_phase;
            conflicts_of_phase(accesses.iter().filter(|access| lanes.contains(&access.lane)))
        })
        .sum()
}

/// Passes that these accesses take, minus one.
fn conflicts_of_phase<'a>(accesses: impl Iterator<Item = &'a Access> + Clone) -> u64 {
    let word = |address: u64| address / BANK_BYTES as u64;
    let words = accesses
        .flat_map(|access| word(access.address)..=word(access.address + access.len as u64 - 1));
    // In the common case no bank has two words, and no list is needed.
    let mut only_word = [None; NUM_BANKS];
    let is_only = |word: u64| *only_word[word as usize % NUM_BANKS].get_or_insert(word) == word;
    if words.clone().all(is_only) {
        return 0;
    }
    let mut words: Vec<u64> = words.collect();
    words.sort_unstable();
    words.dedup();
    let mut by_bank = [0_u64; NUM_BANKS];
    for word in words {
        by_bank[word as usize % NUM_BANKS] += 1;
    }
    by_bank.into_iter().max().unwrap_or(0).saturating_sub(1)
}
