//! A kernel as it was compiled.

/// A kernel as it was compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// The PTX entry.
    pub symbol: &'static str,
    /// Most threads of a block: its launch bound (`.maxntid`).
    pub max_threads: u32,
    /// Blocks of a cluster in x, y, z; `[1, 1, 1]` without clusters.
    pub cluster: [u32; 3],
}
