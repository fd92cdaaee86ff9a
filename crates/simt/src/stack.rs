//! Stacks of a kernel's threads.

use std::io;

use corosensei::stack::{DefaultStack, Stack, StackPointer};

/// Bytes of a thread's stack. Only what is touched takes memory; a kernel that needs more dies of a
/// segmentation fault.
const STACK_BYTES: usize = 256 * 1024;

/// What the host's caches hold as one.
const LINE_BYTES: usize = 64;

/// Lines of a page.
const NUM_SHIFTS: usize = 4096 / LINE_BYTES;

/// A stack that starts some lines below the end of its last page. Without that, all threads of a
/// kernel would have the same variable at the same place of a page: in the few lines that a cache
/// has for it.
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
        // An odd step: the shifts of neighbours are far apart, and come to all lines.
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
