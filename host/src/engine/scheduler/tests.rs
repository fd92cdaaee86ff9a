use super::*;
use crate::engine::Buckets;
use crate::engine::Request;
use crate::engine::states::StatePool;
use crate::engine::windows::Windows;
use crate::plan::PAGE_SIZE;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::HashMap;

const CONTEXT: usize = 4 * PAGE_SIZE;

fn scheduler(turns: Turns, max_seqs: usize, max_tokens: usize, num_pages: usize) -> Scheduler {
    let limits = Limits {
        max_seqs,
        max_tokens,
        max_tokens_beside_rows: max_tokens,
        long_prefill_token_threshold: None,
    };
    Scheduler::new(turns, limits, PageAllocator::new(num_pages))
}

fn add(scheduler: &mut Scheduler, id: u64, prompt_len: usize, max_new_tokens: usize) {
    add_prompt(scheduler, id, vec![id as u32; prompt_len], max_new_tokens);
}

fn add_prompt(scheduler: &mut Scheduler, id: u64, prompt: Vec<u32>, max_new_tokens: usize) {
    let request = Request { prompt, max_new_tokens: Some(max_new_tokens), ..Default::default() };
    scheduler.add(Sequence::new(RequestId(id), request));
}

/// With a prompt of `prompt_len`, to be continued by three tokens.
fn add_with_priority(scheduler: &mut Scheduler, id: u64, prompt_len: usize, priority: i32) {
    let prompt = vec![id as u32; prompt_len];
    let request = Request { prompt, max_new_tokens: Some(3), priority, ..Default::default() };
    scheduler.add(Sequence::new(RequestId(id), request));
}

/// Advances a batch as the engine does, with 0 as each generated token; returns the requests that
/// got one.
fn run(scheduler: &mut Scheduler, batch: &[Entry]) -> Vec<RequestId> {
    let mut tokens_for = Vec::new();
    let mut ended = Vec::new();
    for entry in batch {
        let sequence = scheduler.running(entry.index);
        sequence.begin(entry, 0, CONTEXT);
        if entry.is_last {
            tokens_for.push(sequence.id());
            if sequence.push(0, CONTEXT).is_some() {
                ended.push(sequence.id());
            }
        }
    }
    ended.into_iter().for_each(|id| assert!(scheduler.retire(id)));
    tokens_for
}

/// `(id, num_tokens, is_last)` of each entry.
fn named(scheduler: &mut Scheduler, batch: &[Entry]) -> Vec<(u64, usize, bool)> {
    let entry = |e: &Entry| (scheduler.running(e.index).id().0, e.num_tokens, e.is_last);
    batch.iter().map(entry).collect()
}

#[test]
fn prompts_come_in_chunks_after_decoding() {
    let mut scheduler = scheduler(Turns::Together, 4, 10, 100);
    add(&mut scheduler, 0, 4, 9);
    add(&mut scheduler, 1, 15, 9);
    let mut batches = Vec::new();
    for step in 0..4 {
        if step == 2 {
            add(&mut scheduler, 2, 1, 9);
        }
        let batch = scheduler.schedule();
        batches.push(named(&mut scheduler, &batch));
        run(&mut scheduler, &batch);
    }
    assert_eq!(batches[0], [(0, 4, true), (1, 6, false)]);
    assert_eq!(batches[1], [(0, 1, true), (1, 9, true)]);
    assert_eq!(batches[2], [(0, 1, true), (1, 1, true), (2, 1, true)]);
    assert_eq!(batches[3], [(0, 1, true), (1, 1, true), (2, 1, true)]);
}

fn with_threshold(turns: Turns, max_tokens: usize, threshold: usize) -> Scheduler {
    let long_prefill_token_threshold = NonZeroUsize::new(threshold);
    let limits = Limits {
        max_seqs: 8,
        max_tokens,
        max_tokens_beside_rows: max_tokens,
        long_prefill_token_threshold,
    };
    Scheduler::new(turns, limits, PageAllocator::new(100))
}

/// The batches of the next `num_steps` steps.
fn steps(scheduler: &mut Scheduler, num_steps: usize) -> Vec<Vec<(u64, usize, bool)>> {
    let step = |_| {
        let batch = scheduler.schedule();
        let named = named(scheduler, &batch);
        run(scheduler, &batch);
        named
    };
    (0..num_steps).map(step).collect()
}

