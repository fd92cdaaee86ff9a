//! A room whose loader waits for the test.

use super::super::keep_alive::KeepAlive;
use super::super::table::State;
use super::*;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::mpsc;
use std::task::Poll;
use std::time::Duration;
use tokio::runtime;
use tokio::task::yield_now;

const STAYS: Policy = Policy { is_pinned: false, keep_alive: KeepAlive::Always };

/// Each load takes an order, unless it is cancelled before: what is not `Ok` fails.
struct Scripted {
    orders: Mutex<mpsc::Receiver<Result<(), &'static str>>>,
    num_loads: AtomicUsize,
    num_unloads: AtomicUsize,
}

impl Loader for Scripted {
    type Opened = String;
    type Loaded = Arc<String>;

    fn measure(&self, name: &str, _: Option<usize>) -> Result<(String, usize), LoadError> {
        Ok((name.to_owned(), 1))
    }

    fn load(
        &self,
        name: &str,
        opened: String,
        cancel: &Cancel,
    ) -> Result<(Arc<String>, usize), LoadError> {
        assert_eq!(name, opened);
        self.num_loads.fetch_add(1, Ordering::SeqCst);
        let order = loop {
            match lock(&self.orders).try_recv() {
                Ok(order) => break order,
                Err(_) if cancel.is_set() => return Err(LoadError::Failed("broken off".into())),
                Err(_) => thread::sleep(Duration::from_millis(1)),
            }
        };
        match order {
            Ok(()) => Ok((Arc::new(opened), 1)),
            Err("panic") => panic!("a loader that panics"),
            Err(why) => Err(LoadError::Failed(why.into())),
        }
    }

    fn unload(&self, _: &str, _: Arc<String>) {
        self.num_unloads.fetch_add(1, Ordering::SeqCst);
    }

    fn is_broken(&self, loaded: &Arc<String>) -> bool {
        loaded.starts_with("broken")
    }
}

type Orders = mpsc::Sender<Result<(), &'static str>>;

fn room(max_models: Option<usize>) -> (Arc<Room<Scripted>>, Orders) {
    let (orders, receiver) = mpsc::channel();
    let (num_loads, num_unloads) = Default::default();
    let loader = Scripted { orders: Mutex::new(receiver), num_loads, num_unloads };
    (Room::new(loader, Limits { max_models, room_bytes: None }), orders)
}

/// Whether a future is not ready, polled once.
async fn is_pending<F: Future>(mut future: Pin<&mut F>) -> bool {
    poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_pending())).await
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

/// Waits until `is_so`.
fn until(is_so: impl Fn() -> bool) {
    while !is_so() {
        thread::sleep(Duration::from_millis(1));
    }
}

fn state(room: &Room<Scripted>, name: &str) -> State {
    let statuses = room.statuses();
    statuses.iter().find(|status| status.name == name).map_or(State::Unloaded, |it| it.state)
}

#[test]
fn requests_share_a_load_and_its_failure() {
    let (room, orders) = room(None);
    let both = |order| {
        let (room, orders) = (&room, &orders);
        async move {
            let mut first = std::pin::pin!(room.lease("a", STAYS));
            let mut second = std::pin::pin!(room.lease("a", STAYS));
            // Both wait before there is anything to have.
            assert!(is_pending(first.as_mut()).await && is_pending(second.as_mut()).await);
            orders.send(order).unwrap();
            tokio::join!(first, second)
        }
    };
    block_on(async {
        let (first, second) = both(Err("bad luck")).await;
        let failed = LoadError::Failed("bad luck".into());
        assert_eq!([first.err(), second.err()], [Some(failed.clone()), Some(failed)]);
        orders.send(Err("panic")).unwrap();
        let panicked = room.lease("a", STAYS).await.err().unwrap();
        assert_eq!(panicked.to_string(), "the server met a bug of its own");
        let (first, second) = both(Ok(())).await;
        let (first, second) = (first.unwrap(), second.unwrap());
        assert!(Arc::ptr_eq(&first.model, &second.model));
        assert_eq!(room.loader().num_loads.load(Ordering::SeqCst), 3);
    });
}

