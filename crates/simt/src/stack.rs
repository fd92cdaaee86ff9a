//! Stacks of a kernel's threads.

use std::io;

use corosensei::stack::{DefaultStack, Stack, StackPointer};

/// Bytes of a thread's stack. Only touched pages take memory. A stack overflow is a segmentation
/// fault.
const STACK_BYTES: usize = 256 * 1024;

/// Bytes of a cache line of the host.
const LINE_BYTES: usize = 64;

/// Cache lines of a page.
const NUM_SHIFTS: usize = 4096 / LINE_BYTES;

/// A stack that starts some cache lines below the end of its last page. Otherwise a variable would
/// have the same page offset in all threads, and they would compete for the few cache lines of that
/// offset.
pub(crate) struct ShiftedStack {
    stack: DefaultStack,
    shift: usize,
}

impl ShiftedStack {
    /// The stack of this number.
    ///
    /// # Errors
    /// The host has no memory for it.
    pub fn new(number: usize) -> io::Result<Self> {
        // The step is odd, so that shifts cover all lines, and those of neighbours are far apart.
        let shift = number * 27 % NUM_SHIFTS * LINE_BYTES;
        Ok(ShiftedStack { stack: DefaultStack::new(STACK_BYTES)?, shift })
    }
}

// SAFETY: between `base` and `limit` is memory of the stack inside, which outlives this; its guard
// page is at the same end, the base is as aligned, and far more than the least size is left.
unsafe impl Stack for ShiftedStack {
    fn base(&self) -> StackPointer {
        let base = self.stack.base().get() - self.shift;
        StackPointer::new(base).expect("an address inside of the stack")
    }

    fn limit(&self) -> StackPointer {
        self.stack.limit()
    }
}
