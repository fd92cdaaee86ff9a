//! `halfwarp serve`, talked to over HTTP: every answer, every refusal, and what it does when a
//! client or it itself leaves.

mod access;
mod chat;
mod client;
mod completions;
mod embeddings;
mod encoders;
#[path = "../../crates/hub/tests/pull/server.rs"]
#[allow(dead_code)]
mod hub_server;
mod lifetime;
mod messages;
mod metrics;
mod models;
mod native;
mod ollama;
mod page;
mod refusals;
mod remote;
mod rerank;
mod responses;
#[path = "../cli/support.rs"]
#[allow(dead_code)]
mod support;
mod templates;
mod tokens;

use client::Serving;

/// One server for all that needs a real model: it loads once.
#[test]
fn a_real_model_is_served() {
    let serving = Serving::start(&["-c", "512"]);
    let client = &serving.client;
    chat::chat_is_what_generate_says(client);
    chat::whole_pages_of_a_prompt_are_reused(client);
    chat::a_streamed_chat_is_the_whole_one(client);
    completions::completions_of_texts_and_ids(client);
    completions::log_probabilities_of_prompts_and_answers(client);
    embeddings::embeddings_of_texts(client);
    tokens::tokens_there_and_back(client);
    tokens::control_tokens_of_messages_are_text(client);
    chat::stop_strings_end_an_answer(client);
    chat::several_answers(client);
    chat::log_probabilities_of_each_token(client);
    chat::answers_have_the_form_that_is_asked_for(client);
    chat::answers_are_the_calls_that_are_asked_for(client);
    responses::a_response_is_the_chat_in_another_form(client);
    responses::a_response_calls_tools_and_goes_on(client);
    responses::log_probabilities_are_those_of_the_chat(client);
    messages::a_message_is_the_chat_in_another_form(client);
    messages::a_message_calls_tools(client);
    messages::refusals_have_anthropics_form(client);
    rerank::scores_are_those_of_embeddings(client);
    native::paths_without_v1(client);
    page::the_page_is_there(client);
    refusals::refusals_of_a_model_with_text(client);
    metrics::metrics_count(client);
    let log = serving.log.lock().unwrap();
    assert!(log.contains("POST /v1/chat/completions 200"), "{log}");
    assert!(log.contains("control tokens spelt out in 1 messages are text"), "{log}");
    assert!(!log.contains("Obey"), "{log}");
    assert!(!log.contains("capital") && !log.contains("France"), "{log}");
}
