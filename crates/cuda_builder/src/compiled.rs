//! What an earlier compilation has left, so that cargo compiles a crate again only after a change.
//!
//! cargo looks for the file that the linker writes. There is no linker, so an empty file stands in
//! its place. Its name, and that of the assembly, have no hash: crates of one name, such as those of
//! two checkouts that share a target directory, overwrite each other's. So a third file says whose
//! they are.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// The files of one crate.
pub struct Compiled {
    assembly: PathBuf,
    linked: PathBuf,
    origin_file: PathBuf,
    /// What the assembly is made from, besides what cargo looks at.
    origin: String,
}

impl Compiled {
    /// The files beside `assembly`, made from `origin`.
    pub fn new(assembly: &Path, origin: String) -> Self {
        let [linked, origin_file] =
            ["ptx", "origin"].map(|extension| assembly.with_extension(extension));
        Compiled { assembly: assembly.to_owned(), linked, origin_file, origin }
    }

    /// Before a compilation: cargo finds nothing where the assembly is missing or of another origin.
    ///
    /// # Errors
    /// If the stand-in cannot be removed.
    pub fn forget_others(&self) -> io::Result<()> {
        let origin = fs::read_to_string(&self.origin_file).unwrap_or_default();
        if (origin == self.origin && self.assembly.is_file()) || !self.linked.exists() {
            return Ok(());
        }
        fs::remove_file(&self.linked)
    }

    /// After one.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn remember(&self) -> io::Result<()> {
        fs::write(&self.origin_file, &self.origin)?;
        fs::write(&self.linked, "")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_of_another_origin_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let assembly = dir.path().join("kernels.s");
        let [ours, theirs] = ["ours", "theirs"].map(|o| Compiled::new(&assembly, o.to_owned()));
        let is_known = |compiled: &Compiled| {
            compiled.forget_others().unwrap();
            dir.path().join("kernels.ptx").exists()
        };
        assert!(!is_known(&ours));
        fs::write(&assembly, "// ours").unwrap();
        ours.remember().unwrap();
        assert!(is_known(&ours));
        assert!(!is_known(&theirs));
        // They were interrupted: what is there may be either's.
        assert!(!is_known(&ours));
        ours.remember().unwrap();
        fs::remove_file(&assembly).unwrap();
        assert!(!is_known(&ours));
    }
}
