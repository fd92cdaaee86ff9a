//! Compiles a device crate to PTX from a build script, with rustc alone: no CUDA toolkit, no nightly.
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
//! The face is that of rust-cuda's crate of the same name; what comes out is one PTX text for each kernel.
//! `docs/toolchain.md` tells how and why.

mod cargo;
pub mod library_source;
pub mod ptx;

use std::path::{Path, PathBuf};

use library_source::LibrarySourceError;
use ptx::{Kernel, PtxError};

/// A device target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arch {
    /// Ampere, Ada and everything newer, through the driver's JIT: `mma.sync`, `cp.async`.
    Sm80,
    /// Hopper alone: `wgmma`, TMA, `mbarrier`, `setmaxnreg`, FP8.
    Sm90a,
}

impl Arch {
    /// The name in PTX: `sm_80`.
    pub const fn target(self) -> &'static str {
        match self {
            Arch::Sm80 => "sm_80",
            Arch::Sm90a => "sm_90a",
        }
    }
}

/// What a build made: the PTX of one device crate for one target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ptx {
    /// The target.
    pub arch: Arch,
    /// Its kernels, by symbol.
    pub kernels: Vec<Kernel>,
}

/// Builds one device crate for one target.
#[derive(Clone, Debug)]
pub struct CudaBuilder {
    crate_dir: PathBuf,
    arch: Arch,
    copy_to: Option<PathBuf>,
}

impl CudaBuilder {
    /// A build of the crate in `crate_dir`, for `sm_80`.
    pub fn new(crate_dir: impl AsRef<Path>) -> Self {
        CudaBuilder { crate_dir: crate_dir.as_ref().to_owned(), arch: Arch::Sm80, copy_to: None }
    }

    /// Builds for `arch`.
    pub fn arch(mut self, arch: Arch) -> Self {
        self.arch = arch;
        self
    }

    /// Also writes the PTX of each kernel to `dir`, as `<symbol>.ptx`.
    pub fn copy_to(mut self, dir: impl AsRef<Path>) -> Self {
        self.copy_to = Some(dir.as_ref().to_owned());
        self
    }

    /// Compiles the crate, and tells the outer cargo which files and variables the PTX depends on.
    ///
    /// # Errors
    /// - [`BuildError::LibrarySource`] if the source of `core` is not there;
    /// - [`BuildError::Compile`] with the compiler's words;
    /// - [`BuildError::Ptx`] if an entry and its launch bounds don't match;
    /// - [`BuildError::Io`] if a program does not start, or a file can't be read or written.
    pub fn build(self) -> Result<Ptx, BuildError> {
        println!("cargo::rerun-if-env-changed={}", library_source::VARIABLE);
        let library = library_source::find()?;
        for path in cargo::inputs(&self.crate_dir)? {
            println!("cargo::rerun-if-changed={}", path.display());
        }
        let text = cargo::compile(&self.crate_dir, self.arch, &library)?;
        let kernels = ptx::split(&text)?;
        if let Some(dir) = &self.copy_to {
            std::fs::create_dir_all(dir).map_err(|error| BuildError::io(dir, error))?;
            for kernel in &kernels {
                let path = dir.join(&kernel.symbol).with_extension("ptx");
                std::fs::write(&path, &kernel.text)
                    .map_err(|error| BuildError::io(&path, error))?;
            }
        }
        Ok(Ptx { arch: self.arch, kernels })
    }
}

/// Why there is no PTX.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The source of `core` is missing, or is of another release.
    #[error(transparent)]
    LibrarySource(#[from] LibrarySourceError),
    /// The device crate does not compile.
    #[error("the device crate does not compile for {target}:\n{output}")]
    Compile {
        /// The target, as in PTX.
        target: &'static str,
        /// What cargo and rustc wrote.
        output: String,
    },
    /// The compiler's PTX is not what the kernels' facts say.
    #[error(transparent)]
    Ptx(#[from] PtxError),
    /// A program does not start, or a file can't be read or written.
    #[error("{what}: {error}")]
    Io {
        /// The program or the path.
        what: String,
        /// The system's word.
        error: std::io::Error,
    },
}

impl BuildError {
    fn io(path: &Path, error: std::io::Error) -> Self {
        BuildError::Io { what: path.display().to_string(), error }
    }
}
