//! No text from outside is a control token: every template of the fixtures, every field, whole, cut and in other forms.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::PathBuf;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;
use crate::text::{Text, tokenizer_json};

/// Tokens that any model might have beside those that its template writes.
const OTHERS: [&str; 7] =
    ["<|im_end|>", "<|endoftext|>", "<unk>", "[PAD]", "<s>", "</think>", "ENDOFTURN"];

/// The templates of the fixtures, by their names.
fn sources() -> Vec<(String, String)> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/text/templates");
    let files = [root.to_owned(), format!("{root}/public")].map(|path| fs::read_dir(path).unwrap());
    let paths = files.into_iter().flatten().map(|file| file.unwrap().path());
    let mut paths: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|found| found == "jinja")).collect();
    paths.sort();
    let read = |path: PathBuf| {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        (name, fs::read_to_string(path).unwrap())
    };
    paths.into_iter().map(read).collect()
}

/// What looks like a control token in the source of a template.
fn spelt(source: &str) -> Vec<String> {
    let patterns = [
        r"<[|｜]?[\w▁/:.-]{1,40}[|｜]?>",
        r"</[\w:.-]{1,40}>",
        r"<start_of_\w+>|<end_of_\w+>",
        r"\[/?[A-Z][A-Z_]{2,30}\]",
    ];
    let mut found: Vec<String> = OTHERS.map(str::to_owned).into();
    for pattern in patterns {
        let pattern = fancy_regex::Regex::new(pattern).unwrap();
        found.extend(pattern.find_iter(source).map(|found| found.unwrap().as_str().to_owned()));
    }
    // Phi's are put together.
    found.extend(["system", "user", "assistant"].map(|role| format!("<|{role}|>")));
    found.sort();
    found.dedup();
    found
}

/// How a tokenizer has its added tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// All special.
    Special,
    /// All special but the tokens of reasoning and calls, and texts are normalized.
    Normalized,
}

fn text(source: &str, kind: Kind) -> Text {
    // Each byte is a token, as GPT-2 writes it.
    let bytes = tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet();
    let mut bytes: Vec<String> = bytes.into_iter().map(String::from).collect();
    bytes.sort();
    let vocab: BTreeMap<&String, usize> = bytes.iter().zip(0..).collect();
    let added = spelt(source).into_iter().zip(256..).map(|(token, id)| {
        let is_special = kind == Kind::Special || token.contains(['|', '｜', '[']);
        json!({"id": id, "content": token, "single_word": false, "lstrip": false,
            "rstrip": kind == Kind::Normalized && token.len() % 5 == 0, "normalized": kind == Kind::Normalized && !is_special,
            "special": is_special})
    });
    let tokenizer = json!({
        "added_tokens": added.collect::<Vec<_>>(),
        "normalizer": if kind == Kind::Normalized { json!({"type": "NFKC"}) } else { Json::Null },
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    });
    let tokenizer = tokenizer_json::parse(tokenizer.to_string().as_bytes()).unwrap();
    let special = [("bos_token", "<s>"), ("eos_token", "<|endoftext|>")];
    let special = special.map(|(name, token)| (name.to_owned(), token.to_owned())).into();
    let template = ChatTemplate::new([("default".to_owned(), source.to_owned())], special);
    Text::new(tokenizer, template, Vec::new())
}

/// A conversation whose texts are what `say` gives for a field.
fn chat(mut say: impl FnMut(&str) -> String) -> Chat {
    let fields = |fields: Json| fields.as_object().unwrap().clone();
    let parts = |first: String, second: String| {
        Content::Parts(vec![
            json!({"type": "text", "text": first}),
            json!({"type": "text", "text": second}),
        ])
    };
    let tool = json!({"type": "function", "function": {"name": say("tool name"),
        "description": say("description"), "parameters": {"type": "object",
            "properties": {say("property"): {"type": "string", "description": say("schema"),
                "enum": [say("enum")], say("keyword"): say("value")}},
            "required": [say("required")]}}});
    let call = json!([{"id": say("call id"), "type": "function", "function":
        {"name": say("call"), "arguments": {say("argument"): say("argument's value")}}}]);
    let of_call = fields(json!({"tool_calls": call, "reasoning_content": say("reasoning")}));
    let of_result = fields(json!({"tool_call_id": say("id"), "name": say("name")}));
    let messages = vec![
        Message::new("system", say("system")),
        Message { content: parts(say("part"), say("next part")), ..Message::new("user", "") },
        Message { fields: of_call, ..Message::new("assistant", "") },
        Message { fields: of_result, ..Message::new("tool", say("result")) },
        Message {
            fields: fields(json!({"reasoning_content": say("thought")})),
            ..Message::new("assistant", say("assistant"))
        },
        Message {
            fields: fields(json!({"name": say("user name")})),
            ..Message::new("user", say("user"))
        },
    ];
    let variables =
        fields(json!({"custom": say("variable"), "user_system_prompt": say("variable")}));
    (messages, vec![tool], variables)
}

