//! Which models are loaded, which are to be, and which make room: what happens, as a function of
//! what has happened.
//!
//! ```text
//! Unloaded -> Measuring -> Queued -> Loading -> Loaded -> Unloading -> Unloaded
//! ```
//! Nothing here waits, loads or reads a clock: each method takes the time and returns what is to be
//! done.

use super::keep_alive::KeepAlive;
use super::slot::{Leave, Slot, Stage};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// A request that waits for a model.
pub type Ticket = u64;

/// What all models have together.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// Models at once; none: as many as there is room for.
    pub max_models: Option<usize>,
    /// Bytes of memory; none where the system does not say.
    pub room_bytes: Option<usize>,
}

/// How a model is treated while nobody uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Neither its age nor another model unloads it.
    pub is_pinned: bool,
    /// How long it stays without a request.
    pub keep_alive: KeepAlive,
}

/// Why a request gets no model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// The memory has no room for it, and would not with all others unloaded; says what would fit.
    #[error("{0}")]
    NoRoom(Arc<str>),
    /// It cannot be opened, or its engine cannot.
    #[error("{0}")]
    Failed(Arc<str>),
    /// It was unloaded while the request waited.
    #[error("the model was unloaded before it was ready: ask again")]
    Unloaded,
    /// The server ends.
    #[error("the server is shutting down")]
    ShuttingDown,
}

/// Tells a loader that nobody wants its model any more.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What is to be done. `O` is a model that is opened and measured, `M` one that is loaded.
#[derive(Debug)]
pub enum Action<O, M> {
    /// Open it and count its memory, with `room_bytes` for it: [`Table::measured`] takes the
    /// result.
    Measure { name: String, room_bytes: Option<usize> },
    /// [`Table::loaded`] takes the result, which may be any error once `cancel` is set.
    Load { name: String, opened: O, cancel: Cancel },
    /// [`Table::unloaded`] is told of the end.
    Unload { name: String, model: M },
    /// A request gets its model and the name of it, which it uses until [`Table::release`]; or
    /// none.
    Deliver { ticket: Ticket, result: Result<(String, M), LoadError> },
}

/// What a model is doing, as others see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Unloaded,
    Loading,
    Loaded,
    /// It leaves as soon as its requests have ended.
    Unloading,
}

impl State {
    /// llama.cpp's name.
    pub fn name(self) -> &'static str {
        match self {
            State::Unloaded => "unloaded",
            State::Loading => "loading",
            State::Loaded => "loaded",
            State::Unloading => "unloading",
        }
    }
}

/// A model, as others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    pub name: String,
    pub state: State,
    /// Bytes that it takes.
    pub bytes: usize,
    /// When it is unloaded if no request comes; none: not by itself, or it is not loaded.
    pub expires: Option<Instant>,
    /// Why it was not loaded when it was asked for last.
    pub failure: Option<LoadError>,
}

/// All models that were asked for.
#[derive(Debug)]
pub struct Table<O, M> {
    limits: Limits,
    slots: BTreeMap<String, Slot<O, M>>,
    next_order: u64,
    is_closed: bool,
}

impl<O, M: Clone> Table<O, M> {
    pub fn new(limits: Limits) -> Self {
        Table { limits, slots: BTreeMap::new(), next_order: 0, is_closed: false }
    }

    /// A request wants the model `name`; without a ticket it is only loaded.
    pub fn ask(
        &mut self,
        name: &str,
        policy: Policy,
        ticket: Option<Ticket>,
        now: Instant,
    ) -> Vec<Action<O, M>> {
        let mut actions = Vec::new();
        if self.is_closed {
            actions.extend(
                ticket
                    .map(|ticket| Action::Deliver { ticket, result: Err(LoadError::ShuttingDown) }),
            );
            return actions;
        }
        let new = || Slot {
            stage: Stage::Unloaded,
            policy,
            last_used: now,
            waiting: Vec::new(),
            is_wanted: false,
            leaving: None,
            failure: None,
        };
        let slot = self.slots.entry(name.to_owned()).or_insert_with(new);
        (slot.policy, slot.last_used) = (policy, now);
        match (&mut slot.stage, ticket) {
            (Stage::Loaded { model, num_uses, .. }, Some(ticket)) if slot.leaving.is_none() => {
                *num_uses += 1;
                actions
                    .push(Action::Deliver { ticket, result: Ok((name.to_owned(), model.clone())) });
            }
            (Stage::Loaded { .. }, None) if slot.leaving.is_none() => {}
            (stage, ticket) => {
                // If it is cancelled, it is loaded again.
                if matches!(stage, Stage::Loading { .. }) {
                    slot.leaving = None;
                }
                slot.is_wanted |= ticket.is_none();
                slot.waiting.extend(ticket);
            }
        }
        self.begin(name, &mut actions);
        actions
    }

