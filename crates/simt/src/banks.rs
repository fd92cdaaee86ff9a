//! Bank conflicts of shared memory, counted.
//!
//! Lanes run one after the other here: the accesses that a warp would make at once are those of the
//! same place in the source, the n-th of each lane. Together they take as many passes as the bank
//! with most different words; the fewest possible are their words by 32.

use crate::clock::WARP_SIZE;
use std::collections::VecDeque;
use std::panic::Location;

/// Banks, each of four bytes.
const NUM_BANKS: usize = 32;

/// The shared accesses of a warp's lanes that are not yet counted.
#[derive(Default)]
pub(crate) struct WarpAccesses {
    sites: Vec<Site>,
}

/// A place in the source that accesses shared memory.
struct Site {
    location: &'static Location<'static>,
    /// How often each lane was there.
    visits: [usize; WARP_SIZE],
    /// Visits that all lanes have made.
    complete: usize,
    /// For each visit since then the words that lanes have accessed, and how many lanes.
    pending: VecDeque<(Vec<u64>, usize)>,
}

impl WarpAccesses {
    /// Notes an access of one of the warp's `num_lanes` lanes; gives the conflicts of what is
    /// complete now.
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
            site.pending.push_back(Default::default());
        }
        let (words, lanes) = &mut site.pending[visit];
        words.extend(address / 4..(address + len as u64).div_ceil(4));
        *lanes += 1;
        // Every lane's visits come in order: a complete one is the first.
        if *lanes < num_lanes {
            return 0;
        }
        site.complete += 1;
        site.pending.pop_front().map_or(0, |(words, _)| conflicts(words))
    }

    /// The conflicts of what only some lanes have accessed.
    pub fn finish(self) -> u64 {
        let pending = self.sites.into_iter().flat_map(|site| site.pending);
        pending.map(|(words, _)| conflicts(words)).sum()
    }
}

/// Passes that these words take beyond the fewest.
fn conflicts(mut words: Vec<u64>) -> u64 {
    words.sort_unstable();
    words.dedup();
    let mut by_bank = [0; NUM_BANKS];
    for word in &words {
        by_bank[*word as usize % NUM_BANKS] += 1;
    }
    let passes = by_bank.into_iter().max().unwrap_or(0);
    passes - words.len().div_ceil(NUM_BANKS) as u64
}
