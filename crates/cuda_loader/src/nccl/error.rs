//! Why NCCL cannot be used, or what failed.

use std::ffi::c_int;
use std::path::PathBuf;
use std::time::Duration;

use super::{MIN_VERSION, Version};

/// Why an NCCL call is not possible, or failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NcclError {
    /// No library was found, or none loads; the dynamic loader's reason for each.
    #[error(
        "no NCCL found ({0})\ninstall nvidia-nccl-cu12 or -cu13 with pip, or name libnccl.so.2 in HALFWARP_NCCL, or use halfwarp's own all-reduce, which needs none"
    )]
    Missing(String),
    /// `HALFWARP_NCCL` is set, and what it names does not load.
    #[error(
        "HALFWARP_NCCL={}: {reason}\nname libnccl.so.2 or its folder, or unset the variable", path.display()
    )]
    Named {
        /// The file.
        path: PathBuf,
        /// The dynamic loader's reason.
        reason: String,
    },
    /// The library lacks a function.
    #[error(
        "{} has no {function}: not NCCL {MIN_VERSION} or newer\nname another in HALFWARP_NCCL, or use halfwarp's own all-reduce", library.display()
    )]
    NotNccl {
        /// The file.
        library: PathBuf,
        /// The function.
        function: &'static str,
    },
    /// The library is older than what is tested.
    #[error(
        "{} is NCCL {found}, {MIN_VERSION} or newer is needed\ninstall a newer nvidia-nccl-cu12 or -cu13 with pip and name it in HALFWARP_NCCL, or use halfwarp's own all-reduce", library.display()
    )]
    TooOld {
        /// The file.
        library: PathBuf,
        /// Version of the library.
        found: Version,
    },
    /// This version turns NVLink multicast off by a variable of the environment only, which is not set.
    #[error(
        "NCCL {found} uses NVLink multicast unless the environment says otherwise\nstart with NCCL_NVLS_ENABLE=0, or install NCCL 2.32 or newer, or use halfwarp's own all-reduce"
    )]
    Multicast {
        /// The library's version.
        found: Version,
    },
    /// There is no such rank.
    #[error("rank {rank} of {world}: ranks are numbered from 0 to the number of GPUs less 1")]
    Rank {
        /// The rank.
        rank: u32,
        /// The number of ranks.
        world: u32,
    },
    /// A call failed: its name, the `ncclResult_t`, and NCCL's own words.
    #[error("{call} failed with NCCL status {status}: {reason}")]
    Call {
        /// The function.
        call: &'static str,
        /// Status of the call, or of the communicator.
        status: c_int,
        /// `ncclGetErrorString`, and `ncclGetLastError` if there is one.
        reason: String,
    },
    /// A call did not complete in time. The communicator can only be aborted.
    #[error("{call} of rank {rank} took more than {} s: abort all ranks", limit.as_secs_f64())]
    Timeout {
        /// The function.
        call: &'static str,
        /// The rank that waited.
        rank: u32,
        /// The communicator's limit.
        limit: Duration,
    },
    /// The communicator has been aborted.
    #[error("the NCCL communicator of rank {rank} has been aborted: end this rank")]
    Aborted {
        /// The rank.
        rank: u32,
    },
}
