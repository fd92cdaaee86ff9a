//! Ctrl-C.

use crate::support::{Copy, halfwarp, join};
use serde_json::json;
use std::{
    fs,
    io::Read,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// A model whose context takes minutes to fill.
fn endless() -> Copy {
    Copy::new().config(|config| {
        config.insert("max_position_embeddings".into(), json!(200_000));
    })
}

fn interrupt(child: &Child) {
    let kill = format!("kill -INT {}", child.id());
    assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
}

fn exit_code(mut child: Child) -> Option<i32> {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(20) {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        thread::sleep(Duration::from_millis(10));
    }
    child.kill().unwrap();
    panic!("it goes on after SIGINT");
}

#[test]
fn generate_stops_cleanly() {
    let model = endless();
    let mut child = halfwarp(&["generate", "--device", "cpu", "-m", model.path(), "-c", "100000"])
        .args(["--tokens", "1,2,3", "--ignore-eos"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0]).unwrap();
    interrupt(&child);
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    assert!(rest.ends_with('\n'), "the last line is whole");
    assert_eq!(exit_code(child), Some(130));
}

#[test]
fn logits_leave_nothing_half_written() {
    let model = endless();
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.safetensors");
    let tokens = join(&vec![1; 20_000]);
    let child = halfwarp(&["logits", "--device", "cpu", "-m", model.path(), "-c", "20000"])
        .args(["--tokens", &tokens, "-o"])
        .arg(&out)
        .spawn()
        .unwrap();
    thread::sleep(Duration::from_millis(300));
    interrupt(&child);
    assert_eq!(exit_code(child), Some(130));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn perplexity_stops_in_the_middle_of_a_window() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("text.txt");
    fs::write(&file, "Once upon a time there was a kernel. ".repeat(1000)).unwrap();
    let child = halfwarp(&["perplexity", "--device", "cpu", "-f"]).arg(&file).spawn().unwrap();
    thread::sleep(Duration::from_millis(1500));
    interrupt(&child);
    let start = Instant::now();
    assert_eq!(exit_code(child), Some(130));
    assert!(start.elapsed() < Duration::from_secs(3), "it waits: {:?}", start.elapsed());
}