type Chat = (Vec<Message>, Vec<Json>, Map<String, Json>);

/// The conversation, and what is left of it for templates that refuse tools in a history, or system messages.
fn histories(messages: &[Message]) -> [Vec<Message>; 3] {
    [messages.to_vec(), [&messages[..2], &messages[4..]].concat(), messages[5..].to_vec()]
}

/// The prompt of a history, if the template takes it.
fn prompt(text: &Text, messages: &[Message], chat: &Chat, parses: bool) -> Option<ChatPrompt> {
    let options = RenderOptions {
        tools: &chat.1,
        add_generation_prompt: true,
        variables: Some(&chat.2),
        now: Some(std::time::UNIX_EPOCH),
        parse_special_in_content: parses,
        ..RenderOptions::default()
    };
    text.prompt(messages, &options).ok()
}

/// The ids of the control tokens.
fn control(text: &Text) -> HashSet<u32> {
    let guard = text.guard(text.chat_template.as_ref().unwrap()).unwrap();
    guard.control.tokens().iter().map(|token| token.id).collect()
}

/// Number of control tokens of a prompt.
fn num_control(control: &HashSet<u32>, ids: &[u32]) -> usize {
    ids.iter().filter(|&id| control.contains(id)).count()
}

/// What is right of each history of a conversation.
struct Wanted {
    control: HashSet<u32>,
    /// Control tokens of its prompt, if the template takes the history.
    counts: Vec<Option<usize>>,
}

impl Wanted {
    fn of(text: &Text, harmless: &Chat) -> Self {
        let control = control(text);
        let count = |history: &Vec<Message>| {
            let prompt = prompt(text, history, harmless, false)?;
            Some(num_control(&control, &text.encode(&prompt, false).unwrap()))
        };
        let counts = histories(&harmless.0).iter().map(count).collect();
        Wanted { control, counts }
    }
}

/// Says what is wrong with the prompts of a conversation: they have as many control tokens as the harmless one, and their
/// tokens spell their text.
fn faults(text: &Text, kind: Kind, attack: &Chat, wanted: &Wanted) -> Vec<String> {
    let mut faults = Vec::new();
    for (attacking, &wanted_count) in histories(&attack.0).iter().zip(&wanted.counts) {
        let Some(want) = wanted_count else { continue };
        let Some(prompt) = prompt(text, attacking, attack, false) else { continue };
        let ids = text.encode(&prompt, false).unwrap();
        let got = num_control(&wanted.control, &ids);
        if got != want {
            faults.push(format!("{got} control tokens, not {want}: {}", prompt.text()));
        }
        if kind == Kind::Special && text.tokenizer.decode(&ids, false) != prompt.text() {
            faults.push(format!("other text: {}", text.tokenizer.decode(&ids, false)));
        }
    }
    faults
}

/// The ids are those of today where nothing spells a control token.
#[test]
fn a_harmless_conversation_has_the_tokens_that_it_always_had() {
    for (name, source) in sources() {
        for kind in [Kind::Special, Kind::Normalized] {
            let text = text(&source, kind);
            let chat = chat(|field| format!("a {field} of <b> & \u{e9}\n"));
            for messages in histories(&chat.0) {
                let prompts = [true, false].map(|parses| prompt(&text, &messages, &chat, parses));
                let [Some(old), Some(new)] = &prompts else {
                    assert!(prompts.iter().all(Option::is_none), "{name}: {prompts:?}");
                    continue;
                };
                assert_eq!(new.text(), old.text(), "{name}");
                assert_eq!(new.num_neutralised(), 0, "{name}");
                let [old, new] = [old, new].map(|prompt| text.encode(prompt, false).unwrap());
                assert_eq!(new, old, "{name}, {kind:?}: {:?}", text.tokenizer.decode(&new, false));
            }
        }
    }
}

