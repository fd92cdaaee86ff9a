//! `halfwarp ptx dump`.

use crate::cli::{failure::Failure, output_file, terminal};
use halfwarp::ptx::TARGETS;
use std::{fs, path::Path};

/// Writes every kernel for every target.
pub fn run(dir: &Path) -> Result<(), Failure> {
    let mut num_written = 0;
    for target in TARGETS {
        let dir = dir.join(target.name);
        fs::create_dir_all(&dir).map_err(|error| Failure::output(dir.display(), &error))?;
        let mut entries =
            fs::read_dir(&dir).map_err(|error| Failure::output(dir.display(), &error))?;
        // A kernel of another build would look like one of this.
        if entries.next().is_some() {
            let dir = dir.display();
            return Err(Failure::Input(format!("{dir} is not empty\ngive a new directory")));
        }
        for kernel in target.kernels {
            let path = dir.join(format!("{}.ptx", kernel.symbol));
            output_file::write_whole(&path, |partial| fs::write(partial, kernel.text()))?;
            num_written += 1;
        }
    }
    terminal::note(format_args!("wrote {num_written} files into {}", dir.display()));
    Ok(())
}
