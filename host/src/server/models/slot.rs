//! A model of the table: what it is doing, and who waits for it.

use super::keep_alive::KeepAlive;
use super::table::{Action, Cancel, LoadError, Policy, State, Status, Ticket};
use std::time::Instant;

/// What a model is doing.
#[derive(Debug)]
pub enum Stage<O, M> {
    Unloaded,
    Measuring,
    /// It waits for room; the least `order` is served first.
    Queued {
        opened: O,
        bytes: usize,
        order: u64,
    },
    Loading {
        bytes: usize,
        cancel: Cancel,
    },
    Loaded {
        model: M,
        bytes: usize,
        num_uses: usize,
    },
    Unloading {
        bytes: usize,
    },
}

/// Why a model leaves as soon as its requests have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// Somebody said so.
    Told,
    /// Another one needs its room.
    ForRoom,
}

/// A model that was asked for.
#[derive(Debug)]
pub struct Slot<O, M> {
    pub stage: Stage<O, M>,
    pub policy: Policy,
    pub last_used: Instant,
    /// Requests that wait for it.
    pub waiting: Vec<Ticket>,
    /// Somebody asked for it who does not wait.
    pub is_wanted: bool,
    /// New requests wait for it to come back.
    pub leaving: Option<Leave>,
    pub failure: Option<LoadError>,
}

impl<O, M> Slot<O, M> {
    pub fn bytes(&self) -> usize {
        match self.stage {
            Stage::Loading { bytes, .. }
            | Stage::Loaded { bytes, .. }
            | Stage::Unloading { bytes } => bytes,
            Stage::Unloaded | Stage::Measuring | Stage::Queued { .. } => 0,
        }
    }

    pub fn takes_memory(&self) -> bool {
        matches!(self.stage, Stage::Loading { .. } | Stage::Loaded { .. } | Stage::Unloading { .. })
    }

    /// Somebody waits for it, or has asked for it.
    pub fn is_awaited(&self) -> bool {
        self.is_wanted || !self.waiting.is_empty()
    }

    pub fn is_cancelled(&self) -> bool {
        matches!(&self.stage, Stage::Loading { cancel, .. } if cancel.is_set())
    }

    pub fn is_unloading(&self) -> bool {
        matches!(self.stage, Stage::Unloading { .. })
    }

    /// Loaded, and no request uses it.
    pub fn is_idle(&self) -> bool {
        matches!(self.stage, Stage::Loaded { num_uses: 0, .. })
    }

    /// When it is unloaded if it stays idle.
    pub fn expires(&self) -> Option<Instant> {
        match (&self.stage, self.policy) {
            (
                Stage::Loaded { .. },
                Policy { is_pinned: false, keep_alive: KeepAlive::For(time) },
            ) => self.last_used.checked_add(time),
            _ => None,
        }
    }

    /// Begins to unload it.
    pub fn leave(&mut self, name: &str, actions: &mut Vec<Action<O, M>>) {
        let unloading = Stage::Unloading { bytes: self.bytes() };
        match std::mem::replace(&mut self.stage, unloading) {
            Stage::Loaded { model, .. } => {
                actions.push(Action::Unload { name: name.to_owned(), model });
            }
            stage => self.stage = stage,
        }
    }

    /// A loaded model does not leave: those that wait for it get it.
    pub fn stay(&mut self, name: &str, actions: &mut Vec<Action<O, M>>)
    where
        M: Clone,
    {
        let Stage::Loaded { model, num_uses, .. } = &mut self.stage else { return };
        self.leaving = None;
        *num_uses += self.waiting.len();
        let model = || (name.to_owned(), model.clone());
        let deliver = |ticket| Action::Deliver { ticket, result: Ok(model()) };
        actions.extend(self.waiting.drain(..).map(deliver));
    }

    /// It is not loaded, for a reason; the next request tries again.
    pub fn fail(&mut self, error: &LoadError, actions: &mut Vec<Action<O, M>>) {
        self.stage = Stage::Unloaded;
        (self.is_wanted, self.leaving) = (false, None);
        self.failure = Some(error.clone());
        self.deliver_failure(error, actions);
    }

    pub fn deliver_failure(&mut self, error: &LoadError, actions: &mut Vec<Action<O, M>>) {
        let deliver = |ticket| Action::Deliver { ticket, result: Err(error.clone()) };
        actions.extend(self.waiting.drain(..).map(deliver));
    }

    pub fn status(&self, name: &str) -> Status {
        let state = match self.stage {
            Stage::Unloaded => State::Unloaded,
            Stage::Loading { .. } if self.is_cancelled() => State::Unloading,
            Stage::Measuring | Stage::Queued { .. } | Stage::Loading { .. } => State::Loading,
            Stage::Loaded { .. } if self.leaving.is_some() => State::Unloading,
            Stage::Loaded { .. } => State::Loaded,
            Stage::Unloading { .. } => State::Unloading,
        };
        let expires = self.expires();
        Status {
            name: name.to_owned(),
            state,
            bytes: self.bytes(),
            expires,
            failure: self.failure.clone(),
        }
    }
}