#[test]
fn a_long_prompt_comes_in_short_chunks_beside_decoding() {
    let mut scheduler = with_threshold(Turns::Together, 20, 5);
    add(&mut scheduler, 0, 30, 7);
    let alone = steps(&mut scheduler, 2);
    assert_eq!(alone, [[(0, 20, false)], [(0, 10, true)]], "nothing waits for it");
    add(&mut scheduler, 1, 8, 9);
    (2..6).for_each(|id| add(&mut scheduler, id, 4, 1));
    let beside = steps(&mut scheduler, 2);
    // Short prompts fill the step.
    let first = [(0, 1, true), (1, 5, false), (2, 4, true), (3, 4, true), (4, 4, true)];
    assert_eq!(beside[0], [&first[..], &[(5, 2, false)]].concat());
    assert_eq!(beside[1], [(0, 1, true), (1, 3, true), (5, 2, true)]);
}

#[test]
fn steps_of_prompts_and_of_decoding_take_turns() {
    let mut scheduler = with_threshold(Turns::Apart, 20, 5);
    add(&mut scheduler, 0, 30, 5);
    assert_eq!(steps(&mut scheduler, 2), [[(0, 20, false)], [(0, 10, true)]]);
    add(&mut scheduler, 1, 8, 9);
    add(&mut scheduler, 2, 2, 2);
    let batches = steps(&mut scheduler, 6);
    assert_eq!(batches[0], [(0, 1, true)], "it has waited for its own prompt");
    assert_eq!(batches[1], [(1, 5, false), (2, 2, true)]);
    assert_eq!(batches[2], [(0, 1, true), (2, 1, true)]);
    assert_eq!(batches[3], [(1, 3, true)]);
    assert_eq!(batches[4], [(0, 1, true), (1, 1, true)]);
    assert_eq!(batches[5], [(0, 1, true), (1, 1, true)]);
}

#[test]
fn no_more_sequences_run_than_allowed() {
    let mut scheduler = scheduler(Turns::Together, 2, 10, 100);
    (0..3).for_each(|id| add(&mut scheduler, id, 2, 1 + id as usize));
    let mut batches = Vec::new();
    while scheduler.has_work() {
        let batch = scheduler.schedule();
        batches.push(named(&mut scheduler, &batch));
        run(&mut scheduler, &batch);
    }
    assert_eq!(batches[0], [(0, 2, true), (1, 2, true)]);
    assert_eq!(batches[1], [(1, 1, true), (2, 2, true)]);
    assert_eq!(batches[2..], [[(2, 1, true)], [(2, 1, true)]]);
}

#[test]
fn the_youngest_gives_its_pages_to_an_older_one() {
    // Two pages in all; both sequences fill theirs and need a second.
    let mut scheduler = scheduler(Turns::Together, 2, 200, 2);
    add(&mut scheduler, 0, PAGE_SIZE, 3);
    add(&mut scheduler, 1, PAGE_SIZE, 3);
    let first = scheduler.schedule();
    assert_eq!(first.len(), 2);
    run(&mut scheduler, &first);
    let second = scheduler.schedule();
    assert_eq!(named(&mut scheduler, &second), [(0, 1, true)]);
    assert_eq!(scheduler.waiting.front().map(Sequence::id), Some(RequestId(1)));
    let EngineStats { num_running, num_waiting, num_used_pages, num_preemptions, .. } =
        scheduler.stats();
    assert_eq!((num_running, num_waiting, num_used_pages, num_preemptions), (1, 1, 2, 1));
    run(&mut scheduler, &second);
    run_to_end(&mut scheduler, 2);
}

fn waiting(scheduler: &Scheduler) -> Vec<u64> {
    scheduler.waiting.iter().map(|sequence| sequence.id().0).collect()
}

#[test]
fn the_most_urgent_is_served_first() {
    let mut scheduler = scheduler(Turns::Together, 1, 10, 100);
    for (id, priority) in [(0, 0), (1, 1), (2, 0), (3, -1)] {
        add_with_priority(&mut scheduler, id, 1, priority);
    }
    let ids: Vec<u64> = steps(&mut scheduler, 12).iter().map(|batch| batch[0].0).collect();
    assert_eq!(ids, [3, 3, 3, 0, 0, 0, 2, 2, 2, 1, 1, 1]);
}

