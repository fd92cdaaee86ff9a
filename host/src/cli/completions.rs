//! `halfwarp completions` and `halfwarp man`: generated from the arguments of the commands.

use super::{failure::Failure, terminal};
use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;
use std::{
    io,
    path::{Path, PathBuf},
};

/// Arguments of `halfwarp completions`.
#[derive(clap::Args)]
pub struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

/// Arguments of `halfwarp man`.
#[derive(clap::Args)]
pub struct ManArgs {
    /// Write the pages of all commands into this directory [default: print halfwarp(1)]
    #[arg(value_hint = clap::ValueHint::DirPath)]
    dir: Option<PathBuf>,
}

/// Prints the completion script of a shell.
pub fn completions(args: &CompletionsArgs, mut command: Command) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "halfwarp", &mut script);
    terminal::print(&String::from_utf8_lossy(&script))
}

/// Prints the manual page, or writes one page per command.
pub fn man(args: &ManArgs, command: Command) -> Result<(), Failure> {
    match &args.dir {
        Some(dir) => {
            write_pages(dir, command).map_err(|error| Failure::output(dir.display(), &error))
        }
        None => {
            let mut page = Vec::new();
            Man::new(command).render(&mut page).expect("a Vec takes everything");
            terminal::print(&String::from_utf8_lossy(&page))
        }
    }
}

fn write_pages(dir: &Path, command: Command) -> io::Result<()> {
    std::fs::create_dir_all(dir)?;
    clap_mangen::generate_to(command, dir)?;
    terminal::note(format_args!("wrote the manual pages into {}", dir.display()));
    Ok(())
}