    /// A request does not wait any more. A model that nobody else waits for is not loaded: what has
    /// begun is cancelled, and those that were to make room for it stay.
    pub fn give_up(&mut self, name: &str, ticket: Ticket) -> Vec<Action<O, M>> {
        let mut actions = Vec::new();
        let Some(slot) = self.slots.get_mut(name) else { return actions };
        slot.waiting.retain(|&waiting| waiting != ticket);
        if slot.is_awaited() {
            return actions;
        }
        match &slot.stage {
            Stage::Queued { .. } => self.leave_queue(name, &mut actions),
            Stage::Loading { cancel, .. } => cancel.set(),
            _ => {}
        }
        actions
    }

    /// A model of the queue is not loaded: those that were to make room for it stay.
    fn leave_queue(&mut self, name: &str, actions: &mut Vec<Action<O, M>>) {
        if let Some(slot) = self.slots.get_mut(name) {
            slot.stage = Stage::Unloaded;
        }
        for (name, slot) in &mut self.slots {
            if slot.leaving == Some(Leave::ForRoom) {
                slot.stay(name, actions);
            }
        }
        self.pump(actions);
    }

    /// A request has ended.
    pub fn release(&mut self, name: &str, now: Instant) -> Vec<Action<O, M>> {
        if let Some(slot) = self.slots.get_mut(name) {
            slot.last_used = now;
            if let Stage::Loaded { num_uses, .. } = &mut slot.stage {
                *num_uses = num_uses.saturating_sub(1);
            }
        }
        self.expire(now)
    }

    /// The model is opened and takes so many bytes, or it cannot be.
    pub fn measured(
        &mut self,
        name: &str,
        result: Result<(O, usize), LoadError>,
    ) -> Vec<Action<O, M>> {
        let mut actions = Vec::new();
        let order = self.next_order;
        let Some(slot) = self.slots.get_mut(name) else { return actions };
        if !matches!(slot.stage, Stage::Measuring) {
            return actions;
        }
        match result {
            _ if !slot.is_awaited() => slot.stage = Stage::Unloaded,
            Ok((opened, bytes)) => {
                slot.stage = Stage::Queued { opened, bytes, order };
                self.next_order += 1;
            }
            Err(error) => slot.fail(&error, &mut actions),
        }
        self.pump(&mut actions);
        actions
    }

    /// The model is loaded and takes so many bytes, or it cannot be.
    pub fn loaded(
        &mut self,
        name: &str,
        result: Result<(M, usize), LoadError>,
        now: Instant,
    ) -> Vec<Action<O, M>> {
        let mut actions = Vec::new();
        let Some(slot) = self.slots.get_mut(name) else { return actions };
        match result {
            Ok((model, bytes)) => {
                (slot.failure, slot.is_wanted, slot.last_used) = (None, false, now);
                slot.stage = Stage::Loaded { model, bytes, num_uses: 0 };
                if slot.leaving.is_none() {
                    slot.stay(name, &mut actions);
                }
            }
            // It ends as it was told to; who has come since gets it loaded again.
            Err(_) if slot.is_cancelled() => {
                (slot.stage, slot.leaving) = (Stage::Unloaded, None);
                self.begin(name, &mut actions);
            }
            Err(error) => slot.fail(&error, &mut actions),
        }
        actions.extend(self.expire(now));
        actions
    }