#[test]
fn the_least_urgent_gives_its_pages_and_goes_before_others_of_its_priority() {
    let mut scheduler = scheduler(Turns::Together, 3, 200, 3);
    for (id, priority) in [(0, 1), (1, 0), (2, 1)] {
        add_with_priority(&mut scheduler, id, PAGE_SIZE, priority);
    }
    assert_eq!(steps(&mut scheduler, 1)[0].len(), 3);
    add_with_priority(&mut scheduler, 3, PAGE_SIZE, 1);
    add_with_priority(&mut scheduler, 4, 2 * PAGE_SIZE, 0);
    // Of those of priority 1 both have to go, the younger one first.
    assert_eq!(steps(&mut scheduler, 1), [[(1, 1, true)]]);
    assert_eq!(scheduler.stats().num_preemptions, 2);
    assert_eq!(waiting(&scheduler), [4, 0, 2, 3]);
    run_to_end(&mut scheduler, 3);
}

/// Others have begun before it.
#[test]
fn an_urgent_prompt_takes_its_tokens_first() {
    let mut scheduler = scheduler(Turns::Together, 3, 10, 100);
    add_with_priority(&mut scheduler, 0, 30, 1);
    assert_eq!(steps(&mut scheduler, 1), [[(0, 10, false)]]);
    add_with_priority(&mut scheduler, 1, 12, 1);
    add_with_priority(&mut scheduler, 2, 12, 0);
    let batches = steps(&mut scheduler, 3);
    assert_eq!(batches[0], [(2, 10, false)]);
    assert_eq!(batches[1], [(2, 2, true), (0, 8, false)]);
    assert_eq!(batches[2], [(2, 1, true), (0, 9, false)]);
}

/// A preempted sequence leaves room for it beside less urgent ones.
#[test]
fn an_urgent_request_goes_first_from_the_step_after_its_admission() {
    let mut scheduler = scheduler(Turns::Together, 3, 300, 4);
    add_with_priority(&mut scheduler, 0, PAGE_SIZE, 1);
    add_with_priority(&mut scheduler, 1, 2 * PAGE_SIZE + 1, 1);
    assert_eq!(steps(&mut scheduler, 1)[0].len(), 2);
    add_with_priority(&mut scheduler, 2, PAGE_SIZE, 0);
    let batches = steps(&mut scheduler, 2);
    assert_eq!(batches[0], [(0, 1, true), (2, PAGE_SIZE, true)]);
    assert_eq!(batches[1], [(2, 1, true), (0, 1, true)]);
    run_to_end(&mut scheduler, 4);
}

/// What decodes is the least urgent, and the prompt beside it has all other pages.
#[test]
fn prompts_go_on_where_nothing_can_decode() {
    for turns in [Turns::Together, Turns::Apart] {
        let mut scheduler = scheduler(turns, 2, 100, 4);
        add_with_priority(&mut scheduler, 0, PAGE_SIZE, 1);
        assert_eq!(steps(&mut scheduler, 1), [[(0, PAGE_SIZE, true)]]);
        add_with_priority(&mut scheduler, 1, 3 * PAGE_SIZE, 0);
        assert_eq!(steps(&mut scheduler, 2), [[(1, 100, false)], [(1, 92, true)]]);
        assert_eq!(waiting(&scheduler), [0]);
        run_to_end(&mut scheduler, 4);
    }
}

fn run_to_end(scheduler: &mut Scheduler, num_pages: usize) {
    for _ in 0..10_000 {
        let batch = scheduler.schedule();
        run(scheduler, &batch);
    }
    assert!(!scheduler.has_work(), "a sequence starves");
    assert_eq!(scheduler.pages.num_free(), num_pages, "a page is lost");
}

/// What a request that failed has computed may be the reason.
#[test]
fn what_a_removed_sequence_computed_is_not_found() {
    let mut scheduler = scheduler(Turns::Together, 1, 200, 10);
    let mut reused = |remove: fn(&mut Scheduler, RequestId) -> bool, id| {
        add_prompt(&mut scheduler, id, (0..130).collect(), 9);
        let batch = scheduler.schedule();
        let reused = scheduler.running(0).start();
        run(&mut scheduler, &batch);
        scheduler.schedule();
        assert!(remove(&mut scheduler, RequestId(id)));
        assert_eq!(scheduler.stats().num_used_pages, 0);
        reused
    };
    let got = [Scheduler::remove, Scheduler::retire, Scheduler::remove, Scheduler::remove];
    let got = got.into_iter().zip(0..).map(|(remove, id)| reused(remove, id)).collect::<Vec<_>>();
    assert_eq!(got, [0, 0, 2 * PAGE_SIZE, 0].map(Some));
}

/// What each slot of the cache holds: the tokens up to its position, and whether it was computed as
/// part of a prompt.
type Cache = HashMap<(u32, usize), (Vec<u32>, bool)>;

