//! What the options of a command do.

use crate::support::{
    Copy, LLAMA, generate_json, golden_ids, halfwarp, join, run, stderr, stdout, with_stdin,
};
use serde_json::{Value, json};
use std::fs;

/// A sampled answer of the tiny model, with more options.
fn sampled(options: &[&str]) -> Vec<i64> {
    let args = ["-m", LLAMA, "--tokens", "1,2,3", "--ignore-eos", "--seed", "1"];
    tokens(&generate_json(&[&args, options].concat()))
}

fn tokens(output: &Value) -> Vec<i64> {
    serde_json::from_value(output["tokens"].clone()).unwrap()
}

#[test]
fn a_prompt_is_given_in_a_file_or_piped_in() {
    let text = "The first line\nand the second";
    let want = stdout(&["tokenize", "-p", text]);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("prompt.txt");
    for ending in ["", "\n"] {
        fs::write(&file, format!("{text}{ending}")).unwrap();
        assert_eq!(stdout(&["tokenize", "-f", file.to_str().unwrap()]), want);
        for args in [&["tokenize"][..], &["tokenize", "-p", "-"]] {
            let output = with_stdin(args, &format!("{text}{ending}"));
            assert_eq!(String::from_utf8(output.stdout.clone()).unwrap(), want);
        }
    }
    assert_ne!(stdout(&["tokenize", "-p", "-x"]), stdout(&["tokenize", "-p", "x"]));
}

#[test]
fn an_empty_pipe_is_no_prompt() {
    let output = with_stdin(&["generate"], "");
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("-p TEXT or -f FILE"), "{}", stderr(&output));
}

#[test]
fn tokenize_turns_ids_into_text() {
    let text = "Hello world, 1 2 3";
    let ids = stdout(&["tokenize", "-p", text]);
    assert_eq!(stdout(&["tokenize", "--tokens", ids.trim()]), format!("{text}\n"));
    let output = run(&["tokenize", "--tokens", "1,4000000"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("no token 4000000 (number 2 of"), "{}", stderr(&output));
}

#[test]
fn minus_one_token_is_no_limit() {
    let args = ["-m", LLAMA, "--tokens", "1,2,3", "--ignore-eos", "-c", "8", "-n", "-1"];
    let output = generate_json(&args);
    assert_eq!(output["finish_reason"], "context_full");
    assert!(tokens(&output).len() >= 5, "{output}");
}

#[test]
fn the_context_is_the_models_own() {
    let model = Copy::new().config(|config| {
        config.insert("max_position_embeddings".into(), json!(5000));
    });
    let prompt = join(&vec![1; 4200]);
    let args = ["generate", "--device", "cpu", "-m", model.path(), "--tokens", &prompt, "-n", "1"];
    let refused = run(&[&args[..], &["-c", "4096"]].concat());
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("4096"), "{}", stderr(&refused));
    stdout(&args);
    stdout(&[&args[..], &["-c", "0"]].concat());
}

#[test]
fn sampling_defaults_are_the_models_and_flags_override_them() {
    let model = Copy::new();
    let config = json!({"do_sample": false, "temperature": 0.7, "eos_token_id": 2});
    fs::write(model.file("generation_config.json"), config.to_string()).unwrap();
    let prompt = join(&golden_ids(LLAMA, "greedy_prompt"));
    let options = ["--dtype", "f32", "--ignore-eos", "-n", "20"];
    let args = [&["-m", model.path(), "--tokens", &prompt], &options[..]].concat();
    let greedy = golden_ids(LLAMA, "greedy_tokens")[..20].to_vec();
    assert_eq!(tokens(&generate_json(&args)), greedy);
    let hot = ["--temperature", "5", "--top-k", "0", "--min-p", "0", "--seed", "1"];
    assert_ne!(tokens(&generate_json(&[&args[..], &hot].concat())), greedy);
}

#[test]
fn a_bias_forces_a_token_and_penalties_end_its_run() {
    let forced = ["-n", "60", "--temp", "0", "--logit-bias", "7=100", "--logit-bias", "9-inf"];
    assert_eq!(sampled(&forced), [7; 60]);
    let with = |penalty| sampled(&[&forced[..], &[penalty, "2"]].concat());
    assert_eq!(with("--presence-penalty"), [7; 60], "2 once is less than 100");
    let ends = with("--frequency-penalty");
    assert_eq!(ends[..10], [7; 10]);
    assert!(ends.iter().any(|&token| token != 7), "2 for each of 60 is more than 100");
    assert!(!ends.contains(&9), "{ends:?}");
}

