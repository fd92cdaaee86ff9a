//! Machine code on disk, so that a second start costs no JIT.
//!
//! The driver has a cache of its own (`CUDA_CACHE_PATH`), but it is shared by all programs, evicts
//! by size, and is switched off on some clusters; this one holds what this program needs, for as
//! long as it needs it. A file is named by what its code depends on: the PTX, the driver, the
//! compute capability. It is written beside its place and renamed, so that it is whole or absent,
//! and it carries a checksum: what does not match is compiled again. A new PTX or driver leaves the
//! files of the old one behind: what was not read for [`KEEP`] is removed.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use super::device::Capability;

/// How long a file stays that is not read.
const KEEP: Duration = Duration::from_secs(30 * 24 * 3600);

/// How old a file's time of last use may get before a read renews it.
const RENEW: Duration = Duration::from_secs(24 * 3600);

const MAGIC: &[u8; 16] = b"halfwarp cubin 1";

/// Cubins of one driver and one compute capability.
#[derive(Debug)]
pub struct CubinCache {
    dir: Option<PathBuf>,
    driver: String,
    capability: Capability,
    /// One look at the folder an executor is enough, and only where something is compiled.
    pruned: Once,
}

impl CubinCache {
    /// The cache in `dir` for `driver`, any text that changes when the driver does. Without a
    /// directory nothing is kept.
    pub fn new(dir: Option<PathBuf>, driver: String, capability: Capability) -> Self {
        CubinCache { dir, driver, capability, pruned: Once::new() }
    }

    /// The machine code of the kernel `symbol`, whose PTX is `text`, if it is there and whole.
    pub fn read(&self, symbol: &str, text: &str) -> Option<Vec<u8>> {
        let path = self.path(symbol, text)?;
        let file = fs::read(&path).ok()?;
        renew(&path);
        let rest = file.strip_prefix(MAGIC)?;
        let (checksum, cubin) = rest.split_first_chunk::<8>()?;
        (u64::from_le_bytes(*checksum) == hash(cubin)).then(|| cubin.to_vec())
    }

    /// Keeps the machine code of a kernel, and removes what is not read any more. A disk that is
    /// full or read-only is no reason to fail: the code is compiled again at the next start.
    pub fn write(&self, symbol: &str, text: &str, cubin: &[u8]) {
        if let Some(path) = self.path(symbol, text) {
            self.pruned.call_once(|| {
                let _ = prune(path.parent().unwrap_or(&path));
            });
            let _ = write_atomically(&path, cubin);
        }
    }

    fn path(&self, symbol: &str, text: &str) -> Option<PathBuf> {
        let key = hash(&(text, &self.driver, self.capability));
        let Capability { major, minor } = self.capability;
        let name = format!("{symbol}-sm{major}{minor}-{key:016x}");
        Some(self.dir.as_ref()?.join(name).with_extension("cubin"))
    }
}

/// Notes that the file at `path` is in use. Its time of modification says so: that of access is not
/// kept on most disks.
fn renew(path: &Path) {
    if age(path).is_some_and(|age| age > RENEW)
        && let Ok(file) = fs::File::options().append(true).open(path)
    {
        let _ = file.set_modified(SystemTime::now());
    }
}

/// Removes the cache's files in `dir` that were not in use for [`KEEP`], and unfinished ones of
/// processes that ended.
fn prune(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let keep = match path.extension().and_then(|extension| extension.to_str()) {
            Some("cubin") => KEEP,
            Some("tmp") => RENEW,
            _ => continue,
        };
        if age(&path).is_some_and(|age| age > keep) {
            let _ = fs::remove_file(&path);
        }
    }
    Ok(())
}

/// How long ago the file was written or renewed; `None` where the clock was set back since.
fn age(path: &Path) -> Option<Duration> {
    fs::metadata(path).ok()?.modified().ok()?.elapsed().ok()
}

fn write_atomically(path: &Path, cubin: &[u8]) -> io::Result<()> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    // Others, in this process too, may be writing the same.
    static WRITES: AtomicU64 = AtomicU64::new(0);
    let write = WRITES.fetch_add(1, Ordering::Relaxed);
    let unfinished = path.with_extension(format!("{}-{write}.tmp", std::process::id()));
    let write = || {
        let mut file = fs::File::create(&unfinished)?;
        file.write_all(MAGIC)?;
        file.write_all(&hash(cubin).to_le_bytes())?;
        file.write_all(cubin)?;
        file.sync_all()?;
        fs::rename(&unfinished, path)
    };
    write().inspect_err(|_| {
        let _ = fs::remove_file(&unfinished);
    })
}

