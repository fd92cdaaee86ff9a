//! Compiles a device crate to PTX from a build script, with rustc alone: no CUDA toolkit, no
//! nightly.
//!
//! ```no_run
//! use cuda_builder::{Arch, CudaBuilder};
//!
//! let ptx = CudaBuilder::new("../kernels").arch(Arch::Sm90a).copy_to("ptx/sm_90a").build()?;
//! for kernel in &ptx.kernels {
//!     println!("{}: {} bytes of PTX", kernel.symbol, kernel.text.len());
//! }
//! # Ok::<(), cuda_builder::BuildError>(())
//! ```
//!
//! The API follows rust-cuda's crate of the same name; a build gives one PTX text for each kernel.
//! `docs/kernel-crate.md` sets up a kernel crate and the crate that builds it, `docs/toolchain.md`
//! explains the build.

mod cargo;
mod compiled;
pub mod library_source;
pub mod ptx;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs, io, thread};

pub use gpu_types::Target as Arch;
use library_source::LibrarySourceError;
use ptx::{Kernel, PtxError};

/// The PTX of one device crate for one target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ptx {
    /// The target.
    pub arch: Arch,
    /// Kernels of the crate, by symbol.
    pub kernels: Vec<Kernel>,
}

impl Ptx {
    /// Where [`build_all`] writes the text of the kernel `symbol`.
    pub fn text_path(&self, out_dir: &Path, symbol: &str) -> PathBuf {
        text_path(&out_dir.join(self.arch.name()), symbol)
    }
}

/// Builds one device crate for one target.
#[derive(Clone, Debug)]
pub struct CudaBuilder {
    crate_dir: PathBuf,
    arch: Arch,
    copy_to: Option<PathBuf>,
    target_dir: Option<PathBuf>,
}

impl CudaBuilder {
    /// A build of the crate in `crate_dir`, for `sm_80`.
    pub fn new(crate_dir: impl AsRef<Path>) -> Self {
        CudaBuilder {
            crate_dir: crate_dir.as_ref().to_owned(),
            arch: Arch::Sm80,
            copy_to: None,
            target_dir: None,
        }
    }

    /// Builds for `arch`.
    pub fn arch(mut self, arch: Arch) -> Self {
        self.arch = arch;
        self
    }

    /// Also writes the PTX of each kernel to `dir`, as `<symbol>.ptx`, and removes other `.ptx`
    /// files there.
    pub fn copy_to(mut self, dir: impl AsRef<Path>) -> Self {
        self.copy_to = Some(dir.as_ref().to_owned());
        self
    }

    /// Uses what build scripts have compiled in `dir`, a target directory of cargo, and compiles
    /// there: for programs that are no build scripts, whose target directory is known.
    pub fn target_dir(mut self, dir: impl AsRef<Path>) -> Self {
        self.target_dir = Some(dir.as_ref().to_owned());
        self
    }

    /// Compiles the crate; in a build script, prints for the outer cargo which files and variables
    /// the PTX depends on.
    ///
    /// # Errors
    /// - [`BuildError::LibrarySource`] if the source of `core` is not found;
    /// - [`BuildError::Metadata`] if cargo cannot read the crate;
    /// - [`BuildError::OwnCrate`] if the crate, or a dependency of it, is the one whose build
    ///   script this is;
    /// - [`BuildError::Compile`] with the compiler's output;
    /// - [`BuildError::Ptx`] if an entry and its launch bounds don't match;
    /// - [`BuildError::Io`] if a program does not start, or a file can't be read or written.
    pub fn build(self) -> Result<Ptx, BuildError> {
        let sources = Sources::find(&self.crate_dir)?;
        self.build_from(&sources)
    }

    fn build_from(self, sources: &Sources) -> Result<Ptx, BuildError> {
        let target_dir = cargo::target_dir(self.target_dir.as_deref(), self.arch);
        let text = cargo::compile(&self.crate_dir, sources, self.arch, &target_dir)?;
        let kernels = ptx::split(&text)?;
        if let Some(dir) = &self.copy_to {
            write_texts(dir, &kernels).map_err(|error| BuildError::io(dir, error))?;
        }
        Ok(Ptx { arch: self.arch, kernels })
    }
}

/// What all targets of a device crate are built from.
struct Sources {
    /// Name of the device crate.
    package: String,
    /// The directory `library` of Rust's source.
    library: PathBuf,
    /// What rustc says of its version.
    rustc: String,
}

