//! Who listens to the cache knows, for every prompt, how much of it the engine will find.

use super::{MODEL, VOCAB_SIZE, crowded, options};
use halfwarp::engine::{
    CacheEvent, Engine, EngineOptions, EventKind, PageHash, Request, StoredPage,
};
use halfwarp::plan::PAGE_SIZE;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::HashMap;
use std::sync::mpsc::{self, Receiver};

/// What a router knows of an engine: it has no other source than the events.
struct Router {
    events: Receiver<CacheEvent>,
    pages: HashMap<PageHash, StoredPage>,
    num_removed: usize,
}

impl Router {
    fn of(engine: &mut Engine) -> Self {
        let (sender, events) = mpsc::channel();
        engine.on_cache_event(move |event| sender.send(event).unwrap());
        Router { events, pages: HashMap::new(), num_removed: 0 }
    }

    fn update(&mut self) {
        for event in self.events.try_iter() {
            match event {
                CacheEvent::Stored(page) => {
                    assert_eq!(page.tokens.len(), PAGE_SIZE);
                    assert_eq!(page.start % PAGE_SIZE, 0);
                    assert_eq!(page.start == 0, page.parent.is_none());
                    assert!(self.pages.insert(page.hash, page).is_none(), "stored twice");
                }
                CacheEvent::Removed(hash) => {
                    self.pages.remove(&hash).expect("it was stored");
                    self.num_removed += 1;
                }
                CacheEvent::Cleared => self.pages.clear(),
                _ => unreachable!(),
            }
        }
    }

    /// Leading tokens of `prompt` that the engine has, by their values alone.
    fn cached_tokens(&self, prompt: &[u32], cache_salt: Option<&str>) -> usize {
        let mut parent = None;
        // The logits of the last token are computed in any case.
        let pages = prompt[..prompt.len() - 1].chunks_exact(PAGE_SIZE);
        let found = pages.take_while(|&tokens| {
            let page = self.pages.values().find(|page| {
                (page.parent, &*page.tokens, page.cache_salt.as_deref())
                    == (parent, tokens, cache_salt)
            });
            parent = page.map(|page| page.hash);
            page.is_some()
        });
        found.count() * PAGE_SIZE
    }
}

fn run(engine: &mut Engine, request: Request) -> (usize, Vec<u32>) {
    engine.add_request(request).unwrap();
    let (mut cached, mut tokens) = (None, Vec::new());
    while engine.has_work() {
        for event in engine.step().unwrap() {
            match event.kind {
                EventKind::Started { cached_tokens } => cached = Some(cached_tokens),
                EventKind::Token(token) => tokens.push(token),
                _ => {}
            }
        }
    }
    (cached.unwrap(), tokens)
}

/// Conversations that go on, and others that push them out.
#[test]
fn events_say_what_a_prompt_will_find() {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let (mut num_found, mut num_removed) = (0, 0);
    for _ in 0..4 {
        let options = EngineOptions { batch_invariant: rng.random(), ..crowded(&mut rng) };
        let mut engine = Engine::new(MODEL.clone(), options).unwrap();
        let mut router = Router::of(&mut engine);
        let mut chats: Vec<(Vec<u32>, Option<String>)> = vec![];
        for turn in 0..16 {
            if turn % 4 == 0 || chats.last().is_none_or(|(prompt, _)| prompt.len() > 150) {
                let salt = rng.random_bool(0.3).then(|| "a".to_owned());
                let first = (0..80).map(|at| at / (1 + turn as u32)).collect();
                chats.push((first, salt));
            }
            let index = rng.random_range(0..chats.len());
            let (prompt, cache_salt) = &mut chats[index];
            let more = rng.random_range(1..20);
            prompt.extend((0..more).map(|_| rng.random_range(0..VOCAB_SIZE)));
            prompt.truncate(180);
            let expected = router.cached_tokens(prompt, cache_salt.as_deref());
            let request = Request {
                prompt: prompt.clone(),
                max_new_tokens: Some(8),
                cache_salt: cache_salt.clone(),
                ..Request::default()
            };
            let (cached, answer) = run(&mut engine, request);
            router.update();
            assert_eq!(cached, expected);
            num_found += cached;
            prompt.extend(answer);
        }
        num_removed += router.num_removed;
        engine.drop_retained();
        router.update();
        assert!(router.pages.is_empty());
    }
    assert!(num_found > 0 && num_removed > 0, "{num_found} {num_removed}");
}

/// Batch invariant, generated tokens have other values than those of a prompt.
#[test]
fn generated_pages_that_no_prompt_finds_are_not_told_of() {
    for (batch_invariant, num_pages) in [(false, 2), (true, 1)] {
        let options = EngineOptions { batch_invariant, context: Some(192), ..options() };
        let mut engine = Engine::new(MODEL.clone(), options).unwrap();
        let mut router = Router::of(&mut engine);
        let prompt = (0..PAGE_SIZE as u32 + 10).collect();
        let max_new_tokens = Some(PAGE_SIZE);
        run(&mut engine, Request { prompt, max_new_tokens, ..Request::default() });
        router.update();
        assert_eq!(router.pages.len(), num_pages);
    }
}
