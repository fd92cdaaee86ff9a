//! NCCL opened at run time: collectives between GPUs, as an alternative to halfwarp's own all-reduce.
//!
//! # Where the library is found
//! 1. `HALFWARP_NCCL`: the library, or the folder of `libnccl.so.2`. Nothing else is tried; set to nothing, no NCCL is
//!    used.
//! 2. `libnccl.so.2`, as the system's loader finds it.
//! 3. The package `nvidia-nccl-cu12` or `nvidia-nccl-cu13`, which PyTorch brings along, of a Python in `PATH` or of
//!    the user: `lib/python3.*/site-packages/nvidia/nccl/lib/libnccl.so.2`.
//!
//! NCCL 2.27 is the oldest that is accepted: 2.26 repairs hangs of `ncclCommAbort`, and 2.27 is the first in which the
//! threads of one process can each wait for a non-blocking communicator of their own. PyTorch has it since 2.8.
//!
//! # Ranks
//! A process has one thread a GPU, and a [`Communicator`] a thread, whose documentation says how one that fails ends
//! the others. A non-blocking collective costs the start of a thread (tens of microseconds), so that collectives are
//! captured in a CUDA graph. The first collective of a size connects the ranks and allocates: each is called once
//! before it is captured.
//!
//! # NVLink multicast stays off
//! NCCL's NVLS transport (multicast objects in the NVLink switch) is not used. From NCCL 2.32 on, the communicator's
//! configuration turns it off (`nvlsHostMode`, which no environment variable overrides). Older versions have no such
//! field: `nvlsCTAs` is a number of blocks, of at least 1. They read `NCCL_NVLS_ENABLE` alone, and a library must not
//! set a variable of a process that may have threads. So with these [`Nccl::open`] requires `NCCL_NVLS_ENABLE=0` in the
//! environment, and returns [`NcclError::Multicast`] without it.

mod collective;
mod communicator;
mod config;
mod error;
mod find;
mod functions;

pub use collective::{AllGather, AllReduce, Collective, DataType};
pub use communicator::{Communicator, Progress};
pub use error::NcclError;

use std::ffi::{OsStr, c_char, c_int};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;
use std::{env, fmt};

use find::Library;
use functions::Functions;

/// The oldest version that is accepted.
const MIN_VERSION: Version = Version { major: 2, minor: 27, patch: 0 };

/// The variable that turns NVLink multicast off, in versions whose configuration cannot.
const MULTICAST_VARIABLE: &str = "NCCL_NVLS_ENABLE";

/// A version of NCCL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// 2 of 2.28.9.
    pub major: u32,
    /// 28 of 2.28.9.
    pub minor: u32,
    /// 9 of 2.28.9.
    pub patch: u32,
}

impl Version {
    /// From a `NCCL_VERSION_CODE`, whose form changed with 2.9.
    const fn from_code(code: u32) -> Self {
        let unit = if code < 10_000 { 1000 } else { 10_000 };
        Self { major: code / unit, minor: code % unit / 100, patch: code % 100 }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// What the ranks of a communicator have in common: made by one of them, given to all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct UniqueId([c_char; UniqueId::BYTES]);

impl UniqueId {
    /// `NCCL_UNIQUE_ID_BYTES`.
    pub const BYTES: usize = 128;

    /// The bytes, for a rank in another process.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        self.0.map(|byte| byte as u8)
    }

    /// The identifier of which another process has sent the bytes.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        Self(bytes.map(|byte| byte as c_char))
    }
}

/// The loaded library, whose communicators do not use NVLink multicast.
#[derive(Clone, Debug)]
pub struct Nccl {
    functions: Functions,
    version: Version,
    library: PathBuf,
}