impl Sources {
    /// Looks at the crate in `crate_dir`; in a build script, prints its inputs for the outer cargo.
    fn find(crate_dir: &Path) -> Result<Self, BuildError> {
        let package = cargo::package(crate_dir)?;
        if is_build_script() {
            for path in &package.inputs {
                println!("cargo::rerun-if-changed={}", path.display());
            }
            println!("cargo::rerun-if-env-changed={}", library_source::VARIABLE);
        }
        let (library, rustc) = (library_source::find()?, library_source::rustc_version()?);
        Ok(Sources { package: package.name, library, rustc })
    }
}

/// Builds the crate in `crate_dir` for every target in parallel, and writes each kernel's text to
/// [`Ptx::text_path`].
///
/// # Errors
/// As [`CudaBuilder::build`].
pub fn build_all(crate_dir: &str, out_dir: &Path) -> Result<Vec<Ptx>, BuildError> {
    // Once, before the threads start: this may write `Cargo.lock`.
    let sources = &Sources::find(crate_dir.as_ref())?;
    let build = |arch: Arch| {
        let builder = CudaBuilder::new(crate_dir).arch(arch);
        builder.copy_to(out_dir.join(arch.name())).build_from(sources)
    };
    thread::scope(|scope| {
        let builds = Arch::ALL.map(|arch| scope.spawn(move || build(arch)));
        builds.into_iter().map(|build| build.join().expect("a build does not panic")).collect()
    })
}

/// Whether cargo runs this program as a build script.
fn is_build_script() -> bool {
    env::var_os("OUT_DIR").is_some()
}

/// The exit code of a build script; an error is printed as errors of cargo.
pub fn finish(result: Result<(), BuildError>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error.to_string().lines().for_each(|line| println!("cargo::error={line}"));
            ExitCode::FAILURE
        }
    }
}

fn text_path(dir: &Path, symbol: &str) -> PathBuf {
    dir.join(symbol).with_extension("ptx")
}

/// Makes the texts of `kernels` the only `.ptx` files of `dir`.
fn write_texts(dir: &Path, kernels: &[Kernel]) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "ptx") {
            fs::remove_file(path)?;
        }
    }
    kernels.iter().try_for_each(|kernel| fs::write(text_path(dir, &kernel.symbol), &kernel.text))
}

/// Why a device crate could not be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The source of `core` is missing, or is of another release.
    #[error(transparent)]
    LibrarySource(#[from] LibrarySourceError),
    /// Cargo cannot read the device crate.
    #[error("the device crate in {} cannot be read:\n{output}", crate_dir.display())]
    Metadata {
        /// Directory of the crate, as it was given.
        crate_dir: PathBuf,
        /// What cargo wrote.
        output: String,
    },
    /// The device crate is the one whose build script is running, or depends on it: building it
    /// would run that build script again, without end.
    #[error(
        "the build script of {} builds {}, which contains that very crate: this would never end\n\
         put the kernels into a crate of their own, without this build script, and build that one",
        own.display(), crate_dir.display()
    )]
    OwnCrate {
        /// The device crate's directory, as it was given.
        crate_dir: PathBuf,
        /// The directory of the crate that the build script belongs to.
        own: PathBuf,
    },
    /// The device crate does not compile.
    #[error("the device crate does not compile for {target}:\n{output}")]
    Compile {
        /// The target, as in PTX.
        target: &'static str,
        /// The output of cargo and rustc.
        output: String,
    },
    /// The PTX does not match what `#[kernel]` recorded in it.
    #[error(transparent)]
    Ptx(#[from] PtxError),
    /// A program does not start, or a file can't be read or written.
    #[error("{what}: {error}")]
    Io {
        /// The program or the path.
        what: String,
        /// The system's error.
        error: std::io::Error,
    },
}

impl BuildError {
    fn io(path: &Path, error: std::io::Error) -> Self {
        BuildError::Io { what: path.display().to_string(), error }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(symbol: &str) -> Kernel {
        Kernel {
            symbol: symbol.to_owned(),
            family: "gemm".to_owned(),
            max_threads: 32,
            min_blocks: 1,
            cluster: None,
            text: format!(".entry {symbol}"),
        }
    }

    #[test]
    fn a_kernel_that_is_no_more_leaves_no_text() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("notes.txt"), "").unwrap();
        write_texts(dir.path(), &[kernel("a"), kernel("b")]).unwrap();
        write_texts(dir.path(), &[kernel("b"), kernel("c")]).unwrap();
        let entries = fs::read_dir(dir.path()).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["b.ptx", "c.ptx", "notes.txt"]);
        assert_eq!(fs::read_to_string(dir.path().join("c.ptx")).unwrap(), ".entry c");
    }
}
