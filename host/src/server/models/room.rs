//! Carries out what [`Table`] says: loads and unloads models in threads of their own, and wakes
//! requests that wait.

use super::table::{Action, Cancel, Limits, LoadError, Policy, Status, Table, Ticket};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;
use tokio::sync::oneshot;

/// Opens, loads and unloads models. Each method may take as long as it likes: it has a thread of
/// its own.
pub trait Loader: Send + Sync + 'static {
    /// A model whose memory is counted, and nothing of it taken.
    type Opened: Send + 'static;
    /// A model that is loaded; a clone is another handle of the same.
    type Loaded: Clone + Send + 'static;

    /// Opens a model, and counts the bytes that it will take, if `room_bytes` are enough.
    ///
    /// # Errors
    /// [`LoadError::NoRoom`], [`LoadError::Failed`].
    fn measure(
        &self,
        name: &str,
        room_bytes: Option<usize>,
    ) -> Result<(Self::Opened, usize), LoadError>;

    /// Loads it; returns the bytes that it takes, too. Once `cancel` is set it ends as soon as it
    /// can.
    ///
    /// # Errors
    /// [`LoadError::Failed`]; any, with all memory returned, if it was cancelled.
    fn load(
        &self,
        name: &str,
        opened: Self::Opened,
        cancel: &Cancel,
    ) -> Result<(Self::Loaded, usize), LoadError>;

    /// Returns its memory, as far as nobody else has a handle of it.
    fn unload(&self, name: &str, loaded: Self::Loaded);

    /// Whether it has failed for good, and has to be loaded again.
    fn is_broken(&self, loaded: &Self::Loaded) -> bool;
}

/// Models that are loaded when they are asked for. No lock is held while one is.
pub struct Room<L: Loader> {
    loader: L,
    table: Mutex<Table<L::Opened, L::Loaded>>,
    /// Where requests wait.
    tickets: Mutex<HashMap<Ticket, Waiting<L>>>,
    next_ticket: AtomicU64,
    num_threads: AtomicUsize,
}

/// Where the model of a request arrives.
type Waiting<L> = oneshot::Sender<Result<Lease<L>, LoadError>>;
type Actions<L> = Vec<Action<<L as Loader>::Opened, <L as Loader>::Loaded>>;

impl<L: Loader> Room<L> {
    pub fn new(loader: L, limits: Limits) -> Arc<Self> {
        Arc::new(Room {
            loader,
            table: Mutex::new(Table::new(limits)),
            tickets: Mutex::default(),
            next_ticket: AtomicU64::new(0),
            num_threads: AtomicUsize::new(0),
        })
    }

    pub fn loader(&self) -> &L {
        &self.loader
    }

    /// The model of this name, loaded if it is not; dropping the future gives up.
    ///
    /// # Errors
    /// Any [`LoadError`].
    pub async fn lease(
        self: &Arc<Self>,
        name: &str,
        policy: Policy,
    ) -> Result<Lease<L>, LoadError> {
        let ticket = self.next_ticket.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = oneshot::channel();
        lock(&self.tickets).insert(ticket, sender);
        let place = Place { room: self, name, ticket };
        let actions = lock(&self.table).ask(name, policy, Some(ticket), Instant::now());
        self.run(actions);
        let result = receiver.await;
        drop(place);
        result.unwrap_or(Err(LoadError::ShuttingDown))
    }

    /// Loads a model for nobody yet.
    pub fn load(self: &Arc<Self>, name: &str, policy: Policy) {
        let actions = lock(&self.table).ask(name, policy, None, Instant::now());
        self.run(actions);
    }

    /// Unloads a model once its requests have ended; `false` if it is neither loaded nor loading.
    pub fn unload(self: &Arc<Self>, name: &str) -> bool {
        let actions = lock(&self.table).unload(name, Instant::now());
        actions.map(|actions| self.run(actions)).is_some()
    }

    /// Unloads what has been idle for too long, and what is broken.
    pub fn tick(self: &Arc<Self>) {
        for (name, model) in self.models() {
            if self.loader.is_broken(&model) {
                self.unload(&name);
            }
        }
        let actions = lock(&self.table).expire(Instant::now());
        self.run(actions);
    }

