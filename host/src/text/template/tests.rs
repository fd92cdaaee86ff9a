//! Snippets against Jinja2, public templates against transformers; see `tests/fixtures/text/make_*.py`.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use serde_json::json;

use super::*;

/// Snippets that give something else, and why.
const SNIPPETS: [(&str, &str); 53] = [
    ("{{ big }}", "integers are bounded"),
    ("{{ big + 1 }}", "integers are bounded"),
    ("{{ big is integer }}", "integers are bounded"),
    ("{{ big|tojson }}", "integers are bounded"),
    ("{{ 10 ** 40 }}", "integers are bounded"),
    ("{{ {1: 'a', 1.5: 'b', true: 'c', none: 'd'} }}", "1 and true are two keys"),
    ("{{ {1: 2, none: 3, true: 4, 1.5: 5}|tojson }}", "1 and true are two keys"),
    ("{{ 1 < 'a' }}", "values of different types have an order"),
    ("{{ none < 1 }}", "values of different types have an order"),
    ("{{ d < d }}", "values of different types have an order"),
    ("{{ undefined_thing < 1 }}", "values of different types have an order"),
    ("{{ 1 in s }}", "values of different types have an order"),
    ("{{ range(10)[2:5] }}", "iterators are written as lists, and taken for them"),
    ("{{ range(3) }}", "iterators are written as lists, and taken for them"),
    ("{{ range(1, 10, 2) }}", "iterators are written as lists, and taken for them"),
    ("{{ d.keys() }}", "iterators are written as lists, and taken for them"),
    ("{{ d.values() }}", "iterators are written as lists, and taken for them"),
    ("{{ d.items() }}", "iterators are written as lists, and taken for them"),
    ("{{ d.keys()|tojson }}", "iterators are written as lists, and taken for them"),
    ("{{ d.keys() is sequence }}", "iterators are written as lists, and taken for them"),
    ("{{ l|map('string')|length }}", "iterators are written as lists, and taken for them"),
    ("{{ namespace() is mapping }}", "namespaces are taken for mappings"),
    ("{{ namespace(a=1)|tojson }}", "namespaces are taken for mappings"),
    ("{{ namespace(a=1) }}", "namespaces are taken for mappings"),
    ("{{ undefined_thing[1:] }}", "undefined has parts"),
    ("{{ html|striptags }}", "there is no such filter: it writes HTML, or differs from run to run"),
    (
        "{{ 'http://x.y/a b?c=é'|urlencode }}",
        "there is no such filter: it writes HTML, or differs from run to run",
    ),
    (
        "{{ {'a': 1, 'b': 'x y'}|urlencode }}",
        "there is no such filter: it writes HTML, or differs from run to run",
    ),
    ("{{ d|xmlattr }}", "there is no such filter: it writes HTML, or differs from run to run"),
    (
        "{{ {'a': 1, 'b': none, 'c': '<'}|xmlattr }}",
        "there is no such filter: it writes HTML, or differs from run to run",
    ),
    ("{{ l|random in l }}", "there is no such filter: it writes HTML, or differs from run to run"),
    ("{{ 'foo bar baz'|wordwrap(7) }}", "there is no such filter"),
    ("{{ 1024|filesizeformat }}", "there is no such filter"),
    ("{{ 1500000|filesizeformat(true) }}", "there is no such filter"),
    ("{{ l|pprint }}", "there is no such filter"),
    ("{{ s|pprint }}", "there is no such filter"),
    ("{{ d|pprint }}", "there is no such filter"),
    ("{{ 'ß'.casefold() }}", "there is no such method"),
    ("{{ 'abc'.encode() }}", "there is no such method"),
    ("{{ 'ab'.translate({97: 'x'}) }}", "there is no such method"),
    ("{{ '½'.isdigit() }}", "digits are of one class"),
    ("{{ '一'.isnumeric() }}", "digits are of one class"),
    ("{{ s['upper']() }}", "methods are no values"),
    ("{{ d['get']('b') }}", "methods are no values"),
    ("{{ d|attr('b') }}", "attributes and items are the same"),
    ("{{ users|last|attr('name') }}", "attributes and items are the same"),
    ("{{ self is defined }}", "templates have no self"),
    ("{{ self.x }}", "templates have no self"),
    (
        "{% macro m(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, z=3) }}",
        "macros take what they name",
    ),
    (
        "{% macro m(a, b=2, c='x') %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }} {{ m(1, 3) }} {{ m(1, c=5) }} {{ m() }}| {{ m(a=9) }} {{ m.name }} {{ m.arguments }}",
        "the names are a list",
    ),
    (
        "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}",
        "a cycler has no current",
    ),
    ("{{ 'ab' * -1 }}", "refused: a count below zero"),
    ("{{ l|batch(0)|list }}", "refused: a count below zero"),
];

