//! What the router knows of the KV cache.

use dynamo_backend_common::KvEventPublisher;
use dynamo_kv_router::protocols::{
    BlockHashOptions, KvCacheEvent, KvCacheEventData, KvCacheRemoveData, KvCacheStoreData,
    KvCacheStoredBlockData, compute_block_hash_for_seq,
};
use halfwarp::engine::{CacheEvent, StoredPage};
use halfwarp::plan::PAGE_SIZE;
use std::sync::{Arc, Mutex, PoisonError};

/// The only data-parallel rank: ranks of a tensor-parallel world have one page table.
pub const DP_RANK: u32 = 0;

/// The way of events to the router, once Dynamo's runtime has made one.
#[derive(Clone, Default)]
pub struct KvEvents(Arc<Mutex<Option<Arc<KvEventPublisher>>>>);

impl KvEvents {
    /// Publishes events from now on, or no more.
    pub fn set(&self, publisher: Option<Arc<KvEventPublisher>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = publisher;
    }

    /// Publishes an event, if there is a way. Nothing waits: the publisher has a queue.
    pub fn publish(&self, event: CacheEvent) {
        let publisher = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(publisher) = &*publisher else { return };
        let Some(data) = event_data(event) else { return };
        let event = KvCacheEvent { event_id: publisher.next_event_id(), data, dp_rank: DP_RANK };
        if publisher.publish(event).is_err() {
            tracing::debug!("the publisher of KV events has ended");
        }
    }
}

/// Dynamo's event for one of halfwarp's; `None` for a kind that it has no event for.
fn event_data(event: CacheEvent) -> Option<KvCacheEventData> {
    Some(match event {
        CacheEvent::Stored(page) => KvCacheEventData::Stored(stored(&page)?),
        CacheEvent::Removed(hash) => {
            let block_hashes = vec![hash.to_u64().into()];
            KvCacheEventData::Removed(KvCacheRemoveData { block_hashes })
        }
        CacheEvent::Cleared => KvCacheEventData::Cleared,
        _ => return None,
    })
}

fn stored(page: &StoredPage) -> Option<KvCacheStoreData> {
    // The router hashes a prompt's tokens so, and its salt with them.
    let options =
        BlockHashOptions { cache_namespace: page.cache_salt.as_deref(), ..Default::default() };
    let tokens_hash =
        *compute_block_hash_for_seq(&page.tokens, PAGE_SIZE as u32, options).first()?;
    let block_hash = page.hash.to_u64().into();
    Some(KvCacheStoreData {
        parent_hash: page.parent.map(|hash| hash.to_u64().into()),
        start_position: u32::try_from(page.start).ok(),
        blocks: vec![KvCacheStoredBlockData { block_hash, tokens_hash, mm_extra_info: None }],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use dynamo_kv_router::RadixTree;
    use dynamo_kv_router::protocols::{RouterEvent, WorkerWithDpRank};
    use halfwarp::{Device, Engine, EngineOptions, Model, Request};
    use std::sync::mpsc;

    const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/goldens/llama-gqa");
    const WORKER: u64 = 7;

    /// Blocks of `prompt` that Dynamo's index believes the worker to have.
    fn num_known(tree: &RadixTree, prompt: &[u32], salt: Option<&str>) -> u32 {
        let options = BlockHashOptions { cache_namespace: salt, ..Default::default() };
        let hashes = compute_block_hash_for_seq(prompt, PAGE_SIZE as u32, options);
        let scores = tree.find_matches(hashes, false).scores;
        scores.get(&WorkerWithDpRank::new(WORKER, DP_RANK)).copied().unwrap_or_default()
    }

    fn run(engine: &mut Engine, prompt: &[u32], cache_salt: Option<&str>) {
        let request = Request {
            prompt: prompt.to_vec(),
            max_new_tokens: Some(1),
            cache_salt: cache_salt.map(str::to_owned),
            ..Request::default()
        };
        engine.add_request(request).unwrap();
        while engine.has_work() {
            engine.step().unwrap();
        }
    }

    #[test]
    fn the_routers_index_follows_the_cache() {
        let options = EngineOptions {
            device: Device::Cpu,
            context: Some(256),
            cache_positions: Some(256),
            ..Default::default()
        };
        let model = Arc::new(Model::open(GOLDEN).unwrap());
        let mut engine = Engine::new(model, options).unwrap();
        let (sender, events) = mpsc::channel();
        engine.on_cache_event(move |event| sender.send(event).unwrap());
        let mut tree = RadixTree::new();
        let mut event_id = 0;
        let mut update = |tree: &mut RadixTree| {
            for event in events.try_iter() {
                let data = event_data(event).unwrap();
                let event = KvCacheEvent { event_id, data, dp_rank: DP_RANK };
                tree.apply_event(RouterEvent::new(WORKER, event)).unwrap();
                event_id += 1;
            }
        };
        let prompt: Vec<u32> = (0..200).collect();
        let other: Vec<u32> = (0..200).rev().collect();
        run(&mut engine, &prompt, None);
        update(&mut tree);
        assert_eq!(num_known(&tree, &prompt, None), 3);
        assert_eq!(num_known(&tree, &prompt[..130], None), 2);
        assert_eq!(num_known(&tree, &prompt, Some("a")), 0);
        assert_eq!(num_known(&tree, &other, None), 0);
        // There is room for four pages: these push the first ones out.
        run(&mut engine, &other, Some("a"));
        update(&mut tree);
        assert_eq!(num_known(&tree, &other, Some("a")), 3);
        assert!(num_known(&tree, &prompt, None) < 3);
        engine.drop_retained();
        update(&mut tree);
        assert_eq!(num_known(&tree, &other, Some("a")), 0);
    }
}
