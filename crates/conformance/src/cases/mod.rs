//! All cases, one file an instruction group.

mod barrier;
mod cp_async;
mod math;
mod registers;
mod shuffle;

use crate::Case;

/// All cases, with their inputs and what they should give.
pub fn all() -> Vec<Case> {
    vec![
        registers::case(),
        shuffle::case(),
        barrier::case(),
        cp_async::case(),
        math::rounded(),
        math::approximate(),
    ]
}
