//! Running NVIDIA's assembler and disassembler.

use crate::{Mix, Resources, report};
use std::{
    fs::File,
    io::{self, Read, Seek, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// NVIDIA's assembler, and its disassembler if there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tools {
    /// The program `ptxas`.
    pub ptxas: PathBuf,
    /// The program `nvdisasm`.
    pub nvdisasm: Option<PathBuf>,
}

/// What the tools make of a kernel.
#[derive(Clone, Debug)]
pub struct Assembled {
    /// What `ptxas -v` prints.
    pub report: String,
    /// The machine code as `nvdisasm` prints it, if there is one.
    pub code: Option<String>,
}

impl Assembled {
    /// Registers, shared memory, stack and spills, if the report names them.
    pub fn resources(&self) -> Option<Resources> {
        report::resources(&self.report)
    }

    /// The machine code's instructions by class.
    pub fn mix(&self) -> Option<Mix> {
        self.code.as_deref().map(Mix::from_machine_code)
    }
}

/// Why a tool made nothing of a kernel.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// The program could not be started, or its files could not be made.
    #[error("cannot run {}: {error}", program.display())]
    Io {
        /// The program.
        program: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The program failed.
    #[error("{why}\n  in: {}", program.display())]
    Failed {
        /// The program.
        program: PathBuf,
        /// The first error that it printed.
        why: String,
    },
}

impl Tools {
    /// The assembler's release, such as `13.0.88`, if it says so.
    pub fn release(&self) -> Option<String> {
        let printed = Command::new(&self.ptxas).arg("--version").output().ok()?.stdout;
        let printed = String::from_utf8_lossy(&printed);
        let release = printed.split_whitespace().find_map(|word| word.strip_prefix('V'))?;
        Some(release.to_owned())
    }

    /// Assembles `ptx` for `target`, as in PTX, and disassembles the result.
    ///
    /// # Errors
    /// [`ToolError`] if a program cannot be run or refuses the text.
    pub fn assemble(&self, ptx: &str, target: &str) -> Result<Assembled, ToolError> {
        let mut ptxas = Command::new(&self.ptxas);
        ptxas.args(["-v", "-arch", target, "/dev/stdin", "-o", "/dev/stdout"]);
        let text = file_of(ptx).map_err(at(&self.ptxas))?;
        let (cubin, report) = run(&self.ptxas, &mut ptxas, text)?;
        let code = match &self.nvdisasm {
            Some(nvdisasm) => {
                let (mut code, _) = run(nvdisasm, Command::new(nvdisasm).arg("/dev/stdin"), cubin)?;
                Some(read(&mut code).map_err(at(nvdisasm))?)
            }
            None => None,
        };
        Ok(Assembled { report, code })
    }
}

/// Runs a program on `input`; returns the file that it wrote, and what it printed on stderr.
fn run(path: &Path, command: &mut Command, input: File) -> Result<(File, String), ToolError> {
    let at = at(path);
    // nvdisasm seeks, in a file alone.
    let mut output = tempfile::tempfile().map_err(&at)?;
    command.stdin(input).stdout(output.try_clone().map_err(&at)?).stderr(Stdio::piped());
    let done = command.spawn().and_then(|child| child.wait_with_output()).map_err(&at)?;
    let printed = String::from_utf8_lossy(&done.stderr).into_owned();
    if !done.status.success() {
        let why = cause(&printed).map_or_else(|| done.status.to_string(), str::to_owned);
        return Err(ToolError::Failed { program: path.to_owned(), why });
    }
    output.rewind().map_err(&at)?;
    Ok((output, printed))
}

/// The line that says why a program failed: the first error, else the last line.
fn cause(printed: &str) -> Option<&str> {
    let mut lines = printed.lines().map(str::trim).filter(|line| !line.is_empty());
    let is_error = |line: &&str| ["error", "fatal"].iter().any(|word| line.contains(word));
    lines.clone().find(is_error).or_else(|| lines.next_back())
}

/// A file without a name that holds `text`.
fn file_of(text: &str) -> io::Result<File> {
    let mut file = tempfile::tempfile()?;
    file.write_all(text.as_bytes())?;
    file.rewind()?;
    Ok(file)
}

fn read(file: &mut File) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn at(program: &Path) -> impl Fn(io::Error) -> ToolError + '_ {
    |error| ToolError::Io { program: program.to_owned(), error }
}
