//! A constraint whose masks are timed.

use crate::engine::{Constraint, ConstraintState, SamplingError};
use prometheus_client::metrics::histogram::Histogram;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

/// A constraint that records how long each of its masks takes.
pub(super) struct Timed<C> {
    constraint: Arc<C>,
    seconds: Histogram,
}

impl<C> Timed<C> {
    pub fn new(constraint: Arc<C>, seconds: Histogram) -> Self {
        Timed { constraint, seconds }
    }
}

impl<C: fmt::Debug> fmt::Debug for Timed<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.constraint.fmt(f)
    }
}

impl<C: Constraint> Constraint for Timed<C> {
    fn begin(&self) -> Box<dyn ConstraintState> {
        Box::new(TimedState { state: self.constraint.begin(), seconds: self.seconds.clone() })
    }
}

struct TimedState {
    state: Box<dyn ConstraintState>,
    seconds: Histogram,
}

impl fmt::Debug for TimedState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.state.fmt(f)
    }
}

impl ConstraintState for TimedState {
    fn allowed(&mut self) -> Result<Vec<u32>, SamplingError> {
        let start = Instant::now();
        let allowed = self.state.allowed();
        self.seconds.observe(start.elapsed().as_secs_f64());
        allowed
    }

    fn accept(&mut self, token: u32) -> Result<(), SamplingError> {
        self.state.accept(token)
    }
}
