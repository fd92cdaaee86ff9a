//! Timing on the device: a prepared plan's graph between two events.

use cust::event::{Event, EventFlags};

use super::device::{failed, make_current};
use super::{CudaExecutor, CudaPlan};
use crate::exec::{ExecError, PreparedPlan};

impl CudaExecutor {
    /// Replays the graph of `plan` `replays` times, one after the other, on the step inputs of the
    /// last [`run`](crate::exec::Executor::run) of it, and returns the time of one replay in
    /// microseconds.
    ///
    /// # Errors
    /// [`ExecError::Step`] for a plan that was not prepared, [`ExecError::Driver`].
    pub fn time_us(&mut self, plan: PreparedPlan, replays: usize) -> Result<f64, ExecError> {
        let CudaPlan { graph, .. } = self.prepared.get(plan)?;
        make_current(self.context)?;
        let event = || Event::new(EventFlags::DEFAULT).map_err(failed("making an event"));
        let (start, stop) = (event()?, event()?);
        let record = |event: &Event| event.record(&self.stream).map_err(failed("timing"));
        record(&start)?;
        let launched = (0..replays).try_for_each(|_| graph.launch(&self.stream));
        record(&stop)?;
        stop.synchronize().map_err(failed("running a graph"))?;
        launched?;
        let ms = stop.elapsed_time_f32(&start).map_err(failed("timing"))?;
        Ok(f64::from(ms) * 1e3 / replays as f64)
    }
}