    /// Refuses all requests from now on.
    pub fn close(self: &Arc<Self>) {
        let actions = lock(&self.table).close();
        self.run(actions);
    }

    /// The models that are loaded.
    pub fn models(&self) -> Vec<(String, L::Loaded)> {
        lock(&self.table).models()
    }

    /// The model of this name, if it is loaded.
    pub fn model(&self, name: &str) -> Option<L::Loaded> {
        lock(&self.table).model(name)
    }

    /// The models that were asked for.
    pub fn statuses(&self) -> Vec<Status> {
        lock(&self.table).statuses()
    }

    /// Threads that load and unload.
    #[cfg(test)]
    pub fn num_threads(&self) -> usize {
        self.num_threads.load(Ordering::SeqCst)
    }

    /// Called without a lock.
    fn run(self: &Arc<Self>, actions: Actions<L>) {
        for action in actions {
            match action {
                Action::Deliver { ticket, result } => self.deliver(ticket, result),
                Action::Measure { name, room_bytes } => {
                    let measure = move |room: &Arc<Self>| {
                        let result = caught(|| room.loader.measure(&name, room_bytes));
                        let actions = lock(&room.table).measured(&name, result);
                        room.run(actions);
                    };
                    self.spawn(measure);
                }
                Action::Load { name, opened, cancel } => self.spawn(move |room| {
                    let result = caught(|| room.loader.load(&name, opened, &cancel));
                    let actions = lock(&room.table).loaded(&name, result, Instant::now());
                    room.run(actions);
                }),
                Action::Unload { name, model } => self.spawn(move |room| {
                    let _ = catch_unwind(AssertUnwindSafe(|| room.loader.unload(&name, model)));
                    let actions = lock(&room.table).unloaded(&name);
                    room.run(actions);
                }),
            }
        }
    }

    /// A thread of its own; where the system has none left this one does it.
    fn spawn(self: &Arc<Self>, work: impl FnOnce(&Arc<Self>) + Send + 'static) {
        self.num_threads.fetch_add(1, Ordering::SeqCst);
        let room = Arc::clone(self);
        let work = Arc::new(Mutex::new(Some(work)));
        let body = {
            let work = Arc::clone(&work);
            move || {
                let work = lock(&work).take();
                work.into_iter().for_each(|work| work(&room));
                room.num_threads.fetch_sub(1, Ordering::SeqCst);
            }
        };
        if thread::Builder::new().name("models".to_owned()).spawn(body).is_err() {
            let work = lock(&work).take();
            work.into_iter().for_each(|work| work(self));
            self.num_threads.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn deliver(self: &Arc<Self>, ticket: Ticket, result: Result<(String, L::Loaded), LoadError>) {
        let result = result.map(|(name, model)| Lease { room: Arc::clone(self), name, model });
        let waiting = lock(&self.tickets).remove(&ticket);
        // One that has gone drops its lease.
        drop(waiting.map(|waiting| waiting.send(result)));
    }
}

/// What panics has failed; what it said is on stderr.
fn caught<T>(load: impl FnOnce() -> Result<T, LoadError>) -> Result<T, LoadError> {
    let caught = catch_unwind(AssertUnwindSafe(load));
    caught.unwrap_or_else(|_| Err(LoadError::Failed("the server met a bug of its own".into())))
}

/// No code panics while it holds a lock and has changed half of a state.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A request that waits; dropping it gives up.
struct Place<'a, L: Loader> {
    room: &'a Arc<Room<L>>,
    name: &'a str,
    ticket: Ticket,
}

impl<L: Loader> Drop for Place<'_, L> {
    fn drop(&mut self) {
        // One that was served is not there any more.
        if lock(&self.room.tickets).remove(&self.ticket).is_some() {
            let actions = lock(&self.room.table).give_up(self.name, self.ticket);
            self.room.run(actions);
        }
    }
}

/// A model that a request uses; it stays loaded until this is dropped.
pub struct Lease<L: Loader> {
    room: Arc<Room<L>>,
    name: String,
    pub model: L::Loaded,
}

impl<L: Loader> Drop for Lease<L> {
    fn drop(&mut self) {
        let actions = lock(&self.room.table).release(&self.name, Instant::now());
        self.room.run(actions);
    }
}

#[cfg(test)]
#[path = "room_tests.rs"]
mod tests;