    /// The memory of the model is returned.
    pub fn unloaded(&mut self, name: &str) -> Vec<Action<O, M>> {
        let mut actions = Vec::new();
        if let Some(slot) = self.slots.get_mut(name) {
            slot.stage = Stage::Unloaded;
            slot.leaving = None;
        }
        self.begin(name, &mut actions);
        self.pump(&mut actions);
        actions
    }

    /// Unloads the model once its requests have ended; those that wait for it get none. `None` if
    /// it is not loaded, and not about to be.
    pub fn unload(&mut self, name: &str, now: Instant) -> Option<Vec<Action<O, M>>> {
        let mut actions = Vec::new();
        let slot = self.slots.get_mut(name)?;
        slot.is_wanted = false;
        slot.deliver_failure(&LoadError::Unloaded, &mut actions);
        match &slot.stage {
            Stage::Unloaded => return None,
            Stage::Measuring => slot.stage = Stage::Unloaded,
            Stage::Queued { .. } => self.leave_queue(name, &mut actions),
            Stage::Loading { cancel, .. } => {
                cancel.set();
                slot.leaving = Some(Leave::Told);
            }
            Stage::Loaded { .. } => slot.leaving = Some(Leave::Told),
            Stage::Unloading { .. } => {}
        }
        actions.extend(self.expire(now));
        Some(actions)
    }

    /// Unloads what has been idle for too long, and what is leaving and idle; loads what there is
    /// room for.
    pub fn expire(&mut self, now: Instant) -> Vec<Action<O, M>> {
        let mut actions = Vec::new();
        for (name, slot) in &mut self.slots {
            let is_due = slot.expires().is_some_and(|expires| expires <= now);
            if slot.is_idle() && (slot.leaving.is_some() || is_due) {
                slot.leave(name, &mut actions);
            }
        }
        self.pump(&mut actions);
        actions
    }

    /// Refuses all requests from now on, those that wait too.
    pub fn close(&mut self) -> Vec<Action<O, M>> {
        self.is_closed = true;
        let mut actions = Vec::new();
        for slot in self.slots.values_mut() {
            slot.is_wanted = false;
            slot.deliver_failure(&LoadError::ShuttingDown, &mut actions);
            match &slot.stage {
                Stage::Queued { .. } => slot.stage = Stage::Unloaded,
                Stage::Loading { cancel, .. } => cancel.set(),
                _ => {}
            }
        }
        actions
    }

    /// The models that are loaded, with their names.
    pub fn models(&self) -> Vec<(String, M)> {
        let model = |(name, slot): (&String, &Slot<O, M>)| match &slot.stage {
            Stage::Loaded { model, .. } => Some((name.clone(), model.clone())),
            _ => None,
        };
        self.slots.iter().filter_map(model).collect()
    }

    /// The loaded model of this name.
    pub fn model(&self, name: &str) -> Option<M> {
        match &self.slots.get(name)?.stage {
            Stage::Loaded { model, .. } => Some(model.clone()),
            _ => None,
        }
    }

    /// All models that were asked for, by name.
    pub fn statuses(&self) -> Vec<Status> {
        self.slots.iter().map(|(name, slot)| slot.status(name)).collect()
    }

    /// Begins to load a model that somebody waits for, if that has not begun.
    fn begin(&mut self, name: &str, actions: &mut Vec<Action<O, M>>) {
        let room_bytes = self.limits.room_bytes.map(|room| room.saturating_sub(self.kept_bytes()));
        let Some(slot) = self.slots.get_mut(name) else { return };
        if slot.is_awaited() && matches!(slot.stage, Stage::Unloaded) && !self.is_closed {
            slot.stage = Stage::Measuring;
            actions.push(Action::Measure { name: name.to_owned(), room_bytes });
        }
    }

    /// Bytes that stay taken.
    fn kept_bytes(&self) -> usize {
        self.slots.values().filter(|slot| slot.policy.is_pinned).map(Slot::bytes).sum()
    }

