//! The plans that an executor has prepared, and the handles that it gives out for them.

use super::ExecError;
use std::sync::atomic::{AtomicU64, Ordering};

/// A plan that an executor has prepared ([`Executor::prepare`](super::Executor::prepare)): of use
/// to that executor alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PreparedPlan {
    executor: u64,
    index: usize,
}

/// What an executor keeps of each plan that it has prepared.
#[derive(Debug)]
pub(super) struct Prepared<T> {
    /// The number of the executor in this process.
    executor: u64,
    plans: Vec<T>,
}

impl<T> Prepared<T> {
    /// No plan, of a new executor.
    pub fn new() -> Self {
        static EXECUTORS: AtomicU64 = AtomicU64::new(0);
        let executor = EXECUTORS.fetch_add(1, Ordering::Relaxed);
        Prepared { executor, plans: Vec::new() }
    }

    /// Keeps `plan`.
    pub fn push(&mut self, plan: T) -> PreparedPlan {
        self.plans.push(plan);
        PreparedPlan { executor: self.executor, index: self.plans.len() - 1 }
    }

    /// The plan of this handle.
    ///
    /// # Errors
    /// [`ExecError::Step`] for the handle of another executor.
    pub fn get(&self, plan: PreparedPlan) -> Result<&T, ExecError> {
        match self.plans.get(plan.index) {
            Some(prepared) if plan.executor == self.executor => Ok(prepared),
            _ => Err(ExecError::Step("the plan was prepared by another executor".to_owned())),
        }
    }

    /// All plans, in the order in which they were prepared.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.plans.iter()
    }

    /// Drops all plans.
    pub fn clear(&mut self) {
        self.plans.clear();
    }
}
