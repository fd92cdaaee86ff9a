//! Every option of the other programs has an answer.

use super::table::{Answer, Takes, find, rows};
use super::*;
use crate::cli::Cli;
use clap::{CommandFactory, Parser, error::ErrorKind};
use std::collections::BTreeSet;
use std::fs;

/// What is parsed in the place of a line without quotes, and what is said about it.
fn expanded(line: &str) -> Result<(String, Vec<String>), String> {
    let args = line.split(' ').map(OsString::from).collect();
    match expand(args, &Cli::command()) {
        Ok(Expanded { args, without_effect }) => {
            let args: Vec<_> = args.iter().map(|arg| arg.to_str().unwrap()).collect();
            Ok((args.join(" "), without_effect))
        }
        Err(Failure::Input(why)) => Err(why),
        Err(_) => panic!("{line}: no mistake of the user"),
    }
}

fn becomes(line: &str, expected: &str) {
    let (args, notes) = expanded(line).unwrap_or_else(|why| panic!("{line}: {why}"));
    assert_eq!((args.as_str(), notes), (expected, Vec::new()), "{line}");
}

/// The command that an option of `program` is tried on.
fn command_of(program: &str) -> &'static str {
    if program.ends_with("-cli") || program.ends_with("-completion") { "generate" } else { "serve" }
}

/// The oracle is what the programs print about themselves (make_options.py).
#[test]
fn every_option_of_the_three_programs_has_an_answer() {
    let mut counts = [0; 3];
    for program in ["llama-cli", "llama-completion", "llama-server", "vllm-serve"] {
        let path =
            format!("{}/../tests/fixtures/options/{program}.txt", env!("CARGO_MANIFEST_DIR"));
        let options = fs::read_to_string(path).unwrap();
        assert!(options.lines().count() > 150, "{program}");
        for name in options.split_whitespace() {
            counts[answer_of(command_of(program), name)] += 1;
        }
    }
    // The same, without effect, refused.
    assert!(counts.iter().all(|count| *count > 100), "{counts:?}");
}

/// 0 for an option that is the same here, 1 for one that has no effect, 2 for one that is refused.
fn answer_of(command: &str, name: &str) -> usize {
    let all = Cli::command();
    let row = find(name, all.find_subcommand(command).unwrap());
    let row = row.unwrap_or_else(|| panic!("{command} {name}: no answer"));
    let value = match row.takes {
        Takes::Flag | Takes::Maybe(_) => "",
        Takes::Value(2) => " 1 1",
        _ => " 1",
    };
    match expanded(&format!("halfwarp {command} {name}{value}")) {
        Err(why) => {
            let of_option = why.strip_prefix(&format!("{name} is refused: "));
            let why = of_option.unwrap_or_else(|| panic!("{command} {name}: {why}"));
            assert!(why.len() > 10, "{command} {name} says nothing of what to do: {why}");
            2
        }
        Ok((args, notes)) => {
            let parsed = Cli::try_parse_from(args.split(' '));
            if let Some(error) = parsed.err() {
                let is_known = !matches!(
                    error.kind(),
                    ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand
                );
                assert!(is_known, "{command} {name}: {args}: {error}");
            }
            usize::from(!notes.is_empty())
        }
    }
}

/// A name is in one row for a command; rows say the same of it or one thing; rules are there.
#[test]
fn rows_do_not_contradict_each_other() {
    let all = Cli::command();
    for command in ["generate", "chat", "serve"] {
        let subcommand = all.find_subcommand(command).unwrap();
        let mut seen = BTreeSet::new();
        for row in rows() {
            for name in &row.names {
                let is_here = find(name, subcommand).is_some_and(|found| std::ptr::eq(found, row));
                assert!(!is_here || seen.insert(name), "{command} {name} is there twice");
            }
        }
        assert!(seen.len() > 300, "{command}: {}", seen.len());
    }
    for row in rows() {
        assert!(row.names.iter().all(|name| name.starts_with('-')), "{:?}", row.names);
        let (why, name) = match row.answer {
            Answer::Without(why) | Answer::Only(_, why) | Answer::Refused(why) => {
                (why, row.names[0])
            }
            _ => continue,
        };
        let length = format!("{name} has no effect: {why}").len();
        assert!(length <= 160, "{name}: {length} characters");
    }
}

