//! Progress of reading weights.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::plan::{Dtype, ReadWeightError, Weight, WeightSource};

/// Reading was broken off by who was told of its progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("loading was broken off")]
pub struct BrokenOff;

/// A [`WeightSource`] that reads from another one, and reports after each weight how many bytes of
/// the total have been read. A report that breaks ends the reading with [`BrokenOff`].
///
/// ```
/// use halfwarp::plan::{Plan, WeightSource};
/// use halfwarp::weights::{Checkpoint, Progress};
/// use std::ops::ControlFlow;
///
/// fn with_percent<'a>(checkpoint: &'a Checkpoint, plan: &Plan) -> impl WeightSource + 'a {
///     let total_bytes = plan.weights.iter().map(|weight| weight.bytes()).sum();
///     Progress::new(checkpoint, total_bytes, |done, total| {
///         eprintln!("{} %", 100 * done / total);
///         ControlFlow::Continue(())
///     })
/// }
/// ```
pub struct Progress<'a, F> {
    source: &'a dyn WeightSource,
    total_bytes: usize,
    done_bytes: AtomicUsize,
    report: F,
}

impl<'a, F: Fn(usize, usize) -> ControlFlow<()> + Sync> Progress<'a, F> {
    /// Wraps `source`, of which `total_bytes` will be read; `report` is called with the bytes done
    /// and the total.
    pub fn new(source: &'a dyn WeightSource, total_bytes: usize, report: F) -> Self {
        Progress { source, total_bytes, done_bytes: AtomicUsize::new(0), report }
    }
}

impl<F: Fn(usize, usize) -> ControlFlow<()> + Sync> WeightSource for Progress<'_, F> {
    fn stored(&self, source: &str) -> Option<Dtype> {
        self.source.stored(source)
    }

    fn read(&self, weight: &Weight, out: &mut [u8]) -> Result<(), ReadWeightError> {
        self.source.read(weight, out)?;
        let done = self.done_bytes.fetch_add(out.len(), Ordering::Relaxed) + out.len();
        match (self.report)(done, self.total_bytes) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(ReadWeightError::new(BrokenOff)),
        }
    }
}
