//! Names the commit.

use std::env;
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-env=HALFWARP_COMMIT={}", commit());
}

/// The commit that this is built from: `$HALFWARP_COMMIT`, else, with optimisation for release,
/// git's. A debug build is not built again for every commit.
fn commit() -> String {
    println!("cargo::rerun-if-env-changed=HALFWARP_COMMIT");
    let named = env::var("HALFWARP_COMMIT").ok().filter(|name| !name.is_empty());
    let is_release = env::var_os("PROFILE").is_some_and(|profile| profile == "release");
    let found = || if is_release { git_commit() } else { None };
    named.or_else(found).unwrap_or_else(|| "unknown".to_owned())
}

/// The checked-out commit of the repository that this file is tracked in.
fn git_commit() -> Option<String> {
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    git(&["ls-files", "--error-unmatch", "build.rs"])?;
    // Changes with every commit and checkout.
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
    if Path::new(&log).is_file() {
        println!("cargo::rerun-if-changed={log}");
    }
    Some(git(&["rev-parse", "HEAD"])?.chars().take(7).collect())
}
