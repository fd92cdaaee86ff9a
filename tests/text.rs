//! Tokenizers, chat templates and streaming, against what transformers, tokenizers, tiktoken,
//! sentencepiece and jinja2 make of the same input (`tests/fixtures/text/make.py`).
//!
//! Tests of the real model are reported as ignored, by name, where it has not been fetched.

use std::path::PathBuf;

use libtest_mimic::{Arguments, Trial};

#[path = "text/chats.rs"]
mod chats;
#[path = "text/fixtures.rs"]
mod fixtures;
#[path = "text/hostile.rs"]
mod hostile;
#[path = "text/smollm2.rs"]
mod smollm2;
#[path = "text/tokenizers.rs"]
mod tokenizers;

fn main() {
    let arguments = Arguments::from_args();
    let trials: Vec<Trial> =
        [tokenizers::trials(), chats::trials(), hostile::trials(), smollm2::trials()]
            .into_iter()
            .flatten()
            .collect();
    libtest_mimic::run(&arguments, trials).exit();
}

/// A trial of a function that panics on failure.
fn trial(name: &str, test: impl FnOnce() + Send + 'static) -> Trial {
    Trial::test(name, move || {
        test();
        Ok(())
    })
}

fn tests_dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests")
}
