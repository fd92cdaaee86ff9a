//! One of the devices that compute a model together.

use std::ops::Range;

/// One of the devices that compute a model together (tensor parallelism, arXiv:1909.08053). Each has its own plan, of its
/// share of every weight; the plans of a world have the same operations, and meet in those that
/// [are collective](super::Op::is_collective).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rank {
    /// Number of the rank, from 0 on.
    pub index: usize,
    /// How many there are.
    pub world: usize,
}

impl Rank {
    /// The only one.
    pub const ALONE: Rank = Rank { index: 0, world: 1 };

    /// All ranks of a world.
    pub fn all(world: usize) -> impl Iterator<Item = Rank> {
        (0..world).map(move |index| Rank { index, world })
    }

    /// Whether there is no other.
    pub fn is_alone(self) -> bool {
        self.world == 1
    }

    /// The rank's share of `len` elements, in whole units of `unit` but for the last one: the ranks' shares follow one
    /// another, and differ by a unit at most.
    pub fn share(self, len: usize, unit: usize) -> Range<usize> {
        let num_units = len.div_ceil(unit);
        let start = |index: usize| (num_units * index / self.world * unit).min(len);
        start(self.index)..start(self.index + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_follow_one_another_in_whole_units() {
        for (len, unit, wanted) in [
            (8, 1, vec![0..2, 2..4, 4..6, 6..8]),
            (19 * 256, 256, vec![0..1024, 1024..2304, 2304..3584, 3584..4864]),
            (100, 32, vec![0..32, 32..64, 64..96, 96..100]),
            (32, 16, vec![0..0, 0..16, 16..16, 16..32]),
        ] {
            let shares: Vec<_> = Rank::all(4).map(|rank| rank.share(len, unit)).collect();
            assert_eq!(shares, wanted, "{len} in units of {unit}");
            assert_eq!(Rank::ALONE.share(len, unit), 0..len);
        }
    }
}
