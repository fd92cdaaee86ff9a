//! Loading and calls, with a stand-in for the library (`tests/stub.rs`) that is loaded as the library is.

mod calls;
mod loading;
mod waiting;

use super::*;
use std::ffi::{CString, c_void};
use std::process::Command;
use std::{fs, ptr};

/// A private copy of the stand-in: a library of its own, with its own record of calls.
struct Stub {
    library: Library,
    /// Holds the file, which stays open.
    dir: tempfile::TempDir,
}

impl Stub {
    /// The stand-in of this version.
    fn new(version: c_int) -> Self {
        static COMPILED: OnceLock<Vec<u8>> = OnceLock::new();
        Self::of(COMPILED.get_or_init(|| compile(&[])), version)
    }

    fn of(compiled: &[u8], version: c_int) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("libnccl.so.2"), compiled).unwrap();
        let library = find::open(Some(dir.path().as_os_str()), &[]).unwrap();
        let stub = Self { library, dir };
        stub.set("version", version);
        stub
    }

    /// A stub of a version whose configuration turns NVLink multicast off, opened.
    fn opened() -> (Self, Nccl) {
        let stub = Self::new(23_203);
        let nccl = stub.nccl(None).unwrap();
        (stub, nccl)
    }

    /// Opened as [`Nccl::open`] does it, with this value of `NCCL_NVLS_ENABLE`.
    fn nccl(&self, multicast: Option<&str>) -> Result<Nccl, NcclError> {
        let library = find::open(Some(self.dir.path().as_os_str()), &[])?;
        Nccl::of(library, multicast.map(OsStr::new))
    }

    /// Sets a function's status, or another value of the stand-in.
    fn set(&self, name: &str, value: c_int) {
        let name = CString::new(name).unwrap();
        // SAFETY: this is the function's type in `stub.rs`, which copies the name.
        unsafe {
            let set: unsafe extern "C" fn(*const c_char, c_int) =
                std::mem::transmute(self.library.function(c"stub_set").unwrap());
            set(name.as_ptr(), value);
        }
    }

    /// The calls since the last time.
    fn calls(&self) -> Vec<String> {
        let mut text = vec![0u8; 1 << 16];
        // SAFETY: this is the function's type in `stub.rs`, which writes no more than it is told.
        let len = unsafe {
            let take: unsafe extern "C" fn(*mut u8, usize) -> usize =
                std::mem::transmute(self.library.function(c"stub_take_calls").unwrap());
            take(text.as_mut_ptr(), text.len())
        };
        String::from_utf8_lossy(&text[..len]).lines().map(str::to_owned).collect()
    }
}

/// The stand-in, compiled with these options.
fn compile(options: &[&str]) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let [source, file] = ["stub.rs", "stub.so"].map(|name| dir.path().join(name));
    fs::write(&source, include_str!("tests/stub.rs")).unwrap();
    // Cargo's neighbour: the compiler that compiled this test.
    let rustc = env::var_os("CARGO").map(|cargo| Path::new(&cargo).with_file_name("rustc"));
    let rustc = rustc.filter(|path| path.is_file()).unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc)
        .args(["--edition=2024", "--crate-type=cdylib", "--cap-lints=allow", "-o"])
        .args([&file, &source])
        .args(options)
        .output()
        .expect("rustc runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    fs::read(file).unwrap()
}

const STREAM: *mut c_void = ptr::without_provenance_mut(0x2000);

/// Rank 1 of 4, with a limit that no test reaches; the call is taken from the record.
fn join(stub: &Stub, nccl: &Nccl) -> Communicator {
    let communicator = join_within(nccl, Duration::from_secs(60)).unwrap();
    stub.calls();
    communicator
}

fn join_within(nccl: &Nccl, limit: Duration) -> Result<Communicator, NcclError> {
    let id = nccl.unique_id()?;
    // SAFETY: the stand-in uses no context.
    unsafe { nccl.communicator(&id, 1, 4, limit) }
}
