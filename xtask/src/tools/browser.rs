//! `cargo xtask browser`: the server's page in Debian's Chromium, driven by Selenium from `tests/browser`.

use crate::tools::clients;
use crate::{process, setup};
use anyhow::{Result, ensure};
use std::{ffi::OsString, path::Path, process::Command};

/// In the repository: the tests, for Python's `unittest`.
const TESTS: &str = "tests/browser";
/// Where Debian's packages `chromium` and `chromium-driver` put them.
const PROGRAMS: [&str; 2] = ["/usr/bin/chromium", "/usr/bin/chromedriver"];
/// In cargo's target directory.
const SCREENSHOTS: &str = "browser";

/// Sets up the default model and Selenium, builds the server, and runs the tests; `args` go to `unittest`.
///
/// # Errors
/// If Chromium or its driver is missing, or anything of it fails.
pub fn run(args: &[OsString]) -> Result<()> {
    for program in PROGRAMS {
        ensure!(
            Path::new(program).exists(),
            "{program} is missing: apt-get install chromium chromium-driver"
        );
    }
    setup::run()?;
    let python = clients::python()?;
    let halfwarp = process::halfwarp(&[])?;
    let screenshots = process::target_dir()?.join(SCREENSHOTS);
    let mut tests = Command::new(python);
    tests.current_dir(process::repository().join(TESTS)).args(["-B", "-m", "unittest", "-v"]);
    tests.args(args).env("HALFWARP", halfwarp.get_program()).env("SCREENSHOTS", screenshots);
    tests.env("HALFWARP_CACHE", process::cache_dir()?).env_remove("HALFWARP_API_KEY");
    process::show(&mut tests)
}