#[test]
fn options_of_llama_cpp_are_those_of_this_program() {
    for (line, expected) in [
        ("-m a.gguf -ngl 99 -fa on -c 4096", "-m a.gguf -c 4096"),
        ("-ngl 0 -dev none", "--device cpu"),
        ("-dev CUDA1 -fa", "--device cuda:1"),
        ("-dev CUDA0,CUDA1", "--device cuda:0,1"),
        ("-mg 2 -fa off", "--device cuda:2 --attention materialized"),
        ("-ctk q8_0 -ctv q4_0 -t -1", "--cache-type-k q8_0 --cache-type-v q4_0"),
        ("--cache_type_k=q8_0", "--cache-type-k=q8_0"),
        ("-l=5-1 -n50 -x=-y", "--logit-bias=5-1 -n50 -x=-y"),
        ("--seed -1 -n -2", "--n-predict -1"),
        ("-s 7 -n 16", "--seed 7 --n-predict 16"),
        ("-hf a/b:Q8_0 --jinja", "--hf a/b:Q8_0"),
        ("-sys Hi -cnv -p x", "--chat --system Hi -p x"),
        ("-r User: -l 5-1 -no-cnv", "--stop User: --logit-bias 5-1"),
        ("--mirostat 0 --typical 1.0 --no-display-prompt", ""),
        // What looks like an option is a value of this program's.
        ("-p -ngl -n 4", "-p -ngl --n-predict 4"),
        ("--stop -fa --tokens 1", "--stop -fa --tokens 1"),
        ("-- -ngl 3", "-- -ngl 3"),
    ] {
        let expected = format!("halfwarp generate {expected}");
        becomes(&format!("halfwarp generate {line}"), expected.trim_end());
    }
    becomes(
        "halfwarp serve -np 4 -a m --metrics",
        "halfwarp serve --max-num-seqs 4 --served-model-name m",
    );
    becomes(
        "halfwarp serve --cors-origins http://a,http://b -to 5",
        "halfwarp serve --cors-origin http://a --cors-origin http://b --timeout 5",
    );
    // Commands that have the option themselves keep it.
    becomes("halfwarp bench -p 3 -r 2 -ngl 0", "halfwarp bench -p 3 -r 2 --device cpu");
    becomes("halfwarp quantize -ngl 0", "halfwarp quantize -ngl 0");
    becomes("halfwarp tokenize -hf a/b -p x", "halfwarp tokenize --hf a/b -p x");
}

#[test]
fn options_of_vllm_are_those_of_this_program() {
    for (line, expected) in [
        ("a/b --max-model-len 16k", "--hf a/b --ctx-size 16000"),
        ("--max_model_len=1.5K -tp=2", "--ctx-size 1536 --tensor-parallel-size=2"),
        ("--dtype bfloat16 --kv-cache-dtype fp8", "--dtype bf16 --kv-cache-dtype fp8"),
        ("--kv-cache-dtype auto -q awq", ""),
        ("--api-key a b --port 1", "--api-key a --api-key b --port 1"),
        ("--served-model-name m --root-path /x", "--served-model-name m --api-prefix /x"),
        ("--allowed-origins [\"*\"]", "--cors-origin *"),
        ("--uvicorn-log-level debug", "--log-level info"),
        ("--enable-prefix-caching --enable-chunked-prefill True", ""),
        ("--override-generation-config={\"top_k\":5,\"temperature\":0.5}", "--top-k 5 --temp 0.5"),
        ("--device-ids 2,3 --disable-custom-all-reduce", "--device cuda:2,3 --collectives nccl"),
    ] {
        let expected = format!("halfwarp serve {expected}");
        becomes(&format!("halfwarp serve {line}"), expected.trim_end());
    }
    let (args, notes) =
        expanded("halfwarp serve --compilation-config.mode 3 --swap-space 4").unwrap();
    assert_eq!((args.as_str(), notes.len()), ("halfwarp serve", 2));
}

