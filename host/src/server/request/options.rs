//! Options at the top of a request that OpenAI's API, vLLM, llama.cpp and Ollama have and that are no fields of [`Params`]:
//! other names of those that are, options that change no answer, and options that may only have their default.
//!
//! [`Params`]: super::Params

use crate::server::error::ApiError;
use crate::server::fields::{Fields, is_empty, is_off};
use serde_json::{Value, json};

/// The names of the limit of new tokens.
pub(super) const LIMITS: [&str; 4] =
    ["max_tokens", "max_completion_tokens", "n_predict", "num_predict"];

/// Other names, and the usual ones.
const NAMES: [(&str, &str); 5] = [
    ("n_cmpl", "n"),
    ("n_predict", "max_tokens"),
    ("num_predict", "max_tokens"),
    ("repeat_penalty", "repetition_penalty"),
    ("n_ctx", "num_ctx"),
];

/// Options that change nothing about the answer: whose a request is, how it is billed, what is cached and where, and how
/// a server computes.
pub(super) const IGNORED: [&str; 42] = [
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "request_id",
    "prediction",
    // llama.cpp's and Ollama's.
    "cache_prompt",
    "keep_alive",
    "n_keep",
    "num_keep",
    "n_discard",
    // Times of an answer, which none has to have.
    "timings_per_token",
    "return_progress",
    "return_tokens",
    "t_max_predict_ms",
    "id_slot",
    "slot_id",
    "t_max_prompt_ms",
    "n_cache_reuse",
    "sse_ping_interval",
    "num_batch",
    "num_gpu",
    "main_gpu",
    "num_thread",
    "numa",
    "low_vram",
    "f16_kv",
    "use_mmap",
    "use_mlock",
    "vocab_only",
    "logits_all",
    "penalize_newline",
    "penalize_nl",
    "adaptive_decay",
    "backend_sampling",
    "verbose",
    // vLLM's and SGLang's.
    "guided_decoding_backend",
    "early_stopping",
    "stream_reasoning",
];

/// What an option may say that cannot be had otherwise.
#[derive(Clone, Copy)]
enum Default {
    /// Nothing.
    Empty,
    /// `false`, or nothing.
    Off,
    True,
    Number(f64),
    Text(&'static str),
}

/// Options that would change the answer, and their defaults.
const DEFAULTS: [(&str, Default); 33] = [
    // Of a chat these have been taken.
    ("tools", Default::Empty),
    ("chat_template_kwargs", Default::Empty),
    ("reasoning_effort", Default::Text("none")),
    ("enable_thinking", Default::Off),
    ("documents", Default::Empty),
    ("continue_final_message", Default::Off),
    // Where they are possible these have been taken.
    ("logprobs", Default::Off),
    ("top_logprobs", Default::Number(0.0)),
    ("functions", Default::Empty),
    ("audio", Default::Empty),
    ("web_search_options", Default::Empty),
    ("chat_template", Default::Empty),
    ("verbosity", Default::Text("medium")),
    ("use_beam_search", Default::Off),
    ("length_penalty", Default::Number(1.0)),
    ("include_stop_str_in_output", Default::Off),
    ("skip_special_tokens", Default::True),
    ("spaces_between_special_tokens", Default::True),
    ("include_reasoning", Default::True),
    ("return_tokens_as_token_ids", Default::Off),
    ("prompt_logprobs", Default::Off),
    ("truncate_prompt_tokens", Default::Number(-1.0)),
    ("mm_processor_kwargs", Default::Empty),
    ("allowed_token_ids", Default::Empty),
    ("bad_words", Default::Empty),
    ("tfs_z", Default::Number(1.0)),
    ("top_a", Default::Number(0.0)),
    ("adaptive_target", Default::Number(-1.0)),
    ("n_probs", Default::Number(0.0)),
    ("min_keep", Default::Number(0.0)),
    ("n_indent", Default::Number(0.0)),
    ("lora", Default::Empty),
    ("post_sampling_probs", Default::Off),
];

impl Default {
    fn is(self, value: &Value) -> bool {
        match self {
            Default::Empty => is_empty(value),
            Default::Off => is_off(value),
            Default::True => value == true,
            Default::Number(number) => value.as_f64() == Some(number),
            Default::Text(text) => value == text || is_empty(value),
        }
    }
}

/// Leaves out what changes no answer, gives the rest its usual names, and refuses what would change the answer and cannot.
pub(super) fn check(fields: &mut Fields) -> Result<(), ApiError> {
    for (other, usual) in NAMES {
        fields.rename(other, usual)?;
    }
    fields.ignore(&IGNORED);
    for (name, default) in DEFAULTS {
        fields.neutral(name, |value| default.is(value))?;
    }
    for name in ["tool_choice", "function_call"] {
        fields.neutral(name, |value| value == "none" || value == "auto" || is_off(value))?;
    }
    fields.neutral("modalities", |modalities| *modalities == json!(["text"]))
}
