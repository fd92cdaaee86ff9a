//! The nested cargo: compiles a device crate for the GPU, isolated from the cargo that runs the
//! build script.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{env, fs};

use crate::compiled::Compiled;
use crate::{Arch, BuildError, Sources};

const TARGET: &str = "nvptx64-nvidia-cuda";

/// Version of the PTX text. 8.0 is the first that knows `sm_90a`; the driver has to be for CUDA
/// 12.0 or newer.
const PTX_FEATURE: &str = "ptx80";

/// The profile, whatever the crate's workspace has: the PTX is the same for all of its builds.
const PROFILE: [&str; 9] = [
    "profile.release.opt-level=3",
    "profile.release.package.'*'.opt-level=3",
    "profile.release.overflow-checks=false",
    "profile.release.debug-assertions=false",
    "profile.release.lto='fat'",
    "profile.release.codegen-units=1",
    "profile.release.panic='abort'",
    "profile.release.debug=0",
    // An incremental rustc does not inline across functions. LLVM would see a call of the function
    // that holds a barrier, which rustc does not mark convergent, and copy it into both sides of a
    // branch.
    "profile.release.incremental=false",
];

/// A device crate, as cargo sees it.
pub struct Package {
    /// Name of the package.
    pub name: String,
    /// The files and directories that its PTX depends on: its own, those of its path dependencies,
    /// and the file that names the toolchain.
    pub inputs: Vec<PathBuf>,
}

/// The crate in `crate_dir`. Writes the `Cargo.lock` of its workspace if there is none, as every
/// cargo does.
///
/// # Errors
/// - [`BuildError::Metadata`] if cargo cannot read the crate;
/// - [`BuildError::OwnCrate`] if building it for the device would run the build script that is
///   running now.
pub fn package(crate_dir: &Path) -> Result<Package, BuildError> {
    let output = run(nested_cargo(crate_dir).args([
        "tree",
        "--prefix=none",
        "--edges=normal,build",
        "--format={p}",
        "--target",
        TARGET,
    ]))?;
    if !output.status.success() {
        return Err(BuildError::Metadata {
            crate_dir: crate_dir.to_owned(),
            output: String::from_utf8_lossy(&output.stderr).trim_end().to_owned(),
        });
    }
    let tree = String::from_utf8_lossy(&output.stdout);
    let name = tree.split(' ').next().unwrap_or_default().to_owned();
    let mut crate_dirs: Vec<PathBuf> = tree.lines().filter_map(path_of_package).collect();
    crate_dirs.sort();
    crate_dirs.dedup();
    // cargo sets this to the build script's own package.
    if let Some(own) = env::var_os("CARGO_MANIFEST_DIR").and_then(|dir| fs::canonicalize(dir).ok())
        && crate_dirs.contains(&own)
    {
        return Err(BuildError::OwnCrate { crate_dir: crate_dir.to_owned(), own });
    }
    let mut inputs = Vec::new();
    for dir in crate_dirs {
        inputs.extend(
            ["src", "Cargo.toml", "build.rs"]
                .map(|name| dir.join(name))
                .into_iter()
                .filter(|path| path.exists()),
        );
    }
    inputs.extend(toolchain_file(crate_dir));
    Ok(Package { name, inputs })
}

/// The directory in a line such as `cuda_std v0.1.0 (/home/me/halfwarp/crates/cuda_std)`; `None`
/// for a package of a registry. A procedural macro has `(proc-macro)` before the path; a repeated
/// package has ` (*)` after it.
fn path_of_package(line: &str) -> Option<PathBuf> {
    let line = line.strip_suffix(" (*)").unwrap_or(line);
    let (_, path) = line.split_once(" (/")?;
    Some(Path::new("/").join(path.strip_suffix(')')?))
}

fn toolchain_file(crate_dir: &Path) -> Option<PathBuf> {
    let crate_dir = crate_dir.canonicalize().ok()?;
    crate_dir.ancestors().map(|dir| dir.join("rust-toolchain.toml")).find(|path| path.is_file())
}