/// Chats of public templates that give something else, and why.
const PUBLIC: [(&str, &str, &str); 3] = [
    ("llama-cpp-deepseek-r1.jinja", "tools", "a generator is taken for a list"),
    ("llama-cpp-deepseek-r1.jinja", "call", "a generator is taken for a list"),
    ("llama-cpp-deepseek-r1.jinja", "reasoning", "a generator is taken for a list"),
];

fn fixture(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "../tests/fixtures/text", name].iter().collect()
}

fn read(name: &str) -> Json {
    serde_json::from_slice(&fs::read(fixture(name)).expect("a fixture")).expect("JSON")
}

fn template(sources: &[(&str, &str)]) -> ChatTemplate {
    let sources = sources.iter().map(|(name, source)| (name.to_string(), source.to_string()));
    let special = [("bos_token", "<s>"), ("eos_token", "</s>")];
    let special = special.map(|(name, token)| (name.to_owned(), token.to_owned())).into();
    ChatTemplate::new(sources, special).expect("a source")
}

/// Noon of the fixtures' day.
fn now() -> Option<SystemTime> {
    Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_780_800))
}

fn message(json: &Json) -> Message {
    let mut fields = json.as_object().expect("an object").clone();
    let role = fields.shift_remove("role").expect("a role");
    let content = match fields.shift_remove("content") {
        Some(Json::String(text)) => Content::Text(text),
        Some(Json::Array(parts)) => Content::Parts(parts),
        _ => Content::Null,
    };
    Message { role: role.as_str().expect("a text").to_owned(), content, fields }
}

fn messages(json: &Json) -> Vec<Message> {
    json.as_array().expect("messages").iter().map(message).collect()
}