    /// Loads the models of the queue that there is room for, and makes room for the first that
    /// there is none for.
    fn pump(&mut self, actions: &mut Vec<Action<O, M>>) {
        while let Some((name, bytes)) = self.first_of_queue() {
            if self.has_room(bytes, &[]) {
                let Some(slot) = self.slots.get_mut(&name) else { return };
                let cancel = Cancel::default();
                let loading = Stage::Loading { bytes, cancel: cancel.clone() };
                if let Stage::Queued { opened, .. } = std::mem::replace(&mut slot.stage, loading) {
                    slot.leaving = None;
                    actions.push(Action::Load { name, opened, cancel });
                }
                continue;
            }
            let Some(leaving) = self.choose_to_leave(bytes) else {
                // What is loading may leave later.
                if self.slots.values().any(|slot| matches!(slot.stage, Stage::Loading { .. })) {
                    return;
                }
                let error = LoadError::NoRoom(self.refusal(&name, bytes).into());
                if let Some(slot) = self.slots.get_mut(&name) {
                    slot.fail(&error, actions);
                }
                continue;
            };
            for name in leaving {
                if let Some(slot) = self.slots.get_mut(&name) {
                    slot.leaving.get_or_insert(Leave::ForRoom);
                    if slot.is_idle() {
                        slot.leave(&name, actions);
                    }
                }
            }
            return;
        }
    }

    fn first_of_queue(&self) -> Option<(String, usize)> {
        let queued = self.slots.iter().filter_map(|(name, slot)| match slot.stage {
            Stage::Queued { bytes, order, .. } => Some((order, name, bytes)),
            _ => None,
        });
        queued.min().map(|(_, name, bytes)| (name.clone(), bytes))
    }

    /// Whether a model of `bytes` has room, once those of `without` have left.
    fn has_room(&self, bytes: usize, without: &[String]) -> bool {
        let stay = self.slots.iter().filter(|(name, _)| !without.contains(name));
        let taken: Vec<usize> =
            stay.filter(|(_, slot)| slot.takes_memory()).map(|(_, slot)| slot.bytes()).collect();
        let fits = |room| taken.iter().sum::<usize>().saturating_add(bytes) <= room;
        self.limits.room_bytes.is_none_or(fits)
            && self.limits.max_models.is_none_or(|max| taken.len() < max)
    }

    /// The models that leave for one of `bytes`, with those that do already: idle ones first, and
    /// of them the least recently used. `None` if there are not enough.
    fn choose_to_leave(&self, bytes: usize) -> Option<Vec<String>> {
        let is_leaving = |slot: &Slot<O, M>| slot.leaving.is_some() || slot.is_unloading();
        let leaving = self.slots.iter().filter(|(_, slot)| is_leaving(slot));
        let mut leaving: Vec<String> = leaving.map(|(name, _)| name.clone()).collect();
        let may_leave = |slot: &Slot<O, M>| {
            matches!(slot.stage, Stage::Loaded { .. })
                && slot.leaving.is_none()
                && !slot.policy.is_pinned
        };
        let mut others: Vec<_> = self.slots.iter().filter(|(_, slot)| may_leave(slot)).collect();
        others.sort_by_key(|(_, slot)| (!slot.is_idle(), slot.last_used));
        let mut others = others.into_iter();
        while !self.has_room(bytes, &leaving) {
            leaving.push(others.next()?.0.clone());
        }
        Some(leaving)
    }

    /// Why there is no room for a model of `bytes` with all unloaded that may be.
    fn refusal(&self, name: &str, bytes: usize) -> String {
        let is_kept = |slot: &Slot<O, M>| slot.takes_memory() && slot.policy.is_pinned;
        let pinned = self.slots.iter().filter(|(_, slot)| is_kept(slot));
        let pinned = pinned.map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
        let mib = |bytes: usize| bytes.div_ceil(1 << 20);
        match self.limits.room_bytes.map(|room| room.saturating_sub(self.kept_bytes())) {
            Some(room) if bytes > room => format!(
                "{name} takes {} MiB, and beside the pinned models ({pinned}) there are {} MiB: unload one of them",
                mib(bytes),
                mib(room)
            ),
            _ => format!(
                "pinned models have all places ({pinned}): unload one of them, or raise --models-max"
            ),
        }
    }
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
