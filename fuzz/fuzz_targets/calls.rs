//! Any text is an answer, with calls or without; it is the same answer if it comes in two parts.
#![no_main]

use halfwarp::server::fuzzing::{answer, formats};
use halfwarp::text::answer::AnswerFormat;
use std::sync::LazyLock;

/// One template of each way to write calls.
static FORMATS: LazyLock<Vec<AnswerFormat>> = LazyLock::new(|| {
    macro_rules! template {
        ($name:literal) => {
            include_str!(concat!("../../tests/fixtures/text/templates/public/", $name, ".jinja"))
        };
    }
    formats(&[
        template!("meta-llama-Llama-3.1-8B-Instruct"),
        template!("mistralai-Mistral-Nemo-Instruct-2407"),
        template!("Mistral-Small-3.2-24B-Instruct-2506"),
        template!("Qwen3.5-4B"),
        template!("GLM-4.6"),
        template!("MiniMax-M3"),
        template!("deepseek-ai-DeepSeek-V4"),
        template!("google-gemma-4-31B-it"),
        template!("LFM2.5-8B-A1B"),
        template!("openai-gpt-oss-120b"),
        template!("meetkai-functionary-medium-v3.2"),
        template!("upstage-Solar-Open-100B"),
    ])
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let [options, at, text @ ..] = bytes else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let format = &FORMATS[usize::from(options >> 1) % FORMATS.len()];
    let is_single = options & 1 != 0;
    let (first, second) = text.split_at(text.floor_char_boundary(usize::from(*at)));
    let whole = answer(format, is_single, [text]);
    assert_eq!(answer(format, is_single, [first, second]), whole);
});