#[test]
fn snippets_match_jinja2() {
    let fixture = read("jinja.json");
    let variables = fixture["context"].as_object().expect("variables");
    let options = RenderOptions { variables: Some(variables), ..RenderOptions::default() };
    let context = template(&[("default", "")]).context(&[], &options);
    let mut wrong = String::new();
    for case in fixture["cases"].as_array().expect("cases") {
        let source = case[0].as_str().expect("a source");
        let program = Program::new("default".to_owned(), source.to_owned());
        let rendered = program.render(context.clone(), now());
        let is_known = SNIPPETS.iter().any(|(known, _)| *known == source);
        if (rendered.as_ref().ok().map(String::as_str) == case[1].as_str()) == is_known {
            wrong += &format!("{source:?}\n  gives {rendered:?}\n  not   {:?}\n", case[1].as_str());
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn public_templates_match_transformers() {
    let fixture_json = read("public.json");
    let texts = fixture_json["texts"].as_array().expect("texts");
    let mut wrong = String::new();
    for (name, expected) in fixture_json["templates"].as_object().expect("templates") {
        let path = fixture("templates/public").join(name);
        let template = template(&[("default", &fs::read_to_string(path).expect("a template"))]);
        for (chat, index) in expected.as_object().expect("chats") {
            let request = &fixture_json["chats"][chat];
            let options = RenderOptions {
                tools: request["tools"].as_array().expect("tools"),
                add_generation_prompt: true,
                variables: request["variables"].as_object(),
                now: now(),
                ..RenderOptions::default()
            };
            let rendered = template.render_with(&messages(&request["messages"]), &options);
            let text = index.as_u64().map(|index| texts[index as usize].as_str().expect("a text"));
            let is_known = PUBLIC.iter().any(|known| (known.0, known.1) == (name, chat));
            if (rendered.as_deref().ok() == text) == is_known {
                wrong += &format!("{name}, {chat}: {}\n", difference(rendered, text));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// The place where two texts part.
fn difference(rendered: Result<String, TextError>, expected: Option<&str>) -> String {
    let (Ok(rendered), Some(expected)) = (&rendered, expected) else {
        return format!("{rendered:?}, expected {expected:?}").chars().take(400).collect();
    };
    let (a, b): (Vec<char>, Vec<char>) = (rendered.chars().collect(), expected.chars().collect());
    let at = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
    let around = |text: &[char]| {
        let end = text.len().min(at + 60);
        text[at.saturating_sub(30).min(end)..end].iter().collect::<String>()
    };
    format!("{:?}, expected {:?}", around(&a), around(&b))
}

fn tools() -> [Json; 1] {
    [json!({"type": "function", "function": {"name": "get_weather", "description": "Weather é",
        "parameters": {"type": "object", "properties": {}}}})]
}

#[test]
fn a_name_is_chosen_by_what_is_rendered() {
    let tools = tools();
    let documents = [json!({"title": "a", "text": "b"})];
    let with = |names: &[(&str, &str)], tools: &[Json], documents: Option<&[Json]>| {
        let options = RenderOptions { tools, documents, ..RenderOptions::default() };
        template(names).render_with(&[Message::new("user", "Hi")], &options)
    };
    let all = [("default", "D"), ("rag", "R"), ("tool_use", "T{{ tools|length }}")];
    for (tools, documents, expected) in [
        (&tools[..0], None, "D"),
        (&tools, None, "T1"),
        (&tools[..0], Some(&documents[..]), "R"),
        (&tools, Some(&documents), "T1"),
    ] {
        assert_eq!(with(&all, tools, documents).expect("a template"), expected);
    }
    assert_eq!(with(&all[..1], &tools, Some(&documents)).expect("a template"), "D");
    assert_eq!(with(&all[1..], &tools, None).expect("a template"), "T1");
    let error = with(&all[1..], &[], None).expect_err("no default");
    let expected = "chat template: the model has no template 'default', but 'rag', 'tool_use'";
    assert_eq!(error.to_string(), expected);
    let template = template(&all);
    assert_eq!((template.source(), template.source_for(true)), ("D", all[2].1));
    // A variable counts too.
    let variables = json!({"tools": [1, 2]});
    let options = RenderOptions { variables: variables.as_object(), ..RenderOptions::default() };
    assert_eq!(template.render_with(&[], &options).expect("a template"), "T2");
}

#[test]
fn variables_do_not_replace_messages() {
    let template =
        template(&[("default", "{{ bos_token }}{{ eos_token }}{{ x }}{{ messages|length }}")]);
    let variables = json!({"x": true, "eos_token": "E", "messages": []});
    let options = RenderOptions { variables: variables.as_object(), ..RenderOptions::default() };
    let rendered = template.render_with(&[Message::new("user", "Hi")], &options);
    assert_eq!(rendered.expect("a template"), "<s>ETrue1");
}

#[test]
fn content_is_given_as_the_template_takes_it() {
    let parts =
        json!([{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]);
    let parts = Content::Parts(parts.as_array().expect("parts").clone());
    let render = |source: &str, content: &Content| {
        let message = Message { content: content.clone(), ..Message::new("user", "") };
        let template = template(&[("default", source)]);
        (template.takes_parts(), template.render(&[message], false).expect("a template"))
    };
    let iterates = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}\
                    {% for p in m.content %}<{{ p.type }}{{ p.text }}>{% endfor %}{% endif %}{% endfor %}";
    let needs =
        "{% for m in messages %}{% for p in m.content %}{{ p.text }};{% endfor %}{% endfor %}";
    for (source, takes_parts, of_parts, of_text) in [
        ("{% for m in messages %}[{{ m.content }}]{% endfor %}", false, "[a\nb]", "[t]"),
        ("{% for m in messages %}{{ '[' + m.content + ']' }}{% endfor %}", false, "[a\nb]", "[t]"),
        (iterates, true, "<texta><image><textb>", "t"),
        (needs, true, "a;;b;", "t;"),
    ] {
        assert_eq!(render(source, &parts), (takes_parts, of_parts.to_owned()), "{source}");
        let text = Content::Text("t".to_owned());
        assert_eq!(render(source, &text), (takes_parts, of_text.to_owned()), "{source}");
    }
}

#[test]
fn null_content_stays_null_where_the_template_knows_it() {
    let call = json!([{"id": "1", "type": "function", "function": {"name": "f", "arguments": {}}}]);
    let fields = [("tool_calls".to_owned(), call)].into_iter().collect();
    let call = Message { fields, content: Content::Null, role: "assistant".to_owned() };
    for (source, expected) in [
        (
            "{% for m in messages %}{% if m.content is none %}CALLS {{ m.tool_calls|length }}{% else %}\
          [{{ m.content }}]{% endif %}{% endfor %}",
            "[Hi]CALLS 1",
        ),
        ("{% for m in messages %}[{{ m.content }}]{% endfor %}", "[Hi][]"),
        ("{% for m in messages %}{{ '[' + m.content + ']' }}{% endfor %}", "[Hi][]"),
    ] {
        let messages = [Message::new("user", "Hi"), call.clone()];
        let rendered = template(&[("default", source)]).render(&messages, false);
        assert_eq!(rendered.expect("a template"), expected, "{source}");
    }
    // QwQ's template reads a text in all messages but the last.
    let source = "{% for m in messages %}{% if not loop.last %}{{ m.content.split('-')[0] }}\
                  {% endif %}{% endfor %}";
    let messages = [Message::new("user", "Hi-"), call, Message::new("tool", "1")];
    let rendered = template(&[("default", source)]).render(&messages, false);
    assert_eq!(rendered.expect("a template"), "Hi");
}

/// Phi-4-mini's template.
#[test]
fn tools_go_into_the_system_message() {
    let source = "{% for m in messages %}{% if m['role'] == 'system' and 'tools' in m and m['tools'] is not none %}\
        {{ '<|system|>' + m['content'] + '<|tool|>' + m['tools'] + '<|/tool|><|end|>' }}{% else %}\
        {{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endif %}{% endfor %}";
    let template = template(&[("default", source)]);
    assert!(template.takes_tools_in_system_message());
    let tools = tools();
    let options = RenderOptions { tools: &tools, ..RenderOptions::default() };
    let json = "[{\"name\": \"get_weather\", \"description\": \"Weather é\", \
                \"parameters\": {\"type\": \"object\", \"properties\": {}}}]";
    let user = Message::new("user", "Hi");
    let rendered = template.render_with(std::slice::from_ref(&user), &options);
    let expected = format!("<|system|><|tool|>{json}<|/tool|><|end|><|user|>Hi<|end|>");
    assert_eq!(rendered.expect("a template"), expected);
    let rendered = template.render_with(&[Message::new("system", "S"), user.clone()], &options);
    let expected = format!("<|system|>S<|tool|>{json}<|/tool|><|end|><|user|>Hi<|end|>");
    assert_eq!(rendered.expect("a template"), expected);
    let plain = template.render(&[user], false).expect("a template");
    assert_eq!(plain, "<|user|>Hi<|end|>");
}

#[test]
fn the_last_message_is_continued() {
    let keeps = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>\n{% endfor %}";
    let trims = "{% for m in messages %}<{{ m.role }}>{{ m.content|trim }}</s>\n{% endfor %}";
    let options = RenderOptions { continue_final_message: true, ..RenderOptions::default() };
    let render = |source: &str, messages: &[Message]| {
        template(&[("default", source)]).render_with(messages, &options)
    };
    let chat = [Message::new("user", "Hi"), Message::new("assistant", "I am ")];
    assert_eq!(render(keeps, &chat).expect("a template"), "<user>Hi</s>\n<assistant>I am ");
    assert_eq!(render(trims, &chat).expect("a template"), "<user>Hi</s>\n<assistant>I am");
    assert!(render("{{ messages[0].content }}", &chat).is_err());
    assert!(render(keeps, &[]).is_err());
    let both = RenderOptions { add_generation_prompt: true, ..options };
    assert!(template(&[("default", keeps)]).render_with(&chat, &both).is_err());
}

/// As transformers: templates differ in the name of the reasoning.
#[test]
fn reasoning_has_each_of_its_names() {
    let source = "{{ messages[0].reasoning_content }}|{{ messages[0].thinking }}|{{ messages[0].reasoning }}";
    for (name, expected) in
        [("reasoning_content", "r|r|"), ("thinking", "r|r|"), ("reasoning", "r|r|r")]
    {
        let mut message = Message::new("assistant", "a");
        message.fields.insert(name.to_owned(), "r".into());
        let rendered = template(&[("default", source)]).render(&[message], false);
        assert_eq!(rendered.expect("a template"), expected, "{name}");
    }
}

#[test]
fn what_is_unknown_is_named() {
    for (source, name) in [
        ("{{ 'a'|no_filter }}", "no_filter"),
        ("{{ ['a']|map('no_filter') }}", "no_filter"),
        ("{{ 'a' is no_test }}", "no_test"),
        ("{{ ['a']|select('no_test') }}", "no_test"),
        ("{{ no_function() }}", "no_function"),
        ("{{ 'a'.no_method() }}", "no_method"),
        ("{{ [].append(1) }}", "append"),
        ("{{ {}.update({}) }}", "update"),
        ("{{ 'a'|join(nothing=1) }}", "nothing"),
        ("{{ strftime_now('%Q') }}", "%Q"),
    ] {
        let error = template(&[("default", source)]).render(&[], false).expect_err(source);
        assert!(error.to_string().contains(name), "{error}");
    }
}

#[test]
fn a_source_that_ends_anywhere_is_rewritten_or_refused() {
    for name in ["features.jinja", "python.jinja"] {
        let path = fixture("templates").join(name);
        let source = fs::read_to_string(path).expect("a template");
        for (end, _) in source.char_indices() {
            source::rewritten(&source[..end]);
        }
    }
    for broken in [
        "{{ a[",
        "{{ ] ~ [ }}",
        "{% for",
        "{% for a in %}",
        "{{ ~ }}",
        "{{ '\\",
        "{{ x[::",
        "{{ ) % ( }}",
    ] {
        assert!(template(&[("default", broken)]).render(&[], false).is_err(), "{broken}");
    }
    for (huge, why) in [
        ("{{ 'a'.zfill(-9223372036854775808) }}", None),
        ("{{ 'a'.center(1000000000) }}", Some("width")),
        ("{{ '\\t'.expandtabs(1000000) }}", Some("size")),
        (
            "{% set ns = namespace(x=[]) %}{% for i in range(2000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
            Some("nested"),
        ),
    ] {
        let rendered = template(&[("default", huge)]).render(&[], false);
        match (rendered, why) {
            (Err(error), Some(why)) => assert!(error.to_string().contains(why), "{error}"),
            (rendered, why) => assert!(rendered.is_ok() && why.is_none(), "{huge}: {rendered:?}"),
        }
    }
}
