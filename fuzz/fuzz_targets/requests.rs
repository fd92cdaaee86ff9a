//! Any bytes are the body of a request of each path, or an error.
#![no_main]

use halfwarp::Model;
use halfwarp::server::fuzzing::Parsers;
use std::sync::{Arc, LazyLock};

static PARSERS: LazyLock<Parsers> = LazyLock::new(|| {
    let model = Model::open("smollm2-135m-instruct").expect("`cargo xtask setup` fetches it");
    Parsers::new(Arc::new(model))
});

libfuzzer_sys::fuzz_target!(|body: &[u8]| {
    PARSERS.take(body);
});