#[test]
fn a_load_keeps_nobody_from_a_model_that_is_there() {
    let (room, orders) = room(None);
    block_on(async {
        orders.send(Ok(())).unwrap();
        drop(room.lease("a", STAYS).await);
        let mut waits = std::pin::pin!(room.lease("b", STAYS));
        assert!(is_pending(waits.as_mut()).await);
        until(|| room.loader().num_loads.load(Ordering::SeqCst) == 2);
        // On this thread, while the loader of the other holds whatever it holds.
        assert!(room.lease("a", STAYS).await.is_ok());
        assert_eq!(state(&room, "b"), State::Loading);
        orders.send(Ok(())).unwrap();
        assert!(waits.await.is_ok());
    });
}

#[test]
fn a_future_that_is_dropped_gives_up() {
    let (room, orders) = room(Some(1));
    block_on(async {
        orders.send(Ok(())).unwrap();
        let used = room.lease("a", STAYS).await.unwrap();
        {
            let mut waits = std::pin::pin!(room.lease("b", STAYS));
            assert!(is_pending(waits.as_mut()).await);
            until(|| room.num_threads() == 0);
            assert_eq!(state(&room, "a"), State::Unloading);
        }
        assert_eq!([state(&room, "a"), state(&room, "b")], [State::Loaded, State::Unloaded]);
        assert!(lock(&room.tickets).is_empty());
        drop(used);
        assert_eq!(state(&room, "a"), State::Loaded);
    });
}

#[test]
fn a_load_ends_when_all_that_wait_for_it_have_left() {
    let (room, orders) = room(Some(1));
    block_on(async {
        {
            let mut first = std::pin::pin!(room.lease("a", STAYS));
            let mut second = std::pin::pin!(room.lease("a", STAYS));
            assert!(is_pending(first.as_mut()).await && is_pending(second.as_mut()).await);
            until(|| room.loader().num_loads.load(Ordering::SeqCst) == 1);
        }
        // Nobody has told the loader to end.
        until(|| room.num_threads() == 0);
        assert_eq!(state(&room, "a"), State::Unloaded);
        assert_eq!(room.statuses()[0].failure, None);
        orders.send(Ok(())).unwrap();
        assert!(room.lease("b", STAYS).await.is_ok(), "its room is free");
        // Who comes right after is served.
        {
            let mut waits = std::pin::pin!(room.lease("a", STAYS));
            assert!(is_pending(waits.as_mut()).await);
            until(|| room.loader().num_loads.load(Ordering::SeqCst) == 3);
        }
        let mut waits = std::pin::pin!(room.lease("a", STAYS));
        assert!(is_pending(waits.as_mut()).await);
        until(|| room.loader().num_loads.load(Ordering::SeqCst) == 4);
        orders.send(Ok(())).unwrap();
        assert!(waits.await.is_ok());
    });
}

#[test]
fn many_swaps_leave_nothing() {
    let (room, orders) = room(Some(1));
    block_on(async {
        for turn in 0..200 {
            orders.send(Ok(())).unwrap();
            let lease = room.lease(["a", "b", "c"][turn % 3], STAYS).await.unwrap();
            yield_now().await;
            drop(lease);
        }
        room.unload("b");
    });
    until(|| room.num_threads() == 0);
    let loader = room.loader();
    let counts = [&loader.num_loads, &loader.num_unloads];
    assert_eq!(counts.map(|count| count.load(Ordering::SeqCst)), [200, 200]);
    assert!(room.models().is_empty() && lock(&room.tickets).is_empty());
    assert_eq!(Arc::strong_count(&room), 1);
}

#[test]
fn a_model_that_is_broken_is_unloaded() {
    let (room, orders) = room(None);
    block_on(async {
        orders.send(Ok(())).unwrap();
        drop(room.lease("broken", STAYS).await);
        orders.send(Ok(())).unwrap();
        drop(room.lease("good", STAYS).await);
    });
    room.tick();
    until(|| room.num_threads() == 0);
    assert_eq!([state(&room, "broken"), state(&room, "good")], [State::Unloaded, State::Loaded]);
}

#[test]
fn a_closed_room_wakes_those_that_wait() {
    let (room, orders) = room(None);
    block_on(async {
        let mut waits = std::pin::pin!(room.lease("a", STAYS));
        assert!(is_pending(waits.as_mut()).await);
        room.close();
        assert_eq!(waits.await.err(), Some(LoadError::ShuttingDown));
        assert_eq!(room.lease("a", STAYS).await.err(), Some(LoadError::ShuttingDown));
    });
    drop(orders);
    until(|| room.num_threads() == 0);
}