/// Writes what `batch` computes to `cache`, and checks that every sequence finds its own tokens
/// there.
fn compute(scheduler: &Scheduler, batch: &[Entry], cache: &mut Cache) {
    for entry in batch {
        let sequence = &scheduler.running[entry.index];
        let num_cached = sequence.num_cached();
        for position in num_cached..num_cached + entry.num_tokens {
            let page = sequence.pages().pages()[position / PAGE_SIZE];
            assert!(!scheduler.pages.is_shared(page), "a write to a shared page");
            let tokens = sequence.tokens()[..=position].to_vec();
            let is_prompt = position < sequence.progress().total;
            cache.insert((page, position % PAGE_SIZE), (tokens, is_prompt));
        }
    }
    for sequence in &scheduler.running {
        for position in 0..sequence.num_cached() {
            let slot = (sequence.pages().pages()[position / PAGE_SIZE], position % PAGE_SIZE);
            let (tokens, is_prompt) = &cache[&slot];
            assert_eq!(tokens, &sequence.tokens()[..=position], "not this sequence's");
            let wants_prompt = position < sequence.progress().total;
            let any_kind = scheduler.turns == Turns::Together;
            assert!(any_kind || *is_prompt == wants_prompt, "computed by the other kind");
        }
    }
}

/// [`compute`] in layers with a `window`, whose pages leave with it.
fn compute_windows(scheduler: &Scheduler, batch: &[Entry], window: usize, cache: &mut Cache) {
    for entry in batch {
        let sequence = &scheduler.running[entry.index];
        let (pages, num_cached) = (sequence.pages().window_pages().unwrap(), sequence.num_cached());
        for position in num_cached..num_cached + entry.num_tokens {
            let page = pages[position / PAGE_SIZE];
            assert!(!scheduler.pages.is_window_shared(page), "a write to a shared page");
            let tokens = sequence.tokens()[..=position].to_vec();
            cache.insert((page, position % PAGE_SIZE), (tokens, true));
        }
    }
    for sequence in scheduler.running.iter().filter(|sequence| sequence.num_cached() > 0) {
        let (pages, num_cached) = (sequence.pages().window_pages().unwrap(), sequence.num_cached());
        for position in (num_cached + 1).saturating_sub(window)..num_cached {
            let (tokens, _) = &cache[&(pages[position / PAGE_SIZE], position % PAGE_SIZE)];
            assert_eq!(tokens, &sequence.tokens()[..=position], "not this sequence's");
        }
    }
}

/// The tokens that each recurrent state has seen, and which were part of a prompt.
type States = HashMap<u32, Vec<(u32, bool)>>;

/// Computes the states of `batch`, and checks that every sequence goes on with its own, and that
/// none is written that others are to read.
fn compute_states(scheduler: &Scheduler, batch: &[Entry], states: &mut States) {
    let seen = |entry: &Entry, end: usize| -> Vec<(u32, bool)> {
        let sequence = &scheduler.running[entry.index];
        let is_prompt =
            |at: usize| scheduler.turns == Turns::Together || at < sequence.progress().total;
        sequence.tokens()[..end].iter().enumerate().map(|(at, &id)| (id, is_prompt(at))).collect()
    };
    let mut new = Vec::new();
    for entry in batch {
        let sequence = &scheduler.running[entry.index];
        let [from, to] = sequence.pages().state().unwrap();
        let num_cached = sequence.num_cached();
        if num_cached > 0 {
            assert_eq!(states[&from], seen(entry, num_cached), "not this sequence's");
        }
        new.push((to, seen(entry, num_cached + entry.num_tokens)));
    }
    let read: Vec<u32> =
        scheduler.running.iter().map(|it| it.pages().state().unwrap()[0]).collect();
    for (to, seen) in new {
        let num_readers = read.iter().filter(|&&from| from == to).count();
        assert!(num_readers <= 1 && !scheduler.pages.states().unwrap().knows(to), "a shared state");
        states.insert(to, seen);
    }
}

/// Random arrivals and cancellations of prompts with common prefixes, over a cache that is too
/// small: no batch is beyond its bounds, every sequence finds its own keys, values and state, and
/// every request gets its tokens.
#[test]
fn every_request_is_served() {
    for (has_states, has_windows, least_reused) in
        [(false, false, 10_000), (true, false, 5_000), (false, true, 8_000), (true, true, 2_000)]
    {
        let reused: usize = (0..100).map(|seed| serve(seed, has_states, has_windows)).sum();
        assert!(reused > least_reused, "{reused} tokens, states {has_states}, {has_windows}");
    }
}

