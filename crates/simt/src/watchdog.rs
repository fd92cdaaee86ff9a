//! Ends the process when a thread of a kernel loops without calling an instruction.
//!
//! Threads are coroutines: they stop where they call an instruction, and nowhere else. A loop
//! without one keeps its host thread, which nothing can unwind from outside, so all that is left is
//! a report and the end of the process.

use crate::fault::Party;
use crate::grid::Grids;
use std::io::{Write, stderr};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once, Weak};
use std::thread;
use std::time::Duration;

/// How often launches are looked at. Looks are counted and not seconds: a process that is stopped
/// for a while does not end when it goes on.
const TICK: Duration = Duration::from_secs(1);

/// After so many looks at the same stretch of a thread, it is taken to loop.
const MAX_TICKS: u32 = 10;

/// Launches that the watchdog has not seen yet.
static NEW: Mutex<Vec<Weak<Pulse>>> = Mutex::new(Vec::new());

/// What a launch shows of its progress.
pub(crate) struct Pulse {
    grids: Arc<Grids>,
    /// Grows with every switch of threads and every few instructions; odd while a kernel's code
    /// runs.
    count: AtomicU64,
    /// The thread that runs: linear indices of its block, and in it.
    block: AtomicU64,
    thread: AtomicUsize,
}

impl Pulse {
    /// A thread is about to run.
    pub fn enter(&self, block: u64, thread: usize) {
        self.block.store(block, Ordering::Relaxed);
        self.thread.store(thread, Ordering::Relaxed);
        self.add(1);
    }

    /// It has stopped.
    pub fn leave(&self) {
        self.add(1);
    }

    /// It calls instructions.
    pub fn beat(&self) {
        self.add(2);
    }

    fn add(&self, amount: u64) {
        // The launch's own thread alone writes.
        self.count.store(self.count.load(Ordering::Relaxed) + amount, Ordering::Relaxed);
    }

    fn end_process(&self) -> ! {
        let block = self.block.load(Ordering::Relaxed);
        let kernel = self.grids.of(block).kernel;
        let thread = (block, self.thread.load(Ordering::Relaxed));
        let Party { block, thread, .. } = self.grids.party_at(thread, String::new());
        // Not `eprintln!`, which a test's harness captures. An error of stderr cannot be reported.
        let _ = writeln!(
            stderr(),
            "endless loop in `{kernel}`\n  thread {thread:?} of block {block:?}: it has called no \
             function of cuda_std for {} s, and cannot be stopped elsewhere; this process ends",
            MAX_TICKS
        );
        std::process::exit(1)
    }
}

/// Watches a launch until its pulse is dropped.
pub(crate) fn watch(grids: Arc<Grids>) -> Arc<Pulse> {
    static START: Once = Once::new();
    START.call_once(|| {
        // Without the thread, endless loops are not ended; all else works.
        let _ = thread::Builder::new().name("simt watchdog".to_owned()).spawn(look_again_and_again);
    });
    let (count, block, thread) = Default::default();
    let pulse = Arc::new(Pulse { grids, count, block, thread });
    NEW.lock().expect("nothing panics under this lock").push(Arc::downgrade(&pulse));
    pulse
}

fn look_again_and_again() {
    let mut launches: Vec<(Weak<Pulse>, u64, u32)> = Vec::new();
    loop {
        thread::sleep(TICK);
        let mut new = NEW.lock().expect("nothing panics under this lock");
        launches.extend(new.drain(..).map(|pulse| (pulse, 0, 0)));
        drop(new);
        launches.retain_mut(|(pulse, last, ticks)| {
            let Some(pulse) = pulse.upgrade() else { return false };
            let count = pulse.count.load(Ordering::Relaxed);
            let runs_on = count == *last && count % 2 == 1;
            (*last, *ticks) = (count, if runs_on { *ticks + 1 } else { 0 });
            if *ticks == MAX_TICKS {
                pulse.end_process();
            }
            true
        });
    }
}
