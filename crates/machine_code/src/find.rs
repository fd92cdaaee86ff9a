//! Where NVIDIA's assembler and disassembler may be.

use crate::Tools;
use std::{
    env, fs,
    path::{Path, PathBuf},
};

/// A variable that names no program.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable}={}: no such file", path.display())]
pub struct FindError {
    /// The variable.
    pub variable: &'static str,
    /// What it names.
    pub path: PathBuf,
}

impl Tools {
    /// The tools of this machine, if there is an assembler: `$HALFWARP_PTXAS` and
    /// `$HALFWARP_NVDISASM`, where nothing means that none is used; else in `$PATH`, else those
    /// that `cargo xtask ptxas` put into the directory `cache`, else of the packages
    /// `nvidia-cuda-nvcc` and `nvidia-cuda-nvdisasm` of a Python in `$PATH` or of the user, else in
    /// `/usr/local/cuda`.
    ///
    /// # Errors
    /// [`FindError`] if a variable is set and names no file.
    pub fn find(cache: Option<&Path>) -> Result<Option<Self>, FindError> {
        let dirs = dirs();
        let program = |variable, name| program(variable, name, &dirs, cache);
        let ptxas = program("HALFWARP_PTXAS", "ptxas")?;
        let nvdisasm = program("HALFWARP_NVDISASM", "nvdisasm")?;
        Ok(ptxas.map(|ptxas| Tools { ptxas, nvdisasm }))
    }
}

fn program(
    variable: &'static str,
    name: &str,
    [of_path, of_packages]: &[Vec<PathBuf>; 2],
    cache: Option<&Path>,
) -> Result<Option<PathBuf>, FindError> {
    match env::var_os(variable).map(PathBuf::from) {
        Some(path) if path.is_file() => return Ok(Some(path)),
        Some(path) if path.as_os_str().is_empty() => return Ok(None),
        Some(path) => return Err(FindError { variable, path }),
        None => {}
    }
    let cached = cache.map(|cache| entries(&cache.join(name))).unwrap_or_default();
    let dirs = of_path.iter().chain(&cached).chain(of_packages);
    Ok(dirs.map(|dir| dir.join(name)).find(|path| path.is_file()))
}

/// The directories of `$PATH`, and those of Python's packages and of CUDA.
fn dirs() -> [Vec<PathBuf>; 2] {
    let of_path: Vec<PathBuf> =
        env::var_os("PATH").map(|path| env::split_paths(&path).collect()).unwrap_or_default();
    let prefixes = of_path.iter().filter_map(|bin| bin.parent().map(Path::to_owned));
    let user = env::var_os("HOME").map(|home| Path::new(&home).join(".local"));
    let mut of_packages: Vec<PathBuf> =
        prefixes.chain(user).flat_map(|prefix| package_dirs(&prefix)).collect();
    of_packages.push("/usr/local/cuda/bin".into());
    [of_path, of_packages]
}

/// `<prefix>/lib/python3.11/site-packages/nvidia/cu13/bin` and its kind: versions of Python and of
/// CUDA.
fn package_dirs(prefix: &Path) -> Vec<PathBuf> {
    let is_python = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python3"))
    };
    let pythons = entries(&prefix.join("lib")).into_iter().filter(is_python);
    let packages = pythons.flat_map(|python| {
        ["site-packages", "dist-packages"].map(|packages| python.join(packages).join("nvidia"))
    });
    packages.flat_map(|nvidia| entries(&nvidia)).map(|package| package.join("bin")).collect()
}

/// What is in a directory, the last name first: the newer version. Nothing if there is none.
fn entries(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten();
    let mut paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort_unstable_by(|a, b| b.cmp(a));
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(dir: &Path, path: &str) -> PathBuf {
        let path = dir.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "").unwrap();
        path
    }

    #[test]
    fn packages_of_a_python_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let ptxas = file(dir.path(), "lib/python3.12/site-packages/nvidia/cu13/bin/ptxas");
        file(dir.path(), "lib/perl5/site-packages/nvidia/cu13/bin/ptxas");
        let dirs = package_dirs(dir.path());
        assert_eq!(dirs, [ptxas.parent().unwrap()]);
        let found = program("HALFWARP_UNSET", "ptxas", &[Vec::new(), dirs], None);
        assert_eq!(found, Ok(Some(ptxas)));
    }

    #[test]
    fn the_path_comes_before_the_cache_and_newer_before_older() {
        let dir = tempfile::tempdir().unwrap();
        let older = file(dir.path(), "cache/ptxas/12.9.1/ptxas");
        let newer = file(dir.path(), "cache/ptxas/13.0.88/ptxas");
        let in_path = file(dir.path(), "bin/ptxas");
        let find = |name: &str, of_path: &[PathBuf]| {
            let dirs = [of_path.to_vec(), Vec::new()];
            program("HALFWARP_UNSET", name, &dirs, Some(&dir.path().join("cache"))).unwrap()
        };
        assert_eq!(find("ptxas", &[]), Some(newer.clone()));
        assert_eq!(find("ptxas", &[dir.path().join("bin")]), Some(in_path));
        fs::remove_file(newer).unwrap();
        assert_eq!(find("ptxas", &[]), Some(older));
        assert_eq!(find("nvdisasm", &[]), None);
    }
}
