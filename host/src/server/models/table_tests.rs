//! Scripts of what happens, by a clock that the script winds: every action is named.

use super::*;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const STAYS: Policy = Policy { is_pinned: false, keep_alive: KeepAlive::Always };
const PINNED: Policy = Policy { is_pinned: true, keep_alive: KeepAlive::For(Duration::ZERO) };

/// A table whose loader does at once what it is told, unless the script says otherwise. Models are
/// called by a letter, and what was done by a word each.
struct Script {
    table: Table<&'static str, &'static str>,
    now: Instant,
    sizes: BTreeMap<&'static str, usize>,
    next: Ticket,
    /// Loads and unloads that the script ends by itself.
    is_slow: bool,
    /// Switches of the loads that go on.
    cancels: BTreeMap<&'static str, Cancel>,
    log: Vec<String>,
}

fn named(name: &str) -> &'static str {
    ["a", "b", "c", "d"].into_iter().find(|known| *known == name).unwrap()
}

impl Script {
    fn new(max_models: Option<usize>, room_bytes: Option<usize>) -> Script {
        let limits = Limits { max_models, room_bytes };
        let sizes = BTreeMap::from([("a", 4), ("b", 4), ("c", 4), ("d", 8)]);
        let table = Table::new(limits);
        let (log, cancels) = Default::default();
        Script { table, now: Instant::now(), sizes, next: 0, is_slow: false, cancels, log }
    }

    fn ask(&mut self, name: &str) -> Ticket {
        self.ask_as(name, STAYS)
    }

    /// A second later than what was before.
    fn ask_as(&mut self, name: &str, policy: Policy) -> Ticket {
        self.now += SECOND;
        self.next += 1;
        let actions = self.table.ask(name, policy, Some(self.next), self.now);
        self.run(actions);
        self.next
    }

    fn release(&mut self, name: &str) {
        self.now += SECOND;
        let actions = self.table.release(name, self.now);
        self.run(actions);
    }

    /// A request that ends as soon as it has its model.
    fn visit(&mut self, name: &str) {
        self.ask(name);
        self.release(name);
    }

    fn run(&mut self, actions: Vec<Action<&'static str, &'static str>>) {
        for action in actions {
            match action {
                Action::Measure { name, room_bytes } => {
                    let bytes = self.sizes[&*name];
                    let result = match room_bytes {
                        Some(room) if bytes > room => Err(LoadError::NoRoom(
                            format!("{name} takes {bytes}, there are {room}").into(),
                        )),
                        _ => Ok((named(&name), bytes)),
                    };
                    let next = self.table.measured(&name, result);
                    self.run(next);
                }
                Action::Load { name, opened, cancel } => {
                    assert_eq!(name, opened);
                    assert!(!cancel.is_set());
                    self.log.push(format!("load {name}"));
                    self.cancels.insert(named(&name), cancel);
                    if !self.is_slow {
                        self.loaded(&name);
                    }
                }
                Action::Unload { name, model } => {
                    assert_eq!(name, model);
                    self.log.push(format!("unload {name}"));
                    if !self.is_slow {
                        self.unloaded(&name);
                    }
                }
                Action::Deliver { ticket, result } => self.log.push(match result {
                    Ok((_, model)) => format!("{ticket} gets {model}"),
                    Err(error) => format!("{ticket} fails: {error}"),
                }),
            }
        }
    }

    fn loaded(&mut self, name: &str) {
        let result = Ok((named(name), self.sizes[name]));
        let actions = self.table.loaded(name, result, self.now);
        self.run(actions);
    }

    fn load_fails(&mut self, name: &str, why: &str) {
        let actions = self.table.loaded(name, Err(LoadError::Failed(why.into())), self.now);
        self.run(actions);
    }

    fn unloaded(&mut self, name: &str) {
        let actions = self.table.unloaded(name);
        self.run(actions);
    }

    fn give_up(&mut self, name: &str, ticket: Ticket) {
        let actions = self.table.give_up(name, ticket);
        self.run(actions);
    }

    fn unload(&mut self, name: &str) -> bool {
        match self.table.unload(name, self.now) {
            Some(actions) => {
                self.run(actions);
                true
            }
            None => false,
        }
    }