impl Nccl {
    /// Loads the library, once; later calls, from any thread, return the first call's result.
    ///
    /// # Errors
    /// - [`NcclError::Missing`] if there is none, [`NcclError::Named`] if `HALFWARP_NCCL` names none;
    /// - [`NcclError::NotNccl`] if the library lacks a function, [`NcclError::TooOld`] before NCCL 2.27;
    /// - [`NcclError::Multicast`] before NCCL 2.32, if `NCCL_NVLS_ENABLE` is not 0.
    pub fn open() -> Result<Self, NcclError> {
        static NCCL: OnceLock<Result<Nccl, NcclError>> = OnceLock::new();
        NCCL.get_or_init(|| {
            let named = env::var_os(find::VARIABLE);
            let library = find::open(named.as_deref(), &find::package_files())?;
            Self::of(library, env::var_os(MULTICAST_VARIABLE).as_deref())
        })
        .clone()
    }

    /// The library's functions, with the value of `NCCL_NVLS_ENABLE`.
    fn of(library: Library, multicast: Option<&OsStr>) -> Result<Self, NcclError> {
        let version = functions::version(&library)?;
        if version < MIN_VERSION {
            return Err(NcclError::TooOld { library: library.path, found: version });
        }
        if !config::turns_multicast_off(version) && multicast != Some(OsStr::new("0")) {
            return Err(NcclError::Multicast { found: version });
        }
        Ok(Self { functions: Functions::find(&library)?, version, library: library.path })
    }

    /// The library's version.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The file that was opened, or `libnccl.so.2` where the system's loader found it.
    pub fn library(&self) -> &Path {
        &self.library
    }

    /// A new identifier for the ranks of one communicator (`ncclGetUniqueId`). NCCL starts a thread that listens on a
    /// TCP port until the ranks have met: `NCCL_SOCKET_IFNAME=lo` in the environment keeps it on this machine.
    ///
    /// # Errors
    /// [`NcclError::Call`].
    pub fn unique_id(&self) -> Result<UniqueId, NcclError> {
        let mut id = UniqueId([0; UniqueId::BYTES]);
        // SAFETY: `id` has the 128 bytes of a `ncclUniqueId` and outlives the call.
        let code = unsafe { (self.functions.get_unique_id)(&mut id) };
        self.functions.check("ncclGetUniqueId", code)?;
        Ok(id)
    }

    /// Starts to join `world` ranks as `rank` (`ncclCommInitRankConfig`), with the GPU whose context is current. It
    /// returns before the others have joined: [`Communicator::wait`]. `limit` is the longest that this wait, or one in
    /// a collective, may take.
    ///
    /// # Safety
    /// 1. The primary context of a GPU is current in this thread; no other rank has this GPU.
    /// 2. `id` is that of all ranks and of one communicator; each rank from 0 to `world - 1` joins once.
    ///
    /// # Errors
    /// - [`NcclError::Rank`] if `rank` is not less than `world`;
    /// - [`NcclError::Call`]; this thread cannot try again: NCCL leaves a group open in it if there is no GPU.
    pub unsafe fn communicator(
        &self,
        id: &UniqueId,
        rank: u32,
        world: u32,
        limit: Duration,
    ) -> Result<Communicator, NcclError> {
        let (Ok(c_rank), Ok(c_world)) = (c_int::try_from(rank), c_int::try_from(world)) else {
            return Err(NcclError::Rank { rank, world });
        };
        if rank >= world {
            return Err(NcclError::Rank { rank, world });
        }
        let mut config = config::Config::of(self.version);
        let mut handle = std::ptr::null_mut();
        // SAFETY: `handle` and `config`, which has the layout of this version, outlive the call, which copies the
        // configuration and the identifier. The caller promised the context.
        let code = unsafe {
            (self.functions.comm_init_rank_config)(&mut handle, c_world, *id, c_rank, &mut config)
        };
        // SAFETY: the handle is new, or null.
        unsafe { Communicator::new(self.functions, handle, code, (rank, world), limit) }
    }
}

#[cfg(test)]
mod tests;
