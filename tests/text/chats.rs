//! Chat templates, against jinja2 as transformers sets it up; and where they come from.

use std::fs;

use halfwarp::text::{ChatTemplate, Message, RenderOptions, Text, TextError};
use halfwarp::weights::gguf::{Metadata, Value};
use libtest_mimic::Trial;
use serde_json::json;

use crate::fixtures::{self, metadata, read, string};
use crate::trial;

const TEMPLATES: [&str; 10] = [
    "features", "python", "llama2", "llama3", "llama3_1", "mistral", "phi3", "qwen2_5", "qwen3",
    "smollm2",
];

pub fn trials() -> Vec<Trial> {
    let oracle = TEMPLATES.into_iter().map(|name| {
        trial(&format!("chats::template_matches_jinja2::{name}"), move || matches_jinja2(name))
    });
    oracle
        .chain([
            trial("chats::tools_match_jinja2", tools_match_jinja2),
            trial("chats::generation_marks_are_transparent", generation_marks_are_transparent),
            trial("chats::sources_in_a_directory", sources_in_a_directory),
            trial("chats::named_templates", named_templates),
            trial("chats::special_tokens_are_variables", special_tokens_are_variables),
            trial("chats::end_of_turn_is_a_stop_token", end_of_turn_is_a_stop_token),
            trial("chats::rejects_malformed_and_endless", rejects_malformed_and_endless),
            trial("chats::nests_as_deep_as_it_is_long", nests_as_deep_as_it_is_long),
        ])
        .collect()
}

fn template(source: &str) -> ChatTemplate {
    let tokens = ["<s>", "</s>"].map(string).to_vec();
    let metadata = metadata([
        ("model", string("gpt2")),
        ("tokens", Value::Array(tokens)),
        ("merges", Value::Array(Vec::new())),
        ("bos_token_id", Value::U32(0)),
        ("eos_token_id", Value::U32(1)),
    ]);
    let mut metadata = metadata;
    metadata.0.insert("tokenizer.chat_template".to_owned(), string(source));
    fixtures::text(&metadata).chat_template.expect("a chat template")
}

fn matches_jinja2(name: &str) {
    let path = crate::tests_dir().join(format!("fixtures/text/templates/{name}.jinja"));
    let template = template(&fs::read_to_string(path).expect("a template"));
    let cases = read("fixtures/text/chats.json");
    let cases = cases.as_array().expect("cases").iter();
    let cases: Vec<_> = cases.filter(|case| case["template"] == format!("{name}.jinja")).collect();
    assert!(!cases.is_empty());
    for case in cases {
        let pairs: Vec<(String, String)> =
            serde_json::from_value(case["messages"].clone()).expect("messages");
        let messages: Vec<Message> =
            pairs.into_iter().map(|(role, content)| Message::new(role, content)).collect();
        let prompt = case["add_generation_prompt"].as_bool().expect("a Boolean");
        match (template.render(&messages, prompt), case["rendered"].as_str()) {
            (Ok(text), Some(expected)) => assert_eq!(text, expected, "{messages:?}"),
            (Err(TextError::Template(reason)), None) => {
                let expected = case["error"].as_str().expect("an error");
                assert!(reason.contains(expected), "{reason:?} should say {expected:?}");
            }
            (rendered, expected) => panic!("{rendered:?}, where jinja2 has {expected:?}"),
        }
    }
}

/// What transformers 5.17 renders.
fn tools_match_jinja2() {
    let cases = read("fixtures/text/tools.json");
    for case in cases.as_array().expect("cases") {
        let name = case["template"].as_str().expect("a name");
        let path = crate::tests_dir().join("fixtures/text/templates").join(name);
        let template = template(&fs::read_to_string(path).expect("a template"));
        let messages = case["messages"].as_array().expect("messages").iter().map(|message| {
            let mut fields = message.as_object().expect("a message").clone();
            let [role, content] = ["role", "content"]
                .map(|name| fields.remove(name).expect("text").as_str().expect("text").to_owned());
            Message { fields, ..Message::new(role, content) }
        });
        let messages: Vec<Message> = messages.collect();
        let tools = case["tools"].as_array().expect("tools");
        let options =
            RenderOptions { tools, add_generation_prompt: true, ..RenderOptions::default() };
        let rendered = template.render_with(&messages, &options).expect("a good template");
        assert_eq!(rendered, case["rendered"].as_str().expect("text"), "{name}");
    }
}

fn generation_marks_are_transparent() {
    for (source, expected) in [
        ("[ {% generation %} {{ messages[0].content }} {% endgeneration %} ]", "[  u  ]"),
        ("[ {%- generation -%} a {%- endgeneration -%} ]", "[a]"),
        (
            "{% if false %}{%generation%}a{%endgeneration%}{% endif %}{{ '{ % generation' }}",
            "{ % generation",
        ),
    ] {
        let rendered = template(source).render(&[Message::new("user", "u")], true);
        assert_eq!(rendered.expect("a good template"), expected, "{source}");
    }
}

