//! Kernels touch memory through `cuda_std`'s views alone: an access by a raw pointer, or by an
//! instruction written here, is one that the emulator does not see.

use std::fs;
use std::path::Path;

/// How a raw pointer is named or made, and how an instruction is written.
const FORBIDDEN: [&str; 9] = [
    "*const ",
    "*mut ",
    "&raw ",
    "as_ptr",
    "as_mut_ptr",
    "addr_of",
    "transmute",
    "core::ptr",
    "asm!",
];

/// The lines of `source` that name something forbidden, comments aside.
fn offences(source: &str) -> Vec<(usize, &str)> {
    let code = |line: &str| line.split("//").next().unwrap_or_default().to_owned();
    let numbered = source.lines().enumerate().map(|(index, line)| (index + 1, line));
    numbered.filter(|(_, line)| FORBIDDEN.iter().any(|word| code(line).contains(word))).collect()
}

fn check(dir: &Path, found: &mut Vec<String>, num_files: &mut usize) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            check(&path, found, num_files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            *num_files += 1;
            let source = fs::read_to_string(&path).unwrap();
            let line = |(number, line)| format!("{}:{number}: {line}", path.display());
            found.extend(offences(&source).into_iter().map(line));
        }
    }
}

#[test]
fn no_kernel_dereferences_a_raw_pointer() {
    let (mut found, mut num_files) = (Vec::new(), 0);
    check(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found, &mut num_files);
    assert!(num_files > 10, "{num_files} files: the kernels have moved");
    assert!(found.is_empty(), "use a view of cuda_std instead:\n{}", found.join("\n"));
}

#[test]
fn offences_are_found() {
    let source =
        "let x = 1;\nunsafe { *(x as *const f32) } // *mut\n// asm!(\"trap;\")\nasm!(\"trap;\");";
    let lines: Vec<usize> = offences(source).into_iter().map(|(number, _)| number).collect();
    assert_eq!(lines, [2, 4]);
}