/// Compiles the crate in `crate_dir` as one whole program and returns its PTX.
pub fn compile(
    crate_dir: &Path,
    Sources { package, library, rustc }: &Sources,
    arch: Arch,
    target_dir: &Path,
) -> Result<String, BuildError> {
    let rustflags = [
        &format!("-Ctarget-cpu={}", arch.name()),
        &format!("-Ctarget-feature=+{PTX_FEATURE}"),
        // rustc emits the PTX as assembly; nothing needs to be linked, so the linker is `true`.
        "-Zunstable-options",
        "-Clinker=true",
        "-Clinker-flavor=llbc",
        // This pass ignores convergence and copies barriers into both sides of a branch:
        // rust-lang/rust issue 137086.
        "-Zmir-enable-passes=-JumpThreading",
    ]
    .join("\x1f");
    let path = assembly_path(target_dir, package);
    let compiled = Compiled::new(&path, origin(crate_dir, rustc, &rustflags));
    let at = |error| BuildError::io(&path, error);
    compiled.forget_others().map_err(at)?;
    let output = run(nested_cargo(crate_dir)
        .args(["rustc", "--release", "--lib", "--crate-type=cdylib"])
        .args(["-Zbuild-std=core", "--target", TARGET])
        .args(PROFILE.iter().flat_map(|setting| ["--config", setting]))
        .arg("--target-dir")
        .arg(target_dir)
        .args(["--", "--emit=asm"])
        .env("CARGO_BUILD_BUILD_DIR", target_dir)
        .env("CARGO_ENCODED_RUSTFLAGS", &rustflags)
        .env("RUSTC_BOOTSTRAP", "1")
        .env("__CARGO_TESTS_ONLY_SRC_ROOT", library))?;
    if !output.status.success() {
        return Err(BuildError::Compile {
            target: arch.name(),
            output: String::from_utf8_lossy(&output.stderr).trim_end().to_owned(),
        });
    }
    compiled.remember().map_err(at)?;
    fs::read_to_string(&path).map_err(at)
}

/// What tells the assembly of a crate from that of another one of its name: where it is, its
/// compiler and the flags.
fn origin(crate_dir: &Path, rustc: &str, rustflags: &str) -> String {
    let crate_dir = crate_dir.canonicalize().unwrap_or_else(|_| crate_dir.to_owned());
    format!("{}\n{rustc}\n{rustflags}\n{}\n", crate_dir.display(), PROFILE.join("\n"))
}

/// Where rustc writes the PTX.
fn assembly_path(target_dir: &Path, package: &str) -> PathBuf {
    let file = format!("{}.s", package.replace('-', "_"));
    target_dir.join(TARGET).join("release/deps").join(file)
}

/// One directory for each target, shared by all profiles of the outer build, so that `core` is
/// compiled once. It is in the outer target directory: `outer`, or else the ancestor of `OUT_DIR`
/// that holds cargo's `CACHEDIR.TAG`.
pub fn target_dir(outer: Option<&Path>, arch: Arch) -> PathBuf {
    let out_dir = env::var_os("OUT_DIR").map_or_else(env::temp_dir, PathBuf::from);
    let tagged = || out_dir.ancestors().find(|dir| dir.join("CACHEDIR.TAG").is_file());
    outer.or_else(tagged).unwrap_or(&out_dir).join("cuda-builder").join(arch.name())
}

/// A cargo in `crate_dir`: the same cargo, rustc, registry and network settings as the outer one,
/// without the variables that the outer cargo, clippy or rust-analyzer set for build scripts.
fn nested_cargo(crate_dir: &Path) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(crate_dir);
    for (name, _) in env::vars_os().filter(|(name, _)| is_of_the_outer_build(name)) {
        command.env_remove(name);
    }
    command
}

fn is_of_the_outer_build(name: &OsString) -> bool {
    const KEPT: [&str; 5] =
        ["CARGO_HOME", "CARGO_HTTP_", "CARGO_NET_", "CARGO_REGISTRIES_", "CARGO_REGISTRY_"];
    const NAMES: [&str; 14] = [
        "RUSTFLAGS",
        "RUSTDOCFLAGS",
        "RUSTC_WRAPPER",
        "RUSTC_WORKSPACE_WRAPPER",
        "RUSTC_LINKER",
        "CLIPPY_ARGS",
        "CLIPPY_CONF_DIR",
        "MAKEFLAGS",
        "MFLAGS",
        "OUT_DIR",
        "TARGET",
        "PROFILE",
        "OPT_LEVEL",
        "DEBUG",
    ];
    let name = name.to_string_lossy();
    let of_cargo = name.starts_with("CARGO") && !KEPT.iter().any(|kept| name.starts_with(kept));
    of_cargo || name.starts_with("__CARGO") || NAMES.contains(&name.as_ref())
}