#[test]
fn a_presence_penalty_changes_what_is_drawn() {
    let options = ["-n", "40", "--temp", "1"];
    assert_ne!(sampled(&options), sampled(&[&options[..], &["--presence-penalty", "2"]].concat()));
}

#[test]
fn a_stop_string_ends_the_text_before_it() {
    let args = ["--chat", "-p", "What is the capital of France?", "--temp", "0", "-n", "48"];
    let whole = generate_json(&args)["text"].as_str().unwrap().to_owned();
    let stop = " of Fr";
    let (before, _) = whole.split_once(stop).unwrap();
    let stopped = [&args[..], &["--stop", "never said", "--stop", stop]].concat();
    let output = generate_json(&stopped);
    assert_eq!(output["text"], before);
    assert_eq!(output["finish_reason"], "stop");
    let printed = stdout(&[&["generate", "--device", "cpu"], &stopped[..]].concat());
    assert_eq!(printed, format!("{before}\n"));
}

#[test]
fn threads_are_as_many_as_asked_for() {
    let args = ["generate", "--device", "cpu", "-m", LLAMA, "--tokens", "1", "-n", "1", "-t", "3"];
    let output = run(&args);
    assert!(stderr(&output).contains("3 threads"), "{}", stderr(&output));
}

/// What the child is told about its arguments, and its exit code.
fn told(args: &[&str]) -> (Option<i32>, String) {
    let output = run(args);
    (output.status.code(), stderr(&output))
}

#[test]
fn more_threads_than_cores_are_warned_of() {
    let args = ["generate", "--device", "cpu", "-m", LLAMA, "--tokens", "1", "-n", "1", "-t"];
    let (_, said) = told(&[&args[..], &["999"]].concat());
    assert!(said.contains("warning: 999 threads share"), "{said}");
    assert!(!told(&[&args[..], &["1"]].concat()).1.contains("warning"));
}

#[test]
fn options_of_llama_cpp_are_taken() {
    let args = ["generate", "-m", LLAMA, "--tokens", "1,2,3", "-ngl", "0", "-fa", "on", "-n", "4"];
    let more = ["--seed", "-1", "--no-mmap", "-b", "512", "--no-display-prompt", "--ignore-eos"];
    let (code, said) = told(&[&args[..], &more].concat());
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("note: --no-mmap has no effect: ") && said.contains("note: -b"),
        "{said}"
    );
    assert!(!said.contains("-fa") && !said.contains("--seed"), "{said}");
    let (code, said) = told(&["generate", "-m", LLAMA, "--tokens", "1", "--mirostat", "2"]);
    assert_eq!((code, said.lines().count()), (Some(2), 1), "{said}");
    assert!(said.contains("--mirostat is refused: "), "{said}");
}

#[test]
fn every_command_tells_its_version() {
    for command in [&["--version"][..], &["generate", "--version"], &["serve", "--version"]] {
        assert!(stdout(command).contains(env!("CARGO_PKG_VERSION")), "{command:?}");
    }
}

#[test]
fn escapes_in_a_prompt_are_taken_if_asked_for() {
    let ids = |args: &[&str]| stdout(&[&["tokenize", "-p"], args].concat());
    let typed = r#"a\nb\t\x41\\ \q \'\""#;
    assert_eq!(ids(&[typed, "-e"]), ids(&["a\nb\tA\\ \\q '\""]));
    assert_ne!(ids(&[typed]), ids(&[typed, "-e"]));
}

#[test]
fn a_chat_template_takes_the_place_of_the_models() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("chat.jinja");
    let template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}>";
    fs::write(&file, template).unwrap();
    let path = file.to_str().unwrap();
    let ids = |args: &[&str]| stdout(&[&["tokenize", "-p"], args].concat());
    let want = ids(&["[user]Hi>"]);
    for options in
        [["--chat-template", template], ["--chat-template", path], ["--chat-template-file", path]]
    {
        assert_eq!(ids(&[&["Hi", "--chat"], &options[..]].concat()), want, "{options:?}");
    }
    for (options, why) in [
        (&["--chat", "--chat-template", "chatml"][..], "templates are not known by name"),
        (&["--chat", "--chat-template-file", "no-such-file"], "cannot read"),
        (&["--chat", "--chat-template", "{% if %}"], "template"),
        (&["--chat-template", path], "without --chat"),
    ] {
        let (code, said) = told(&[&["tokenize", "-p", "Hi"], options].concat());
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains(why) && said.lines().count() <= 2, "{options:?}: {said}");
    }
}

