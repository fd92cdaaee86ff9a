//! Operands A of `wgmma` in registers: a thread writes one, and releases its registers later.
//!
//! An operation reads them until its group has been waited for, and sees what was written before
//! the thread's last `wgmma.fence`.

use std::collections::HashMap;

use crate::fault::FaultKind;
use crate::machine::{At, Machine};

/// The fragments whose registers are not released, by key.
#[derive(Default)]
pub(crate) struct FragmentsA {
    by_key: HashMap<u64, FragmentA>,
    next: u64,
}

/// One thread's fragment of A.
struct FragmentA {
    /// Where it was written, and after how many of the thread's `wgmma.fence`.
    written: At,
    fences: u32,
    /// The last operation that reads it: its group, and where it was started.
    read: Option<(u32, At)>,
}

impl Machine {
    /// The thread executes `wgmma.fence`.
    pub fn fence_products(&mut self) {
        self.product_thread().product_fences += 1;
    }

    /// The thread has written a fragment; gives its key.
    pub fn write_fragment_a(&mut self, written: At) -> u64 {
        let fences = self.product_thread().product_fences;
        let fragments = &mut self.fragments_a;
        fragments.next += 1;
        fragments.by_key.insert(fragments.next, FragmentA { written, fences, read: None });
        fragments.next
    }

    /// The thread starts an operation of its open group that reads a fragment.
    pub fn read_fragment_a(&mut self, key: u64, location: At) -> Result<(), FaultKind> {
        let thread = self.product_thread();
        let (fences, epoch) = (thread.product_fences, thread.products.epoch());
        let fragment = self.fragments_a.by_key.get_mut(&key);
        let fragment = fragment.expect("a fragment exists until it is released");
        if fragment.fences == fences {
            return Err(FaultKind::Invalid(format!(
                "wgmma.mma_async reads registers of A that were written at {} with no wgmma.fence \
                 since",
                fragment.written
            )));
        }
        fragment.read = Some((epoch, location));
        Ok(())
    }

    /// The registers of a fragment can be written from now on; an error comes with where the
    /// fragment was made.
    pub fn release_fragment_a(&mut self, key: u64) -> Result<(), (FaultKind, At)> {
        let done = self.product_thread().products_done;
        let Some(FragmentA { written, read, .. }) = self.fragments_a.by_key.remove(&key) else {
            return Ok(());
        };
        let Some((_, started)) = read.filter(|&(epoch, _)| epoch > done) else { return Ok(()) };
        let why = format!(
            "registers of A are released while a wgmma.mma_async may still read them, which was \
             started at {started}: keep the fragment until its group has been waited for \
             (wgmma.commit_group, wgmma.wait_group)"
        );
        Err((FaultKind::Invalid(why), written))
    }

    fn product_thread(&mut self) -> &mut crate::block::Thread {
        let thread = self.current.1;
        &mut self.block().threads[thread]
    }
}