fn run(command: &mut Command) -> Result<Output, BuildError> {
    command.output().map_err(|error| BuildError::Io {
        what: command.get_program().to_string_lossy().into_owned(),
        error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_lines_of_cargo_tree() {
        let path = |line| path_of_package(line).map(|path| path.to_string_lossy().into_owned());
        assert_eq!(path("cuda_std v0.1.0 (/a b/cuda_std)").as_deref(), Some("/a b/cuda_std"));
        assert_eq!(path("m v0.1.0 (proc-macro) (/w/m)").as_deref(), Some("/w/m"));
        assert_eq!(path("m v0.1.0 (/w (old)/m) (*)").as_deref(), Some("/w (old)/m"));
        assert_eq!(path("syn v2.0.119"), None);
        assert_eq!(path("syn v2.0.119 (*)"), None);
        assert_eq!(path("zeroize_derive v1.4.2 (proc-macro)"), None);
    }

    /// A device crate without dependencies, the root of a workspace of its own.
    fn new_crate() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let manifest = "[package]\nname = \"my-kernels\"\nedition = \"2024\"\n[workspace]\n";
        fs::write(dir.path().join("Cargo.toml"), manifest).unwrap();
        fs::create_dir(dir.path().join("src")).unwrap();
        fs::write(dir.path().join("src/lib.rs"), "#![no_std]\n").unwrap();
        dir
    }

    #[test]
    fn a_crate_needs_no_lock_file() {
        let dir = new_crate();
        let package = package(dir.path()).unwrap();
        assert_eq!(package.name, "my-kernels");
        let root = dir.path().canonicalize().unwrap();
        assert_eq!(package.inputs, [root.join("src"), root.join("Cargo.toml")]);
    }

    #[test]
    fn a_lock_file_that_is_out_of_date_is_updated() {
        let dir = new_crate();
        let lock = dir.path().join("Cargo.lock");
        let old = "version = 4\n[[package]]\nname = \"older-name\"\nversion = \"0.0.0\"\n";
        fs::write(&lock, old).unwrap();
        package(dir.path()).unwrap();
        assert!(fs::read_to_string(lock).unwrap().contains("my-kernels"));
    }

    /// Cargo runs this test with the environment of a build script of this very crate.
    #[test]
    fn a_build_script_cannot_build_its_own_crate() {
        let error = crate::CudaBuilder::new(".").build().unwrap_err();
        assert!(matches!(error, BuildError::OwnCrate { .. }), "{error}");
        let text = error.to_string();
        assert!(text.lines().count() <= 2 && text.contains("crates/cuda_builder"), "{text}");
    }

    #[test]
    fn a_directory_without_a_crate_is_an_error_in_cargos_words() {
        let dir = tempfile::tempdir().unwrap();
        let error = package(dir.path()).err().unwrap();
        assert!(matches!(error, BuildError::Metadata { .. }), "{error}");
        assert!(error.to_string().contains("could not find `Cargo.toml`"), "{error}");
    }

    #[test]
    fn compiles_where_the_outer_build_does_or_where_it_is_told_to() {
        let outer = Path::new("/w/target");
        let told = target_dir(Some(outer), Arch::Sm80);
        assert_eq!(told, outer.join("cuda-builder/sm_80"));
        // No build script runs this test.
        assert_eq!(target_dir(None, Arch::Sm90a), env::temp_dir().join("cuda-builder/sm_90a"));
    }

    #[test]
    fn forgets_the_outer_build_alone() {
        let forgotten = |name: &str| is_of_the_outer_build(&name.into());
        for name in [
            "CARGO_ENCODED_RUSTFLAGS",
            "CARGO_TARGET_DIR",
            "CARGO_MANIFEST_DIR",
            "CARGO_MAKEFLAGS",
            "CARGO_BUILD_TARGET",
            "RUSTC_WORKSPACE_WRAPPER",
            "RUSTFLAGS",
        ] {
            assert!(forgotten(name), "{name}");
        }
        for name in ["CARGO_HOME", "CARGO_NET_OFFLINE", "PATH", "RUSTUP_TOOLCHAIN", "RUSTC"] {
            assert!(!forgotten(name), "{name}");
        }
    }
}