/// The same for the same build of this program, which is all that a cache needs.
fn hash(value: &(impl Hash + ?Sized)) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYMBOL: &str = "gemm_f32";
    const TEXT: &str = ".version 8.0\n";
    const CUBIN: &[u8] = b"\x7fELF and so on";

    fn cache(dir: &Path) -> CubinCache {
        let capability = Capability { major: 9, minor: 0 };
        CubinCache::new(Some(dir.to_owned()), "580.65".to_owned(), capability)
    }

    fn only_file(dir: &Path) -> PathBuf {
        let files: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(files.len(), 1, "{files:?}");
        files[0].clone()
    }

    #[test]
    fn what_was_written_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let cache = cache(&dir.path().join("made/when/needed"));
        assert_eq!(cache.read(SYMBOL, TEXT), None);
        cache.write(SYMBOL, TEXT, CUBIN);
        assert_eq!(cache.read(SYMBOL, TEXT).as_deref(), Some(CUBIN));
        only_file(&dir.path().join("made/when/needed"));
    }

    #[test]
    fn another_ptx_driver_or_capability_is_another_file() {
        let dir = tempfile::tempdir().unwrap();
        let own = cache(dir.path());
        own.write(SYMBOL, TEXT, CUBIN);
        assert_eq!(own.read(SYMBOL, ".version 8.1\n"), None);
        let driver = CubinCache { driver: "580.66".to_owned(), ..cache(dir.path()) };
        assert_eq!(driver.read(SYMBOL, TEXT), None);
        let capability = Capability { major: 8, minor: 9 };
        assert_eq!(CubinCache { capability, ..cache(dir.path()) }.read(SYMBOL, TEXT), None);
    }

    /// Makes the file look as if nobody had used it for so many days.
    fn unused(path: &Path, days: u64) {
        let file = fs::File::options().append(true).open(path).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(days * 24 * 3600)).unwrap();
    }

    #[test]
    fn what_nobody_reads_for_a_month_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let [read, unread] = [".version 8.1\n", ".version 8.2\n"];
        let file = |name: &str| dir.path().join(name);
        let write = |text: &str| {
            cache(dir.path()).write(SYMBOL, text, CUBIN);
            cache(dir.path()).path(SYMBOL, text).unwrap()
        };
        let (read_path, unread_path) = (write(read), write(unread));
        for name in ["ours-0.tmp", "new-1.tmp", "not_ours.txt"] {
            fs::write(file(name), "").unwrap();
        }
        unused(&read_path, 29);
        unused(&unread_path, 31);
        unused(&file("ours-0.tmp"), 2);
        unused(&file("not_ours.txt"), 100);
        assert!(cache(dir.path()).read(SYMBOL, read).is_some());
        assert!(age(&read_path).unwrap() < RENEW, "a read says that the file is in use");

        let new = write(TEXT);
        for path in [new, read_path, file("new-1.tmp"), file("not_ours.txt")] {
            assert!(path.exists(), "{} is gone", path.display());
        }
        for path in [unread_path, file("ours-0.tmp")] {
            assert!(!path.exists(), "{} is there", path.display());
        }
    }

    #[test]
    fn a_corrupt_file_is_as_good_as_none() {
        let dir = tempfile::tempdir().unwrap();
        let cache = cache(dir.path());
        cache.write(SYMBOL, TEXT, CUBIN);
        let path = only_file(dir.path());
        let whole = fs::read(&path).unwrap();
        for len in 0..whole.len() {
            fs::write(&path, &whole[..len]).unwrap();
            assert_eq!(cache.read(SYMBOL, TEXT), None, "cut to {len} bytes");
        }
        for byte in 0..whole.len() {
            let mut flipped = whole.clone();
            flipped[byte] ^= 1;
            fs::write(&path, flipped).unwrap();
            assert_eq!(cache.read(SYMBOL, TEXT), None, "byte {byte} flipped");
        }
        cache.write(SYMBOL, TEXT, CUBIN);
        assert_eq!(cache.read(SYMBOL, TEXT).as_deref(), Some(CUBIN));
    }

    #[test]
    fn a_place_that_cannot_be_written_is_no_error() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let cache = cache(&file.join("below"));
        cache.write(SYMBOL, TEXT, CUBIN);
        assert_eq!(cache.read(SYMBOL, TEXT), None);
    }
}