/// Serves random requests; returns how many tokens were found.
fn serve(seed: u64, has_states: bool, has_windows: bool) -> usize {
    let mut num_reused = 0;
    let turns = if seed.is_multiple_of(2) { Turns::Together } else { Turns::Apart };
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let (max_seqs, max_tokens) = (rng.random_range(1..6), rng.random_range(6..100));
    let num_pages = rng.random_range(4..9);
    let long_prefill_token_threshold = NonZeroUsize::new(rng.random_range(0..40));
    let max_priority = rng.random_range(0..3);
    let max_chunk = long_prefill_token_threshold.map_or(usize::MAX, NonZeroUsize::get);
    let limits = Limits {
        max_seqs,
        max_tokens,
        max_tokens_beside_rows: max_tokens,
        long_prefill_token_threshold,
    };
    let num_states = max_seqs + rng.random_range(1..4);
    let distance = rng.random_range(1..3) * PAGE_SIZE;
    let mut pages = PageAllocator::new(num_pages);
    if has_states {
        pages = pages.with_states(StatePool::new(num_states, distance));
    }
    let window = [1, 30, 64, 70, 130][rng.random_range(0..5)];
    let buckets = Buckets { max_tokens, max_seqs, context: CONTEXT, mixes: true };
    let num_kept = rng.random_range(0..2);
    let num_window_pages = Windows::num_pages(window, &buckets, num_kept, num_pages);
    if has_windows {
        pages = pages.with_windows(Windows::new(num_window_pages, window));
    }
    let mut scheduler = Scheduler::new(turns, limits, pages);
    let mut was_of_prompts = false;
    let mut left = std::collections::BTreeMap::new();
    let (mut cache, mut of_windows, mut states) = (Cache::new(), Cache::new(), States::new());
    for step in 0..400 {
        if rng.random_bool(0.1) {
            let prompt_len = rng.random_range(1..=CONTEXT);
            let max_new_tokens = rng.random_range(1..100);
            // Generated tokens are 0: a prompt may begin like another one and its answer.
            let mut prompt = vec![0; prompt_len];
            prompt[rng.random_range(0..prompt_len)] = rng.random_range(0..2);
            let request = Request {
                prompt,
                max_new_tokens: Some(max_new_tokens),
                priority: rng.random_range(-1..max_priority),
                ..Default::default()
            };
            scheduler.add(Sequence::new(RequestId(step), request));
            left.insert(RequestId(step), max_new_tokens.min(CONTEXT + 1 - prompt_len));
        }
        if rng.random_bool(0.02)
            && let Some(&id) = left.keys().next()
        {
            scheduler.retire(id);
            left.remove(&id);
        }
        let running = scheduler.running.iter().enumerate();
        let decoding: Vec<RequestId> = running
            .filter(|&(index, _)| scheduler.prompt_len(index) == 0)
            .map(|(_, sequence)| sequence.id())
            .collect();
        let batch = scheduler.schedule();
        let is_decoding = scheduler.running.iter().any(|s| decoding.contains(&s.id()));
        let tokens: usize = batch.iter().map(|entry| entry.num_tokens).sum();
        assert!(tokens <= max_tokens && batch.len() <= max_seqs);
        if is_decoding {
            assert!(batch.iter().all(|entry| entry.num_tokens <= max_chunk), "a long chunk");
        }
        if turns == Turns::Apart {
            let prompt = |entry: &Entry| scheduler.prompt_len(entry.index) > 0;
            assert!(batch.iter().all(prompt) || !batch.iter().any(prompt), "a mixed step");
            let is_of_prompts = batch.iter().any(prompt);
            assert!(!(is_of_prompts && was_of_prompts && is_decoding), "decoding waits");
            was_of_prompts = is_of_prompts;
        }
        assert!(tokens > 0 || !scheduler.has_work(), "a step without work");
        compute(&scheduler, &batch, &mut cache);
        if has_states {
            compute_states(&scheduler, &batch, &mut states);
        }
        if has_windows {
            compute_windows(&scheduler, &batch, window, &mut of_windows);
        }
        for entry in &batch {
            num_reused += scheduler.running(entry.index).start().unwrap_or_default();
        }
        for id in run(&mut scheduler, &batch) {
            *left.get_mut(&id).unwrap() -= 1;
        }
        left.retain(|_, left| *left > 0);
    }
    run_to_end(&mut scheduler, num_pages);
    if has_windows {
        assert_eq!(scheduler.pages.num_free_of_windows(), num_window_pages, "a page is lost");
    }
    if let Some(states) = scheduler.pages.states() {
        assert_eq!(states.num_free(), num_states, "a state is lost");
    }
    num_reused
}
