//! `halfwarp chat --url`: a chat with a server.

use crate::client::Serving;
use crate::models::{generated, models, serving};
use crate::support::{run, stderr, with_stdin};
use std::process::Output;

const QUESTION: &str = "What is this?";

fn chat(serving: &Serving, args: &[&str], lines: &[&str]) -> Output {
    let base = ["chat", "--url", &serving.client.base, "--temp", "0", "-n", "6"];
    with_stdin(&[&base[..], args].concat(), &lines.join("\n"))
}

#[test]
fn a_chat_talks_with_the_models_of_a_server() {
    let dir = models();
    let serving = serving(dir.path(), &["-c", "256"]);
    for name in ["alpha", "beta"] {
        let path = dir.path().join(format!("{name}.gguf"));
        let wanted = generated(&path, &["--chat", "-p", QUESTION]);
        let system = generated(&path, &["--chat", "-p", QUESTION, "--system", "Be brief."]);
        let lines = [QUESTION, "/regenerate", "/clear", "/system Be brief.", QUESTION, "/exit"];
        let output = chat(&serving, &["-m", name], &lines);
        assert!(output.status.success(), "{}", stderr(&output));
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(said, format!("{wanted}\n{wanted}\n{system}\n"), "{name}");
        assert!(stderr(&output).starts_with(&format!("{name} at http://127.0.0.1:")));
    }
    // Two questions are a conversation.
    let turns = chat(&serving, &["-m", "alpha"], &[QUESTION, "And this?"]);
    assert!(String::from_utf8_lossy(&turns.stdout).matches('\n').count() > 1);
    // What the server refuses is a line, and the chat goes on.
    let unknown = chat(&serving, &["-m", "none"], &[QUESTION, QUESTION]);
    assert_eq!((unknown.status.code(), unknown.stdout.len()), (Some(0), 0));
    let said = stderr(&unknown);
    assert_eq!(
        said.matches("error: the server answers with 404: model 'none' not found").count(),
        2,
        "{said}"
    );
    let long = chat(&serving, &["-m", "alpha"], &["Hi", &"word ".repeat(2000)]);
    assert!(stderr(&long).contains("error: the server answers with 400"), "{}", stderr(&long));
}

#[test]
fn a_server_that_is_not_there_is_one_line() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", nobody.local_addr().unwrap());
    drop(nobody);
    let output = run(&["chat", "--url", &url]);
    assert_eq!(output.status.code(), Some(1));
    let said = stderr(&output);
    assert!(said.starts_with(&format!("error: {url} does not answer: ")), "{said}");
    for args in
        [&["--url", "localhost:80"][..], &["--url", "http://a", "-c", "5"], &["--api-key", "x"]]
    {
        let output = run(&[&["chat"], args].concat());
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", stderr(&output));
    }
    let dir = models();
    let serving = serving(dir.path(), &["--api-key", "secret"]);
    let output = chat(&serving, &[], &[QUESTION]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("(--api-key)"), "{}", stderr(&output));
    let output = chat(&serving, &["--api-key", "secret", "-m", "alpha"], &[QUESTION]);
    assert!(output.status.success() && !output.stdout.is_empty(), "{}", stderr(&output));
}