    fn after(&mut self, time: Duration) {
        self.now += time;
        let actions = self.table.expire(self.now);
        self.run(actions);
    }

    /// What was done since it was asked last.
    fn log(&mut self) -> String {
        std::mem::take(&mut self.log).join(", ")
    }

    fn state(&self, name: &str) -> State {
        let statuses = self.table.statuses();
        statuses.iter().find(|status| status.name == name).unwrap().state
    }
}

#[test]
fn a_model_is_loaded_once_for_all_that_wait() {
    let mut script = Script::new(None, None);
    script.is_slow = true;
    let (first, second) = (script.ask("a"), script.ask("a"));
    assert_eq!((script.log().as_str(), script.state("a")), ("load a", State::Loading));
    script.loaded("a");
    assert_eq!(script.log(), format!("{first} gets a, {second} gets a"));
    assert_eq!(script.state("a"), State::Loaded);
    let third = script.ask("a");
    assert_eq!(script.log(), format!("{third} gets a"));
}

#[test]
fn the_least_recently_used_one_that_is_idle_makes_room() {
    let mut script = Script::new(None, Some(12));
    ["a", "b", "c"].into_iter().for_each(|name| script.visit(name));
    // Used again, it is the newest.
    script.visit("a");
    script.log();
    script.ask("d");
    assert_eq!(script.log(), "unload b, unload c, load d, 5 gets d");
    assert_eq!([script.state("a"), script.state("b")], [State::Loaded, State::Unloaded]);
    // A model that is used stays, though it was used before the others.
    let mut script = Script::new(Some(2), None);
    script.ask("a");
    script.visit("b");
    script.log();
    script.ask("c");
    assert_eq!(script.log(), "unload b, load c, 3 gets c");
}

#[test]
fn memory_is_taken_until_it_is_returned() {
    let mut script = Script::new(None, Some(8));
    script.visit("a");
    script.visit("b");
    script.is_slow = true;
    script.log();
    script.ask("c");
    assert_eq!((script.log().as_str(), script.state("a")), ("unload a", State::Unloading));
    // Another one that waits does not take the room, and no more leave than have to.
    script.ask("a");
    assert_eq!(script.log(), "");
    script.unloaded("a");
    assert_eq!(script.log(), "unload b, load c");
    script.loaded("c");
    script.unloaded("b");
    assert_eq!(script.log(), "3 gets c, load a");
}

#[test]
fn a_busy_model_leaves_when_its_requests_have_ended() {
    let mut script = Script::new(Some(1), None);
    let (first, _) = (script.ask("a"), script.ask("a"));
    script.log();
    let second = script.ask("b");
    assert_eq!((script.log().as_str(), script.state("a")), ("", State::Unloading));
    // Who comes later waits for its turn, so that `b` has one.
    let third = script.ask("a");
    script.release("a");
    assert_eq!(script.log(), "", "one of its requests runs");
    script.release("a");
    assert_eq!(script.log(), format!("unload a, load b, {second} gets b"));
    script.release("b");
    assert_eq!(script.log(), format!("unload b, load a, {third} gets a"));
    assert_eq!(first, 1);
}

#[test]
fn pinned_models_are_never_unloaded_for_others() {
    let mut script = Script::new(None, Some(8));
    script.ask_as("a", PINNED);
    script.release("a");
    script.after(1000 * SECOND);
    assert_eq!(script.log(), "load a, 1 gets a");
    script.visit("b");
    script.visit("c");
    assert_eq!(script.log(), "load b, 2 gets b, unload b, load c, 3 gets c");
    script.ask("d");
    assert_eq!(script.log(), "4 fails: d takes 8, there are 4");
    // There is less room than when `b` was measured: a pinned model took more than it was to.
    script.is_slow = true;
    script.sizes.insert("b", 6);
    script.table.limits.room_bytes = Some(10);
    script.ask("b");
    assert_eq!(script.log(), "unload c");
    script.table.limits.room_bytes = Some(9);
    script.unloaded("c");
    let said = script.log();
    assert!(said.contains("5 fails: b takes 1 MiB") && said.contains("(a)"), "{said}");

    let mut script = Script::new(Some(1), None);
    script.ask_as("a", PINNED);
    script.log();
    script.ask("b");
    let said = script.log();
    assert!(said.contains("2 fails: pinned models have all places (a)"), "{said}");
    // Who says so by name unloads it.
    script.release("a");
    assert!(script.unload("a"));
    script.ask("b");
    assert_eq!(script.log(), "unload a, load b, 3 gets b");
}

