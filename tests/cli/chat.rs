//! Chats, piped in and in a terminal.

use crate::support::{halfwarp, stderr, stdout, with_stdin};
use std::process::Output;

const GREEDY: [&str; 6] = ["--device", "cpu", "--temp", "0", "-n", "24"];

/// A greedy chat with `lines` as its input.
fn chat(options: &[&str], lines: &[&str]) -> Output {
    with_stdin(&[&["chat"], &GREEDY[..], options].concat(), &lines.join("\n"))
}

/// The answers of a chat that ends well.
fn answers(options: &[&str], lines: &[&str]) -> Vec<String> {
    let output = chat(options, lines);
    assert!(output.status.success(), "{}", stderr(&output));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// What `generate --chat` answers: the oracle of a first turn.
fn generated(prompt: &str, options: &[&str]) -> String {
    let args = [&["generate", "--chat", "-p", prompt], &GREEDY[..], options].concat();
    stdout(&args).trim_end_matches('\n').to_owned()
}

const FRANCE: &str = "What is the capital of France?";
const SPAIN: &str = "What is the capital of Spain?";

#[test]
fn a_turn_is_answered_again_and_forgotten() {
    let said = answers(&[], &[FRANCE, "/regenerate", "/clear", FRANCE, "/exit", SPAIN]);
    assert_eq!(said, [generated(FRANCE, &[]), generated(FRANCE, &[]), generated(FRANCE, &[])]);
}

#[test]
fn the_next_turn_knows_the_last_one() {
    let name = ["My name is Ada Lovelace.", "What is my name?"];
    let said = answers(&[], &name);
    assert!(said[1].contains("Ada"), "{said:?}");
    let cleared = answers(&[], &[name[0], "/clear", name[1]]);
    assert!(!cleared[1].contains("Ada"), "{cleared:?}");
}

#[test]
fn the_system_prompt_is_replaced() {
    let pirate = "You are a pirate.";
    let want = generated(FRANCE, &["--system", pirate]);
    assert_eq!(answers(&["--system", pirate], &[FRANCE]), [&want[..]]);
    let line = format!("/system {pirate}");
    assert_eq!(answers(&[], &[&line, FRANCE, "/clear", "/system", FRANCE])[0], want);
}

#[test]
fn a_message_has_several_lines_between_quotes() {
    let said = answers(&[], &["\"\"\"", "What is the capital", "of France?\"\"\""]);
    assert_eq!(said, [generated("What is the capital\nof France?", &[])]);
    let open = chat(&[], &["\"\"\"What is", "this"]);
    assert_eq!(open.status.code(), Some(2));
    assert!(stderr(&open).contains("not closed"), "{}", stderr(&open));
}

#[test]
fn commands_are_explained_and_wrong_ones_named() {
    let output = chat(&[], &["/help", "/nonsense", "/clear now", "/regenerate", "  "]);
    assert!(output.status.success());
    assert!(output.stdout.is_empty(), "{:?}", output.stdout);
    let said = stderr(&output);
    let parts =
        ["/system TEXT", "no command /nonsense", "/clear takes no text", "no question to answer"];
    for part in parts {
        assert!(said.contains(part), "wanted {part:?} in: {said}");
    }
}

/// 20 tokens of questions and answers each: a context of 96 is full after some of them.
#[test]
fn a_full_context_drops_the_oldest_turns_and_goes_on() {
    let lines = [FRANCE; 8];
    let output = chat(&["-c", "96"], &lines);
    assert!(output.status.success(), "{}", stderr(&output));
    let said = stderr(&output);
    assert!(said.contains("the context of 96 tokens is full: forgot the oldest"), "{said}");
    assert!(!said.contains("error"), "{said}");
    let answers = String::from_utf8(output.stdout).unwrap();
    assert_eq!(answers.lines().filter(|line| line.contains("Paris")).count(), 8, "{answers}");
}

#[test]
fn a_message_that_is_too_long_costs_its_turn_alone() {
    let long = "word ".repeat(300);
    let output = chat(&["-c", "96"], &[&long, FRANCE]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("the context"), "{}", stderr(&output));
    let want = format!("{}\n", generated(FRANCE, &[]));
    assert_eq!(String::from_utf8(output.stdout.clone()).unwrap(), want);
}

/// In a pseudo-terminal, where Ctrl-C and Ctrl-D are keys.
#[cfg(unix)]
mod terminal {
    use super::*;
    use rexpect::session::{PtySession, spawn_command};
    use tempfile::TempDir;

    /// A chat at its prompt, in a cache of its own: the history is not the user's.
    fn open(options: &[&str]) -> (PtySession, TempDir) {
        let cache = tempfile::tempdir().unwrap();
        let models = model_cache::cache_dir().unwrap().join("models");
        std::os::unix::fs::symlink(models, cache.path().join("models")).unwrap();
        let args = [&["chat", "--device", "cpu", "--temp", "0"], options].concat();
        let mut command = halfwarp(&args);
        command.env("HALFWARP_CACHE", cache.path());
        let mut session = spawn_command(command, Some(60_000)).unwrap();
        session.exp_string("/help").unwrap();
        session.exp_string("> ").unwrap();
        (session, cache)
    }

    /// How it ended, such as `Exited(Pid(7), 0)`.
    fn end(mut session: PtySession) -> String {
        session.exp_eof().unwrap();
        format!("{:?}", session.process_mut().wait().unwrap())
    }

    #[test]
    fn ctrl_c_clears_the_line_and_twice_it_ends() {
        let (mut session, cache) = open(&["-n", "24"]);
        session.send("not to be sent").unwrap();
        session.send_control('c').unwrap();
        session.exp_string("Ctrl-C again ends the chat").unwrap();
        session.exp_string("> ").unwrap();
        session.send_line(FRANCE).unwrap();
        session.exp_string("Paris").unwrap();
        session.exp_string("> ").unwrap();
        session.send_control('c').unwrap();
        session.exp_string("Ctrl-C again ends the chat").unwrap();
        session.send_control('c').unwrap();
        let end = end(session);
        assert!(end.ends_with(", 130)"), "{end}");
        let history = std::fs::read_to_string(cache.path().join("chat_history")).unwrap();
        assert!(history.contains(FRANCE) && !history.contains("not to be sent"), "{history}");
    }

    /// The model can say nothing but "yes", so that the answer does not end by itself.
    #[test]
    fn ctrl_c_in_an_answer_returns_to_the_prompt() {
        let bias = format!("{}=100", stdout(&["tokenize", "-p", " yes"]).trim());
        let (mut session, _cache) = open(&["--logit-bias", &bias]);
        session.send_line("Count.").unwrap();
        session.exp_string("yes yes yes").unwrap();
        session.send_control('c').unwrap();
        session.exp_string("> ").unwrap();
        session.send_line("/regenerate").unwrap();
        session.exp_string("yes yes yes").unwrap();
        session.send_control('c').unwrap();
        session.exp_string("> ").unwrap();
        session.send_control('d').unwrap();
        let end = end(session);
        assert!(end.starts_with("Exited") && end.ends_with(", 0)"), "{end}");
    }
}
