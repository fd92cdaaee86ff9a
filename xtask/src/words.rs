//! Doc comments begin with their subject, and name it.

use std::fs;
use std::path::PathBuf;

use crate::process;

/// Words that stand for a subject that is somewhere else.
const WORDS: [&str; 5] = ["Of ", "Those ", "Its ", "Their ", "Likewise "];

/// Folders of Rust.
const FOLDERS: [&str; 8] =
    ["benches", "crates", "examples", "fuzz", "host", "kernels", "tests", "xtask"];

#[test]
fn doc_comments_begin_with_their_subject() {
    let mut folders: Vec<PathBuf> = FOLDERS.map(|name| process::repository().join(name)).to_vec();
    let (mut found, mut num_files) = (Vec::new(), 0);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.ends_with("target") {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                num_files += 1;
                let lines = fs::read_to_string(&path).unwrap();
                let lines = lines.lines().zip(1..).filter(|(line, _)| has_no_subject(line));
                found.extend(
                    lines.map(|(line, number)| format!("{}:{number}: {line}", path.display())),
                );
            }
        }
    }
    assert!(num_files > 500, "{num_files} files");
    assert!(found.is_empty(), "name the subject first:\n{}", found.join("\n"));
}

#[test]
fn a_comment_without_a_subject_is_found() {
    assert!(has_no_subject("    /// Of the rows."));
    assert!(has_no_subject("//! Its name."));
    for line in
        ["/// Offset of the rows.", "// Of the rows.", "let x = 1; // Its", "/// Rows of it."]
    {
        assert!(!has_no_subject(line), "{line}");
    }
}

fn has_no_subject(line: &str) -> bool {
    let line = line.trim_start();
    let comment = line.strip_prefix("/// ").or_else(|| line.strip_prefix("//! "));
    comment.is_some_and(|comment| WORDS.iter().any(|word| comment.starts_with(word)))
}