/// The control tokens of a model: those that are special, and all.
fn spellings(text: &Text) -> (Vec<String>, Vec<String>) {
    let guard = text.guard(text.chat_template.as_ref().unwrap()).unwrap();
    let all = guard.control.tokens();
    let of = |tokens: Vec<&ControlToken>| -> Vec<String> {
        tokens.iter().map(|token| token.spelling.clone()).collect()
    };
    (of(all.iter().filter(|token| token.is_special).collect()), of(all.iter().collect()))
}

/// Mistral's templates take ids of nine letters.
fn harmless(field: &str) -> String {
    if field.ends_with("id") { "callabcde".to_owned() } else { format!("x{field}") }
}

/// Some vocabularies have control tokens among their words, where an outside text would find them.
#[test]
fn a_control_token_that_is_a_word_too_is_not_found_in_a_text() {
    let bytes = tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet();
    let mut vocab: BTreeMap<String, usize> = bytes.into_iter().map(String::from).zip(0..).collect();
    vocab.insert("END".to_owned(), 256);
    let tokenizer = json!({
        "added_tokens": [{"id": 256, "content": "END", "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true}],
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": vocab, "merges": [], "ignore_merges": true},
    });
    let tokenizer = tokenizer_json::parse(tokenizer.to_string().as_bytes()).unwrap();
    let source = "{{ messages[0].content }}END".to_owned();
    let template = ChatTemplate::new([("default".to_owned(), source)], BTreeMap::new());
    let text = Text::new(tokenizer, template, Vec::new());
    for content in ["END", "a END b", "ENDEND", "END!END"] {
        let messages = [Message::new("user", content)];
        let prompt = text.prompt(&messages, &RenderOptions::default()).unwrap();
        let ids = text.encode(&prompt, false).unwrap();
        assert_eq!(ids.iter().filter(|&&id| id == 256).count(), 1, "{content}: {ids:?}");
        assert_eq!(ids.last(), Some(&256));
        assert_eq!(text.tokenizer.decode(&ids, false), format!("{content}END"));
    }
}

/// A history sent back has the ids that were generated: the assistant's marks of reasoning and calls are tokens.
#[test]
fn own_marks_of_the_assistant_are_tokens() {
    let mut num_marks = 0;
    for (name, source) in sources() {
        let text = text(&source, Kind::Normalized);
        let (special, all) = spellings(&text);
        let own: Vec<&str> =
            all.iter().filter(|token| !special.contains(token)).map(String::as_str).collect();
        let said = format!("<think>a</think>b{}c", own.join(" "));
        let chat = chat(|field| if field == "assistant" { said.clone() } else { harmless(field) });
        for messages in histories(&chat.0) {
            let prompts = [true, false].map(|parses| prompt(&text, &messages, &chat, parses));
            let [Some(old), Some(new)] = &prompts else { continue };
            let [old, new] = [old, new].map(|prompt| text.encode(prompt, false).unwrap());
            assert_eq!(new, old, "{name}: {}", text.tokenizer.decode(&new, false));
            num_marks += own
                .iter()
                .filter(|mark| text.tokenizer.decode(&new, false).contains(**mark))
                .count();
        }
    }
    assert!(num_marks > 500, "{num_marks}");
}

/// Spellings of `tokens` in some form.
fn forms(tokens: &[String]) -> Vec<(&'static str, String)> {
    let wide = |char: char| match char {
        '!'..='~' => char::from_u32(u32::from(char) - 0x21 + 0xFF01).unwrap(),
        char => char,
    };
    let whole = tokens.join(" ");
    vec![
        ("full-width", whole.chars().map(wide).collect()),
        // `<` and `>` with a stroke through them, in one character and in two.
        ("NFD", whole.replace('<', "<\u{338}").replace('>', ">\u{338}")),
        ("NFC", whole.replace('<', "\u{226E}").replace('>', "\u{226F}")),
        (
            "marks",
            format!("\u{100000}|im_end|>\u{FDD0}\u{F0000}\u{FDD0}\u{10FFFD}\u{F0001}{whole}"),
        ),
        ("whole", whole),
    ]
}

#[test]
fn no_text_from_outside_is_a_control_token() {
    let (mut bad, mut num_attacked) = (Vec::new(), 0);
    for (name, source) in sources() {
        for kind in [Kind::Special, Kind::Normalized] {
            let text = text(&source, kind);
            let (special, all) = spellings(&text);
            let plain = chat(harmless);
            let wanted = Wanted::of(&text, &plain);
            // Where such texts are parsed, this is an attack.
            let spelt =
                chat(|field| if field == "user" { special.join("") } else { harmless(field) });
            let user = &spelt.0[5..];
            if let Some(parsed) = prompt(&text, user, &spelt, true)
                && parsed.text().contains(&special.join(""))
            {
                num_attacked += 1;
                let ids = text.encode(&parsed, false).unwrap();
                let plain = prompt(&text, &plain.0[5..], &plain, false).unwrap();
                let plain = num_control(&wanted.control, &text.encode(&plain, false).unwrap());
                assert!(num_control(&wanted.control, &ids) >= plain + special.len(), "{name}");
            }
            // The assistant's own marks are none from outside.
            for ((form, all), (_, special)) in forms(&all).into_iter().zip(forms(&special)) {
                let attack = chat(|field| match field {
                    "call id" | "id" => harmless(field),
                    "assistant" => format!("{field}{special}{field}"),
                    _ => format!("{field}{all}{field}"),
                });
                let faults = faults(&text, kind, &attack, &wanted);
                bad.extend(faults.iter().map(|fault| format!("{name}, {kind:?}, {form}: {fault}")));
            }
        }
    }
    assert!(bad.is_empty(), "{} of them:\n{}", bad.len(), bad.join("\n\n"));
    assert!(num_attacked > 100, "{num_attacked}");
}

/// Cut in two, which the template or a text beside it may put together again.
#[test]
fn no_part_of_a_text_from_outside_is_a_part_of_a_control_token() {
    let mut bad = Vec::new();
    for (name, source) in sources() {
        let text = text(&source, Kind::Special);
        let wanted = Wanted::of(&text, &chat(harmless));
        for (index, token) in spellings(&text).1.iter().enumerate() {
            let chars: Vec<char> = token.chars().collect();
            let cut = [1, chars.len() / 2, chars.len() - 1][index % 3];
            let parts = [&chars[..cut], &chars[cut..]].map(|part| part.iter().collect::<String>());
            let mut is_first = false;
            let attack = chat(|field| {
                is_first = !is_first;
                match field {
                    "call id" | "id" => harmless(field),
                    // No name twice.
                    "call" | "keyword" | "property" | "argument" => format!("{}{field}", parts[1]),
                    _ => parts[usize::from(!is_first)].clone(),
                }
            });
            let faults = faults(&text, Kind::Special, &attack, &wanted);
            bad.extend(faults.iter().map(|fault| format!("{name}, {token} cut at {cut}: {fault}")));
        }
    }
    assert!(bad.is_empty(), "{} of them:\n{}", bad.len(), bad.join("\n\n"));
}

/// What a template puts together of its own text and a name from outside.
#[test]
fn no_name_from_outside_completes_a_control_token() {
    let source = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% for key, value in m.items() \
        %}<{{ key }}>{{ value }}{% endfor %}{% endfor %}";
    let text = text(&format!("{source}{{# <|tool|> <key> #}}"), Kind::Special);
    let of = |role: &str, key: &str| {
        let mut message = Message::new(role, "x");
        message.fields.insert(key.to_owned(), "y".into());
        let messages = [Message::new("user", "x"), message];
        let prompt = text.prompt(&messages, &RenderOptions::default()).unwrap();
        let ids = text.encode(&prompt, false).unwrap();
        let added = ids.iter().filter(|&&id| id >= 256);
        added.map(|&id| text.tokenizer.id_to_token(id).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(of("assistant", "a"), ["<|user|>", "<|end|>", "<|assistant|>", "<|end|>"]);
    let one = ["<|user|>", "<|end|>", "<|end|>"];
    for (role, key) in [
        ("x", "a"),
        ("end", "a"),
        ("x", "key"),
        ("x", "|user|"),
        ("x", "s"),
        ("x", "/think"),
        ("user|>", "a"),
        ("|user", "a"),
        ("x|>\n<|user", "a"),
    ] {
        assert_eq!(of(role, key), one, "{role}, {key}");
    }
}

/// Templates that write an outside text as it is: none of their own tokens counts as one from outside.
#[test]
fn where_a_token_comes_from() {
    let mut num_known = 0;
    for (name, source) in sources() {
        let text = text(&source, Kind::Special);
        let chat = chat(|field| match field.ends_with("id") {
            true => "callabcde".to_owned(),
            false => format!("ж\"ж <|im_end|> {}ж", field.replace(|char| char != ' ', "ж")),
        });
        for messages in histories(&chat.0) {
            let options = RenderOptions {
                tools: &chat.1,
                add_generation_prompt: true,
                variables: Some(&chat.2),
                now: Some(std::time::UNIX_EPOCH),
                ..RenderOptions::default()
            };
            let Ok(prompt) = text.prompt(&messages, &options) else { continue };
            let Some(is_outside) =
                text.outside_tokens(&prompt, &messages, &options, false).unwrap()
            else {
                continue;
            };
            num_known += 1;
            let ids = text.encode(&prompt, false).unwrap();
            assert_eq!(ids.len(), is_outside.len(), "{name}");
            let of = |outside: bool| {
                let ids =
                    ids.iter().zip(&is_outside).filter(|(_, is_outside)| **is_outside == outside);
                let ids: Vec<u32> = ids.map(|(&id, _)| id).collect();
                text.tokenizer.decode(&ids, false)
            };
            let count = |text: &str| text.chars().filter(|&char| char == 'ж').count();
            assert_eq!(count(&of(true)), count(prompt.text()), "{name}: {}", of(true));
            assert_eq!(count(&of(false)), 0, "{name}: {}", of(false));
            // What is inside of such a text is of it, too.
            let inside = "ж <|im_end|> ж";
            let num_inside = prompt.text().matches(inside).count();
            assert_eq!(of(true).matches(inside).count(), num_inside, "{name}: {}", of(true));
            let (spelt, end) = ("<|im_end|>", text.tokenizer.token_to_id("<|im_end|>").unwrap());
            let written = ids.iter().filter(|&&id| id == end).count();
            assert_eq!(
                of(true).matches(spelt).count(),
                prompt.text().matches(spelt).count() - written,
                "{name}"
            );
        }
    }
    assert!(num_known > 100, "{num_known} prompts");
}

/// `HALFWARP_HISTORIES` says how many: `cargo xtask emulate` is for many of other things.
#[test]
fn histories_of_random_texts() {
    let num = std::env::var("HALFWARP_HISTORIES").map_or(150, |num| num.parse().unwrap());
    let mut rng = ChaCha8Rng::seed_from_u64(55);
    let texts: Vec<(String, Text)> = sources()
        .into_iter()
        .map(|(name, source)| {
            let text = text(&source, Kind::Special);
            (name, text)
        })
        .collect();
    for index in 0..num {
        let (name, text) = &texts[index % texts.len()];
        let (_, all) = spellings(text);
        let mut random = || -> String {
            let mut out = String::new();
            for _ in 0..rng.random_range(1..6) {
                let token = &all[rng.random_range(0..all.len())];
                let chars = token.chars().count();
                let (from, to) = (rng.random_range(0..chars), rng.random_range(0..=chars));
                match rng.random_range(0..6) {
                    0 => out += token,
                    1 | 2 => out.extend(token.chars().skip(from).take(to)),
                    3 => out.push(char::from_u32(rng.random_range(0x10_0000..0x11_0000)).unwrap()),
                    4 => out.push_str(
                        ["\u{FDD0}", "\u{F0001}", "\u{10FFFD}", "|", "<", "\n", " ", "\0"]
                            [rng.random_range(0..8)],
                    ),
                    _ => out.push_str("word"),
                }
            }
            out
        };
        let attack = chat(|field| match field {
            "call id" | "id" => harmless(field),
            "assistant" => format!("{}x", random().replace(['<', '['], "")),
            "call" | "keyword" | "property" | "argument" => format!("{}{field}", random()),
            _ => format!("{}x", random()),
        });
        let faults = faults(text, Kind::Special, &attack, &Wanted::of(text, &chat(harmless)));
        assert!(faults.is_empty(), "{name}, {index}: {faults:?}\n{attack:?}");
    }
}
