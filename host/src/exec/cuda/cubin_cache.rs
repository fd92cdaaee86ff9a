//! Machine code on disk, so that a second start costs no JIT.
//!
//! The driver has a cache of its own (`CUDA_CACHE_PATH`), but it is shared by all programs, evicts by size, and is
//! switched off on some clusters; this one holds what this program needs, for as long as it needs it. A file is named by
//! what its code depends on: the PTX, the driver, the compute capability. It is written beside its place and renamed, so
//! that it is whole or absent, and it carries a checksum: what does not match is compiled again.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::device::Capability;
use crate::ptx::Kernel;

const MAGIC: &[u8; 16] = b"halfwarp cubin 1";

/// Cubins of one driver and one compute capability.
#[derive(Debug)]
pub struct CubinCache {
    dir: Option<PathBuf>,
    driver: String,
    capability: Capability,
}

impl CubinCache {
    /// The cache in `dir` for `driver`, any text that changes when the driver does. Without a directory nothing is kept.
    pub fn new(dir: Option<PathBuf>, driver: String, capability: Capability) -> Self {
        CubinCache { dir, driver, capability }
    }

    /// The machine code of `kernel`, if it is there and whole.
    pub fn read(&self, kernel: &Kernel) -> Option<Vec<u8>> {
        let file = fs::read(self.path(kernel)?).ok()?;
        let rest = file.strip_prefix(MAGIC)?;
        let (checksum, cubin) = rest.split_first_chunk::<8>()?;
        (u64::from_le_bytes(*checksum) == hash(cubin)).then(|| cubin.to_vec())
    }

    /// Keeps the machine code of `kernel`. A disk that is full or read-only is no reason to fail: the code is compiled
    /// again at the next start.
    pub fn write(&self, kernel: &Kernel, cubin: &[u8]) {
        if let Some(path) = self.path(kernel) {
            let _ = write_atomically(&path, cubin);
        }
    }

    fn path(&self, kernel: &Kernel) -> Option<PathBuf> {
        let key = hash(&(kernel.text, &self.driver, self.capability));
        let name = format!(
            "{}-sm{}{}-{key:016x}",
            kernel.symbol, self.capability.major, self.capability.minor
        );
        Some(self.dir.as_ref()?.join(name).with_extension("cubin"))
    }
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

    const KERNEL: Kernel = Kernel {
        symbol: "gemm_f32",
        family: "gemm",
        max_threads: 256,
        min_blocks: 1,
        cluster: None,
        text: ".version 8.0\n",
    };
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
        assert_eq!(cache.read(&KERNEL), None);
        cache.write(&KERNEL, CUBIN);
        assert_eq!(cache.read(&KERNEL).as_deref(), Some(CUBIN));
        only_file(&dir.path().join("made/when/needed"));
    }

    #[test]
    fn another_ptx_driver_or_capability_is_another_file() {
        let dir = tempfile::tempdir().unwrap();
        let own = cache(dir.path());
        own.write(&KERNEL, CUBIN);
        assert_eq!(own.read(&Kernel { text: ".version 8.1\n", ..KERNEL }), None);
        let driver = CubinCache { driver: "580.66".to_owned(), ..cache(dir.path()) };
        assert_eq!(driver.read(&KERNEL), None);
        let capability = Capability { major: 8, minor: 9 };
        assert_eq!(CubinCache { capability, ..cache(dir.path()) }.read(&KERNEL), None);
    }

    #[test]
    fn a_corrupt_file_is_as_good_as_none() {
        let dir = tempfile::tempdir().unwrap();
        let cache = cache(dir.path());
        cache.write(&KERNEL, CUBIN);
        let path = only_file(dir.path());
        let whole = fs::read(&path).unwrap();
        for len in 0..whole.len() {
            fs::write(&path, &whole[..len]).unwrap();
            assert_eq!(cache.read(&KERNEL), None, "cut to {len} bytes");
        }
        for byte in 0..whole.len() {
            let mut flipped = whole.clone();
            flipped[byte] ^= 1;
            fs::write(&path, flipped).unwrap();
            assert_eq!(cache.read(&KERNEL), None, "byte {byte} flipped");
        }
        cache.write(&KERNEL, CUBIN);
        assert_eq!(cache.read(&KERNEL).as_deref(), Some(CUBIN));
    }

    #[test]
    fn a_place_that_cannot_be_written_is_no_error() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let cache = cache(&file.join("below"));
        cache.write(&KERNEL, CUBIN);
        assert_eq!(cache.read(&KERNEL), None);
    }
}