#[test]
fn what_is_refused_says_what_to_do() {
    for (line, why) in [
        ("generate --mirostat 2", "--mirostat is refused: there is no Mirostat sampler"),
        ("generate --samplers top_k", "samplers have one order"),
        ("chat -no-cnv", "use halfwarp generate"),
        ("generate -i", "use halfwarp chat"),
        ("serve --presence-penalty 1", "a request says it"),
        ("serve --override-generation-config {\"max_new_tokens\":5}", "a request says it: max_new"),
        ("serve --no-enable-prefix-caching", "cache_salt"),
        ("serve -dp 2", "--tensor-parallel-size"),
        ("serve --max-model-len 3xk", "3xk is no number of tokens"),
        ("serve --served-model-name a b", "a model has one name"),
        ("serve -q fp8", "--dtype fp8"),
        ("generate -dev CUDAx", "a GPU is a number"),
        ("generate -ngl", "-ngl needs a value"),
        ("serve --api-key --port 1", "--api-key needs a value"),
        ("generate --lora x", "merge it into the model"),
    ] {
        let said = expanded(&format!("halfwarp {line}")).expect_err(line);
        assert!(said.contains(why), "{line}: {said}");
    }
}

#[test]
#[cfg(unix)]
fn values_may_be_any_bytes() {
    use std::os::unix::ffi::OsStringExt;
    let path = OsString::from_vec(vec![0xff, b'-']);
    let args = ["halfwarp", "generate", "-m", "", "-f", "", "-ngl", "9"].map(OsString::from);
    let mut args = args.to_vec();
    (args[3], args[5]) = (path.clone(), path.clone());
    let expected = [&args[..6], &[]].concat();
    assert_eq!(expand(args, &Cli::command()).unwrap().args, expected);
}

/// The lines that these projects' READMEs and guides begin with, after the name of the program.
#[test]
fn first_command_lines_are_parsed() {
    for line in [
        "cli -hf ggml-org/Qwen3.5-0.8B-GGUF",
        "serve -hf ggml-org/Qwen3.5-0.8B-GGUF",
        "generate -m PATH_TO_MODEL -p Hello -ngl 32",
        "generate -m PATH_TO_MODEL -ngl 100 -c 16384 -t 10 -n -2 -cnv -p Hello",
        "generate -m /models/7B/ggml-model-q8_0.gguf -no-cnv -p Steps: -n 512",
        "serve --jinja -fa -hf bartowski/Qwen2.5-7B-Instruct-GGUF:Q4_K_M",
        "serve -m models/7B/ggml-model.gguf -c 2048",
        "serve -m model.gguf --port 8080 -np 4 -cb --host 0.0.0.0 -ngl 99 --no-mmap --mlock",
        "serve -m model.gguf --embedding --pooling cls -ub 8192",
        "serve -hf unsloth/Qwen3-8B-GGUF:Q4_K_M --jinja --temp 0.6 --min-p 0.0 --top-p 0.95 --top-k 20",
        "serve Qwen/Qwen3-0.6B",
        "serve Qwen/Qwen2.5-1.5B-Instruct --tensor-parallel-size 1 --max-model-len 4096",
        "serve NousResearch/Meta-Llama-3-8B-Instruct --dtype auto --api-key token-abc123",
        "serve Qwen/Qwen3-8B --enable-auto-tool-choice --tool-call-parser hermes",
        "serve deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B --reasoning-parser deepseek_r1",
    ] {
        match expanded(&format!("halfwarp {line}")) {
            Ok((args, _)) => {
                if let Err(error) = Cli::try_parse_from(args.split(' ')) {
                    panic!("{line}: {error}");
                }
            }
            // Of all these, one.
            Err(why) => assert!(line.contains("--pooling"), "{line}: {why}"),
        }
    }
}
