//! Dynamo's own tests of a worker, on the CPU.

use dynamo_backend_common::testing::run_conformance;
use halfwarp::{Device, EngineOptions, Model};
use halfwarp_dynamo::{Backend, BackendOptions};
use std::sync::Arc;

async fn conforms(model: &str, max_tokens: Option<usize>) {
    let model = Arc::new(Model::open(model).expect("`cargo xtask setup` fetches it"));
    let engine = EngineOptions {
        device: Device::Cpu,
        context: Some(256),
        max_seqs: 4,
        max_tokens,
        ..Default::default()
    };
    let options = BackendOptions { model, model_name: "tested".to_owned(), engine };
    run_conformance(|| Backend::new(options.clone())).await.unwrap();
}

#[tokio::test]
async fn a_tiny_model_conforms() {
    conforms(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/goldens/llama-gqa"), None).await;
}

#[tokio::test]
async fn smollm2_conforms() {
    conforms("smollm2-135m-instruct", Some(64)).await;
}