#[test]
fn a_failure_is_told_to_all_that_wait_and_tried_again_next_time() {
    let mut script = Script::new(None, None);
    script.is_slow = true;
    script.ask("a");
    script.ask("a");
    script.load_fails("a", "no such file");
    assert_eq!(script.log(), "load a, 1 fails: no such file, 2 fails: no such file");
    let status = &script.table.statuses()[0];
    assert_eq!(status.failure, Some(LoadError::Failed("no such file".into())));
    assert_eq!(status.state, State::Unloaded);
    script.ask("a");
    script.loaded("a");
    assert_eq!(script.log(), "load a, 3 gets a");
    assert_eq!(script.table.statuses()[0].failure, None);
    // The room of a load that failed is free.
    let mut script = Script::new(None, Some(4));
    script.is_slow = true;
    script.ask("a");
    script.ask("b");
    script.load_fails("a", "bad luck");
    assert_eq!(script.log(), "load a, 1 fails: bad luck, load b");
}

#[test]
fn a_request_that_gives_up_gets_nothing() {
    let mut script = Script::new(Some(1), None);
    script.is_slow = true;
    let first = script.ask("a");
    let second = script.ask("b");
    script.give_up("b", second);
    assert_eq!(script.state("b"), State::Unloaded);
    // A load that has begun is cancelled; one that is done all the same stays for the next request.
    assert!(!script.cancels["a"].is_set());
    script.give_up("a", first);
    assert!(script.cancels["a"].is_set());
    script.loaded("a");
    assert_eq!((script.log().as_str(), script.state("a")), ("load a", State::Loaded));
    // What was to make room stays, and those that wait for it get it.
    let third = script.ask("a");
    let fourth = script.ask("b");
    let fifth = script.ask("a");
    assert_eq!((script.log(), script.state("a")), (format!("{third} gets a"), State::Unloading));
    script.give_up("b", fourth);
    assert_eq!((script.log(), script.state("a")), (format!("{fifth} gets a"), State::Loaded));
    script.release("a");
    script.release("a");
    assert_eq!((script.log().as_str(), script.state("a")), ("", State::Loaded));
}

#[test]
fn a_load_that_nobody_waits_for_is_cancelled() {
    let mut script = Script::new(None, Some(4));
    script.is_slow = true;
    let (first, second) = (script.ask("a"), script.ask("a"));
    let other = script.ask("b");
    script.give_up("a", first);
    assert!(!script.cancels["a"].is_set(), "one waits");
    script.give_up("a", second);
    assert!(script.cancels["a"].is_set());
    assert_eq!((script.log().as_str(), script.state("a")), ("load a", State::Unloading));
    // Its room is free once it has ended, and what it says of itself is no failure.
    script.load_fails("a", "broken off");
    assert_eq!((script.log().as_str(), script.state("a")), ("load b", State::Unloaded));
    assert_eq!(script.table.statuses()[0].failure, None);
    script.loaded("b");
    assert_eq!(script.log(), format!("{other} gets b"));
    script.release("b");
    // Who comes while it ends gets it loaded again.
    script.ask("a");
    script.unloaded("b");
    script.give_up("a", 4);
    let late = script.ask("a");
    assert_eq!(script.log(), "unload b, load a");
    script.load_fails("a", "broken off");
    assert_eq!((script.log().as_str(), script.state("a")), ("load a", State::Loading));
    assert!(!script.cancels["a"].is_set());
    script.loaded("a");
    assert_eq!(script.log(), format!("{late} gets a"));
}

#[test]
fn a_load_that_was_told_is_not_cancelled_by_a_request_that_leaves() {
    let mut script = Script::new(None, None);
    script.is_slow = true;
    let actions = script.table.ask("a", STAYS, None, script.now);
    script.run(actions);
    let ticket = script.ask("a");
    script.give_up("a", ticket);
    assert!(!script.cancels["a"].is_set());
    script.loaded("a");
    assert_eq!((script.log().as_str(), script.state("a")), ("load a", State::Loaded));
}

