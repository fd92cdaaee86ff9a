//! `cargo xtask dist`: a release as an archive whose bytes follow from the source alone.
//!
//! The same commit, toolchain and lock file give the same archive on another machine or in another
//! directory: paths are remapped, and the archive has its files in one order, with no times and no
//! owners. `CARGO_TARGET_DIR` says where it is built, as for any cargo.

use crate::process;
use crate::tools::{licenses, programs::sha256};
use anyhow::{Context, Result};
use flate2::{Compression, GzBuilder};
use std::{
    env,
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
};

/// Files of the repository that go into the archive.
const DOCUMENTS: [&str; 4] = ["CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT", "README.md"];

/// Builds the binary, and packs it with its documents; writes `SHA256SUMS` beside the archive.
pub fn run() -> Result<()> {
    let target = process::host_target()?;
    let target_dir = process::target_dir()?;
    process::show(
        process::cargo()?
            .args(["build", "--locked", "--profile=dist", "--package=halfwarp", "--bin=halfwarp"])
            .args(["--target", &target])
            .env("CARGO_TARGET_DIR", &target_dir)
            .env("CARGO_ENCODED_RUSTFLAGS", rustflags()?),
    )?;
    let name = format!("halfwarp-{}-{target}", env!("CARGO_PKG_VERSION"));
    let mut files = vec![
        ("THIRD-PARTY.txt".to_owned(), 0o644, licenses::texts(&target)?.into_bytes()),
        ("halfwarp".to_owned(), 0o755, read(&target_dir.join(&target).join("dist/halfwarp"))?),
    ];
    for document in DOCUMENTS {
        files.push((document.to_owned(), 0o644, read(&process::repository().join(document))?));
    }
    files.sort();
    let out_dir = target_dir.join("archives");
    fs::create_dir_all(&out_dir)?;
    let path = out_dir.join(format!("{name}.tar.gz"));
    pack(&name, &files, File::create(&path)?)?;
    let line = format!("{}  {name}.tar.gz\n", sha256(&read(&path)?));
    fs::write(out_dir.join("SHA256SUMS"), &line)?;
    eprint!("{}\n{line}", path.display());
    Ok(())
}

/// The archive of `files` (name, mode, content) in a directory `name`.
fn pack(name: &str, files: &[(String, u32, Vec<u8>)], out: impl Write) -> Result<()> {
    // flate2 writes no time of its own accord, and "unknown" for the operating system.
    let gzip = GzBuilder::new().mtime(0).operating_system(255).write(out, Compression::best());
    let mut archive = tar::Builder::new(gzip);
    for (file, mode, content) in files {
        let mut header = tar::Header::new_ustar();
        header.set_mode(*mode);
        header.set_size(content.len() as u64);
        header.set_mtime(0);
        header.set_uid(0);
        header.set_gid(0);
        archive.append_data(&mut header, Path::new(name).join(file), &content[..])?;
    }
    archive.into_inner()?.finish()?;
    Ok(())
}

/// The flags that keep this machine's directories out of the binary.
fn rustflags() -> Result<String> {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(env::home_dir()?.join(".cargo")));
    let home = home.context("no CARGO_HOME and no home directory")?;
    let remap = |from: &Path, to: &str| format!("--remap-path-prefix={}={to}", from.display());
    Ok([remap(&home, "/cargo"), remap(process::repository(), "/halfwarp")].join("\x1f"))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_says_nothing_of_when_and_where_it_was_made() {
        let files =
            [("a".to_owned(), 0o755, b"first".to_vec()), ("b".to_owned(), 0o644, vec![0; 1000])];
        let mut bytes = Vec::new();
        pack("name", &files, &mut bytes).unwrap();
        // RFC 1952: no name and no comment, time zero, unknown operating system.
        assert_eq!((&bytes[..8], bytes[9]), (&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0][..], 255));
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(&bytes[..]));
        let entries = archive.entries().unwrap().map(|entry| {
            let entry = entry.unwrap();
            let header = entry.header();
            let owner = (header.uid().unwrap(), header.gid().unwrap(), header.mtime().unwrap());
            assert_eq!(owner, (0, 0, 0));
            (entry.path().unwrap().display().to_string(), header.mode().unwrap(), entry.size())
        });
        let expected = [("name/a".to_owned(), 0o755, 5), ("name/b".to_owned(), 0o644, 1000)];
        assert_eq!(entries.collect::<Vec<_>>(), expected);
    }
}