#[test]
fn the_form_of_an_answer_may_stand_in_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let gbnf = "root ::= \"#\" [0-9]{3} (\"yes\" | \"yesterday\")";
    let schema = r#"{"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": false}"#;
    let [in_gbnf, in_json] = [file("x.gbnf", gbnf), file("x.json", schema)];
    let text = |options: [&str; 2]| {
        let args = ["-p", "Say it:", "-n", "24", "--seed", "1"];
        generate_json(&[&args[..], &options].concat())["text"].as_str().unwrap().to_owned()
    };
    for options in [["--grammar", gbnf], ["--grammar-file", &in_gbnf]] {
        let said = text(options);
        let (number, word) = said.split_at(4);
        assert!(number.starts_with('#') && number[1..].parse::<u32>().is_ok(), "{said}");
        assert!(word == "yes" || word == "yesterday", "{said}");
    }
    for option in ["--json-schema-file", "-jf"] {
        let said: Value = serde_json::from_str(&text([option, &in_json])).unwrap();
        assert!(said["a"].is_boolean(), "{said}");
    }
    let (code, said) = told(&["generate", "-p", "x", "--grammar", "root ::= x"]);
    assert_eq!(code, Some(2));
    assert!(said.contains("there is no rule `x`"), "{said}");
    let both = ["generate", "-p", "x", "--grammar", gbnf, "--regex", "x"];
    assert!(told(&both).1.contains("cannot be used with"));
}

#[test]
fn logits_say_what_they_wrote() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.safetensors");
    let args = ["logits", "--device", "cpu", "-m", LLAMA, "--tokens", "1,2,3", "-o"];
    let output = halfwarp(&args).arg(&out).output().unwrap();
    let bytes = fs::metadata(&out).unwrap().len();
    for part in ["out.safetensors", "logits f32 [3, 256]", "i32 [3]", &format!("{bytes} bytes")] {
        assert!(stderr(&output).contains(part), "wanted {part:?} in: {}", stderr(&output));
    }
}

#[test]
fn help_fits_a_terminal_and_groups_the_options() {
    for command in ["generate", "chat", "logits", "perplexity", "tokenize"] {
        let help = stdout(&[command, "--help"]);
        let widest = help.lines().max_by_key(|line| line.chars().count()).unwrap();
        assert!(widest.chars().count() <= 100, "{command}: {widest}");
        for heading in ["Prompt:", "Model:", "Examples:"] {
            assert!(help.contains(heading), "{command}: wanted {heading:?} in: {help}");
        }
        assert!(!help.contains("Options:\n  -h, --help\n\n"), "{help}");
    }
}

#[test]
fn completions_and_manual_pages_know_the_commands() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = stdout(&["completions", shell]);
        assert!(script.contains("perplexity") && script.contains("ctx-size"), "{shell}: {script}");
    }
    assert!(stdout(&["man"]).contains(".TH halfwarp 1"));
    let dir = tempfile::tempdir().unwrap();
    let pages = dir.path().join("man1");
    stdout(&["man", pages.to_str().unwrap()]);
    let page = fs::read_to_string(pages.join("halfwarp-generate.1")).unwrap();
    assert!(page.contains("ctx\\-size"), "{page}");
    assert!(pages.join("halfwarp.1").is_file());
}

/// The golden's tokens come from every form of its plan.
#[test]
fn fusion_and_the_form_of_attention_can_be_chosen() {
    let prompt = join(&golden_ids(LLAMA, "greedy_prompt"));
    let expected = golden_ids(LLAMA, "greedy_tokens");
    let greedy = ["-m", LLAMA, "--tokens", &prompt, "--dtype", "f32", "--temp", "0", "-n", "10"];
    for options in [
        &["--fusion", "off"][..],
        &["--fusion", "rope_append,residual"],
        &["--attention", "materialized"],
        &["--fusion", "off", "--attention", "materialized"],
    ] {
        let output = generate_json(&[&greedy[..], &["--ignore-eos"], options].concat());
        assert_eq!(tokens(&output), expected[..10], "{options:?}");
    }
    let output = run(&[&["generate", "--fusion", "gate"][..], &greedy].concat());
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("some of norm_gemm, gemm_swiglu"), "{}", stderr(&output));
}