#[test]
fn who_was_to_make_room_stays_if_the_other_is_unloaded_by_name() {
    let mut script = Script::new(Some(1), None);
    script.ask("a");
    let waits = script.ask("b");
    script.log();
    assert_eq!(script.state("a"), State::Unloading);
    assert!(script.unload("b"));
    assert_eq!(script.log(), format!("{waits} fails: {}", LoadError::Unloaded));
    script.release("a");
    assert_eq!((script.log().as_str(), script.state("a")), ("", State::Loaded));
}

#[test]
fn an_idle_model_leaves_after_its_time() {
    let mut script = Script::new(None, None);
    let minute = Policy { keep_alive: KeepAlive::For(60 * SECOND), ..STAYS };
    script.ask_as("a", minute);
    script.log();
    script.after(600 * SECOND);
    assert_eq!(script.log(), "", "it is used");
    script.release("a");
    let expires = script.table.statuses()[0].expires;
    assert_eq!(expires, Some(script.now + 60 * SECOND));
    script.after(59 * SECOND);
    assert_eq!(script.log(), "");
    script.after(SECOND);
    assert_eq!(script.log(), "unload a");
    // The last request says how long; a time of 0 is at once.
    script.ask_as("a", STAYS);
    script.release("a");
    script.after(600 * SECOND);
    script.ask_as("a", Policy { keep_alive: KeepAlive::For(Duration::ZERO), ..STAYS });
    assert_eq!(script.log(), "load a, 2 gets a, 3 gets a");
    script.release("a");
    assert_eq!(script.log(), "unload a");
}

#[test]
fn unloading_by_name_waits_for_requests_and_refuses_those_that_wait() {
    let mut script = Script::new(None, None);
    assert!(!script.unload("a"));
    script.ask("a");
    script.log();
    assert!(script.unload("a"));
    assert_eq!((script.log().as_str(), script.state("a")), ("", State::Unloading));
    script.release("a");
    assert_eq!(script.log(), "unload a");
    assert!(!script.unload("a"));
    // One that is being loaded is cancelled, and leaves if it is there all the same; a request that
    // comes before keeps it.
    script.is_slow = true;
    script.ask("a");
    assert!(script.unload("a") && script.cancels["a"].is_set());
    assert_eq!(script.log(), format!("load a, 2 fails: {}", LoadError::Unloaded));
    script.loaded("a");
    assert_eq!(script.log(), "unload a");
    script.unloaded("a");
    script.ask("b");
    script.unload("b");
    script.ask("b");
    script.loaded("b");
    assert_eq!(script.log(), format!("load b, 3 fails: {}, 4 gets b", LoadError::Unloaded));
}

#[test]
fn a_model_can_be_loaded_for_nobody() {
    let mut script = Script::new(None, None);
    let actions = script.table.ask("a", STAYS, None, script.now);
    script.run(actions);
    assert_eq!((script.log().as_str(), script.state("a")), ("load a", State::Loaded));
    let actions = script.table.ask("a", STAYS, None, script.now);
    script.run(actions);
    assert_eq!(script.log(), "");
    script.ask("a");
    assert_eq!(script.log(), "1 gets a");
}

#[test]
fn a_closed_table_gives_nothing() {
    let mut script = Script::new(None, None);
    script.is_slow = true;
    script.ask("a");
    let actions = script.table.close();
    script.run(actions);
    script.ask("a");
    let refused = LoadError::ShuttingDown;
    assert_eq!(script.log(), format!("load a, 1 fails: {refused}, 2 fails: {refused}"));
    // What is loaded in the meantime is there to be ended.
    assert!(script.cancels["a"].is_set());
    script.loaded("a");
    assert_eq!(script.table.models(), [("a".to_owned(), "a")]);
    // Nothing of the queue is loaded any more.
    let mut script = Script::new(Some(1), None);
    script.ask("a");
    script.ask("b");
    let actions = script.table.close();
    script.run(actions);
    script.log();
    script.release("a");
    assert!(!script.log().contains("load b"));
}
