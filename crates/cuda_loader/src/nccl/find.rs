//! Where `libnccl.so.2` may be.

use std::ffi::{CStr, CString, OsStr, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{self, Path, PathBuf};
use std::{env, fs};

use super::NcclError;

/// The variable that names the library, or its folder.
pub(super) const VARIABLE: &str = "HALFWARP_NCCL";

/// The library's name, which has been the same in all versions 2.
const FILE: &str = "libnccl.so.2";

/// An open library. It is never closed.
#[derive(Debug)]
pub(super) struct Library {
    handle: *mut c_void,
    pub(super) path: PathBuf,
}

impl Library {
    pub(super) fn open(path: &Path) -> Result<Self, String> {
        let name = CString::new(path.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
        // SAFETY: `name` ends in a zero byte. The library's constructors run; it is NVIDIA's, and stays loaded.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(crate::dl_error());
        }
        Ok(Self { handle, path: path.to_owned() })
    }

    /// The address of a function.
    pub(super) fn function(&self, name: &'static CStr) -> Result<*mut c_void, NcclError> {
        // SAFETY: the handle is open and the name ends in a zero byte.
        let function = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        let missing = || NcclError::NotNccl {
            library: self.path.clone(),
            function: name.to_str().unwrap_or_default(),
        };
        (!function.is_null()).then_some(function).ok_or_else(missing)
    }
}

/// Opens the library that the variable's value names; without one, the first that loads of the system's own and of
/// `files`.
pub(super) fn open(named: Option<&OsStr>, files: &[PathBuf]) -> Result<Library, NcclError> {
    if let Some(named) = named {
        if named.is_empty() {
            return Err(NcclError::Missing(format!("{VARIABLE} is set to nothing")));
        }
        return open_named(Path::new(named));
    }
    let mut reasons = Vec::new();
    for path in std::iter::once(Path::new(FILE)).chain(files.iter().map(PathBuf::as_path)) {
        match Library::open(path) {
            Ok(library) => return Ok(library),
            Err(reason) => reasons.push(reason),
        }
    }
    if files.is_empty() {
        reasons.push("no Python in PATH has the package".to_owned());
    }
    Err(NcclError::Missing(reasons.join("; ")))
}

/// Opens a library, or that of a folder.
fn open_named(path: &Path) -> Result<Library, NcclError> {
    let file = if path.is_dir() { path.join(FILE) } else { path.to_owned() };
    // A name without a slash would be looked for in the loader's path instead.
    let file = path::absolute(&file).unwrap_or(file);
    Library::open(&file).map_err(|reason| {
        // The loader's reason begins with the path, as the error does.
        let path_first = format!("{}: ", file.display());
        let reason = reason.strip_prefix(&path_first).unwrap_or(&reason).to_owned();
        NcclError::Named { path: file, reason }
    })
}

/// The libraries of NCCL's packages for a Python in `PATH` or for the user's.
pub(super) fn package_files() -> Vec<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let prefixes = env::split_paths(&path).filter_map(|bin| bin.parent().map(Path::to_owned));
    let user = env::var_os("HOME").map(|home| Path::new(&home).join(".local"));
    let mut files = Vec::new();
    for prefix in prefixes.chain(user) {
        for file in package_files_of(&prefix) {
            if !files.contains(&file) {
                files.push(file);
            }
        }
    }
    files
}

/// `<prefix>/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2` and its kind, the newest Python first.
fn package_files_of(prefix: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(prefix.join("lib")).into_iter().flatten();
    let mut pythons: Vec<_> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"python3")))
        .collect();
    // By length, too: Python 3.12 is newer than 3.9.
    pythons.sort_unstable_by(|a, b| (b.as_os_str().len(), b).cmp(&(a.as_os_str().len(), a)));
    let packages = pythons.iter().flat_map(|python| {
        ["site-packages", "dist-packages"].map(|packages| python.join(packages))
    });
    packages
        .map(|packages| packages.join("nvidia/nccl/lib").join(FILE))
        .filter(|file| file.is_file())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(dir: &Path, path: &str) -> PathBuf {
        let path = dir.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "no library").unwrap();
        path
    }

    #[test]
    fn packages_of_a_python_are_found_the_newest_first() {
        let dir = tempfile::tempdir().unwrap();
        let at = |python| format!("lib/{python}/nvidia/nccl/lib/libnccl.so.2");
        let older = file(dir.path(), &at("python3.9/site-packages"));
        let newer = file(dir.path(), &at("python3.12/dist-packages"));
        file(dir.path(), &at("perl5/site-packages"));
        fs::create_dir_all(dir.path().join("lib/python3.13/site-packages/nvidia/nccl/lib"))
            .unwrap();
        assert_eq!(package_files_of(dir.path()), [newer, older]);
    }

    #[test]
    fn a_name_without_a_library_is_an_error_that_says_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let name = |path: &Path| open(Some(path.as_os_str()), &[]).unwrap_err();
        let in_folder = dir.path().join("libnccl.so.2");
        let error = name(dir.path());
        assert!(matches!(&error, NcclError::Named { path, .. } if *path == in_folder), "{error}");
        let text = error.to_string();
        let path = in_folder.display();
        assert!(text.starts_with(&format!("HALFWARP_NCCL={path}: cannot open")), "{text}");
        assert!(text.ends_with("name libnccl.so.2 or its folder, or unset the variable"), "{text}");

        let no_library = file(dir.path(), "libnccl.so.2");
        let error = name(&no_library);
        assert!(matches!(&error, NcclError::Named { path, .. } if *path == no_library), "{error}");
        // Relative: a file of the working directory, not one of the loader's path.
        let error = name(Path::new("libm.so.6"));
        assert!(matches!(&error, NcclError::Named { path, .. } if path.is_absolute()), "{error}");
    }

    #[test]
    fn a_missing_library_is_an_error_that_names_the_ways_out() {
        let dir = tempfile::tempdir().unwrap();
        let package = file(dir.path(), "libnccl.so.2");
        let error = open(Some(OsStr::new("")), &[package]).unwrap_err();
        assert_eq!(error, NcclError::Missing("HALFWARP_NCCL is set to nothing".to_owned()));
        let text = error.to_string();
        for way in ["nvidia-nccl-cu12", "HALFWARP_NCCL", "halfwarp's own all-reduce"] {
            assert!(text.contains(way), "{text}");
        }
        assert_eq!(text.lines().count(), 2);
    }
}