fn sources_in_a_directory() {
    let tokenizer = crate::tests_dir().join("fixtures/text/byte_level/tokenizer.json");
    let dir = tempfile::tempdir().expect("a directory");
    let open = || Text::from_dir(dir.path()).expect("good files");
    assert!(open().is_none(), "no tokenizer.json");
    fs::copy(tokenizer, dir.path().join("tokenizer.json")).expect("copied");
    assert!(open().expect("a tokenizer").chat_template.is_none());

    let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).expect("written");
    let render = || {
        let template = open().expect("a tokenizer").chat_template.expect("a chat template");
        template.render(&[Message::new("user", "u")], false).expect("a good template")
    };
    let config = json!({"chat_template": "{{ bos_token }}one", "bos_token": "<s>"});
    write("tokenizer_config.json", &config.to_string());
    assert_eq!(render(), "<s>one");
    let config = json!({
        "chat_template": [
            {"name": "tool_use", "template": "tools"},
            {"name": "default", "template": "{{ bos_token }}two{{ eos_token }}"},
        ],
        "bos_token": {"__type": "AddedToken", "content": "<b>", "lstrip": false},
        "eos_token": null,
    });
    write("tokenizer_config.json", &config.to_string());
    assert_eq!(render(), "<b>two");
    write("chat_template.jinja", "{{ bos_token }}three\n");
    assert_eq!(render(), "<b>three");
    // Another in the place of all of them, with the same tokens.
    let given = Text::from_dir_with(dir.path(), Some("{{ bos_token }}four")).expect("good files");
    let template = given.expect("a tokenizer").chat_template.expect("a chat template");
    assert_eq!(template.render(&[], false).expect("a good template"), "<b>four");
}

/// Templates by name, from each place that has them.
fn named_templates() {
    let tool = json!({"type": "function", "function": {"name": "f"}});
    let render = |template: &ChatTemplate, tools: &[serde_json::Value]| {
        let options = RenderOptions { tools, ..RenderOptions::default() };
        template.render_with(&[Message::new("user", "u")], &options)
    };
    let check = |template: &ChatTemplate| {
        assert_eq!(render(template, &[]).expect("the default"), "D");
        assert_eq!(render(template, std::slice::from_ref(&tool)).expect("tool_use"), "Tf");
    };
    let tool_use = "T{{ tools[0].function.name }}";
    let dir = tempfile::tempdir().expect("a directory");
    let tokenizer = crate::tests_dir().join("fixtures/text/byte_level/tokenizer.json");
    fs::copy(tokenizer, dir.path().join("tokenizer.json")).expect("copied");
    let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).expect("written");
    let open = || {
        let text = Text::from_dir(dir.path()).expect("good files").expect("a tokenizer");
        text.chat_template.expect("a chat template")
    };
    let list =
        json!([{"name": "tool_use", "template": tool_use}, {"name": "default", "template": "D"}]);
    write("tokenizer_config.json", &json!({ "chat_template": list }).to_string());
    check(&open());
    let only = json!([{"name": "tool_use", "template": tool_use}]);
    write("tokenizer_config.json", &json!({ "chat_template": only }).to_string());
    assert_eq!(render(&open(), std::slice::from_ref(&tool)).expect("tool_use"), "Tf");
    let error = render(&open(), &[]).expect_err("no default").to_string();
    assert!(error.contains("'tool_use'"), "{error}");

    // Files take the place of the list.
    write("chat_template.jinja", "D");
    assert_eq!(render(&open(), std::slice::from_ref(&tool)).expect("the default"), "D");
    fs::create_dir(dir.path().join("additional_chat_templates")).expect("created");
    write("additional_chat_templates/tool_use.jinja", tool_use);
    check(&open());

    let mut metadata = fixtures::byte_level("qwen2");
    for (key, source) in [("", "D"), (".tool_use", tool_use)] {
        metadata.0.insert(format!("tokenizer.chat_template{key}"), string(source));
    }
    let names = Value::Array(vec![string("tool_use")]);
    metadata.0.insert("tokenizer.chat_templates".to_owned(), names);
    check(&fixtures::text(&metadata).chat_template.expect("a chat template"));
}

