//! Ctrl-C.

use crate::support::{Copy, LLAMA, halfwarp, join};
use serde_json::json;
use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Read},
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

/// The temporary file is a pipe here: the process is known to be writing when it is interrupted, because the test has
/// read the first byte, and cannot be done, because the rest does not fit into a pipe.
#[test]
#[cfg(unix)]
fn logits_leave_nothing_half_written() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.safetensors");
    // `exec` keeps the shell's process id, which is in the name of the temporary file.
    let script = "mkfifo \"$0.partial-$$\" && exec \"$@\" -o \"$0\"";
    let tokens = join(&vec![1; 200]);
    let child = Command::new("sh")
        .args(["-c", script])
        .arg(&out)
        .arg(env!("CARGO_BIN_EXE_halfwarp"))
        .args(["logits", "--device", "cpu", "-m", LLAMA, "--tokens", &tokens])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let partial = dir.path().join(format!("out.safetensors.partial-{}", child.id()));
    while !partial.exists() {
        thread::sleep(Duration::from_millis(10));
    }
    let mut pipe = File::open(&partial).unwrap();
    pipe.read_exact(&mut [0]).unwrap();
    interrupt(&child);
    assert_eq!(exit_code(child), Some(130));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "the temporary file is gone");
}

/// Each window takes seconds, and is reported when it is done.
#[test]
fn perplexity_stops_in_the_middle_of_a_window() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("text.txt");
    fs::write(&file, "Once upon a time there was a kernel. ".repeat(500)).unwrap();
    let mut child =
        halfwarp(&["perplexity", "--device", "cpu", "--dtype", "f32", "-c", "512", "-f"])
            .arg(&file)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
    let mut reports = BufReader::new(child.stderr.take().unwrap()).lines();
    let first = reports.next().unwrap().unwrap();
    assert!(first.starts_with("window 1 of "), "{first}");
    interrupt(&child);
    assert_eq!(exit_code(child), Some(130));
    let rest: Vec<_> = reports.map(Result::unwrap).collect();
    assert_eq!(rest, [""; 0], "it went on to the end of the second window");
}