/// As transformers' `special_tokens_map`.
fn special_tokens_are_variables() {
    let source = "{{ bos_token }}|{{ unk_token }}|{{ pad_token }}|{{ image_token }}|{{ add_bos_token }}|{{ cls_token }}";
    let dir = tempfile::tempdir().expect("a directory");
    let tokenizer = crate::tests_dir().join("fixtures/text/byte_level/tokenizer.json");
    fs::copy(tokenizer, dir.path().join("tokenizer.json")).expect("copied");
    let write = |name: &str, json: serde_json::Value| {
        fs::write(dir.path().join(name), json.to_string()).expect("written");
    };
    write(
        "tokenizer_config.json",
        json!({"chat_template": source, "bos_token": "<b>", "add_bos_token": true, "pad_token": null,
            "unk_token": {"content": "<u>"}, "extra_special_tokens": {"image_token": "<i>"}}),
    );
    write(
        "special_tokens_map.json",
        json!({"bos_token": "<other>", "cls_token": {"content": "<c>"},
            "additional_special_tokens": ["<x>"]}),
    );
    let template = Text::from_dir(dir.path()).expect("good files").expect("a tokenizer");
    let template = template.chat_template.expect("a chat template");
    assert_eq!(template.render(&[], false).expect("a template"), "<b>|<u>||<i>||<c>");

    let mut metadata = fixtures::byte_level("qwen2");
    metadata.0.insert("tokenizer.chat_template".to_owned(), string(source));
    for (key, id) in [("padding", 1), ("unknown", 2), ("cls", 1 << 20)] {
        metadata.0.insert(format!("tokenizer.ggml.{key}_token_id"), Value::U32(id));
    }
    let text = fixtures::text(&metadata);
    let token = |id| text.tokenizer.id_to_token(id).expect("a token");
    let expected = format!("{}|{}|{}|||", token(0), token(2), token(1));
    let template = text.chat_template.expect("a chat template");
    assert_eq!(template.render(&[], false).expect("a template"), expected);
}

fn end_of_turn_is_a_stop_token() {
    let mut metadata = fixtures::byte_level("qwen2");
    let stop_tokens = |metadata: &Metadata| fixtures::text(metadata).stop_tokens;
    assert_eq!(stop_tokens(&metadata), [0u32; 0]);
    metadata.0.insert("tokenizer.ggml.eos_token_id".to_owned(), Value::U32(3));
    metadata.0.insert("tokenizer.ggml.eot_token_id".to_owned(), Value::U32(4));
    assert_eq!(stop_tokens(&metadata), [3, 4]);
    let path = crate::tests_dir().join("fixtures/text/templates/qwen2_5.jinja");
    let source = fs::read_to_string(path).expect("a template");
    metadata.0.insert("tokenizer.chat_template".to_owned(), string(&source));
    let end = fixtures::text(&metadata).tokenizer.token_to_id("<|im_end|>").expect("a token");
    assert_eq!(stop_tokens(&metadata), [3, 4, end]);

    let dir = tempfile::tempdir().expect("a directory");
    let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).expect("written");
    let from_dir = || halfwarp::text::stop_tokens_from_dir(dir.path()).expect("good files");
    assert_eq!(from_dir(), [0u32; 0]);
    write("config.json", r#"{"eos_token_id": 5}"#);
    assert_eq!(from_dir(), [5]);
    write("generation_config.json", r#"{"eos_token_id": [7, 6]}"#);
    assert_eq!(from_dir(), [7, 6]);
    write("generation_config.json", r#"{"temperature": 0.6}"#);
    assert_eq!(from_dir(), [5]);
}

fn rejects_malformed_and_endless() {
    let nested = format!("{}1{}", "(".repeat(100_000), ")".repeat(100_000));
    let nested_ifs = "{% if 1 %}".repeat(100_000);
    let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}\
                   {{ a }}{% endfor %}{% endfor %}{% endfor %}";
    for source in [
        "{% if %}",
        "{{ messages",
        "{% endfor %}",
        "{{ unknown_function() }}",
        "{{ messages.nothing.at_all }}",
        "{{ 'a'.no_such_method() }}",
        "{% include 'other' %}",
        "{{ strftime_now('%Q') }}",
        "{{ raise_exception('first line\nsecond line') }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ 1 // 0 }}",
        "{{ 'a' * 1000000000000 }}",
        &format!("{{{{ {nested} }}}}"),
        &nested_ifs,
        endless,
        "{% set x = 'a' * 1000000 %}{% for i in range(32) %}{{ x }}{% endfor %}",
        &format!("{{{{ 1{} }}}}", "+1".repeat(100_000)),
    ] {
        let error = template(source).render(&[Message::new("user", "u")], true);
        let Err(error) = error else { panic!("{source} renders") };
        assert!(matches!(error, TextError::Template(_)));
        assert_eq!(error.to_string().lines().count(), 1, "{error}");
        assert!(error.to_string().len() < 300, "{error}");
    }
}

/// minijinja's recursion, which it counts in some places only, fits the stack that it gets.
fn nests_as_deep_as_it_is_long() {
    for (nested, expected) in [
        (format!("1{}", "+1".repeat(32_000)), "32001"),
        (format!("{}1", "-".repeat(65_000)), "1"),
        (format!("{}1", "not ".repeat(16_000)), "True"),
    ] {
        let rendered = template(&format!("{{{{ {nested} }}}}")).render(&[], false);
        assert_eq!(rendered.expect("a number").to_lowercase(), expected.to_lowercase());
    }
}
