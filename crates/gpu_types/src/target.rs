//! What device code is compiled for.

/// A device target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// Ampere, Ada and everything newer, through the driver's JIT: `mma.sync`, `cp.async`.
    Sm80,
    /// Hopper alone: `wgmma`, TMA, `mbarrier`, `setmaxnreg`, FP8.
    Sm90a,
}

impl Target {
    /// All targets.
    pub const ALL: [Target; 2] = [Target::Sm80, Target::Sm90a];

    /// The name in PTX: `sm_80`.
    pub const fn name(self) -> &'static str {
        match self {
            Target::Sm80 => "sm_80",
            Target::Sm90a => "sm_90a",
        }
    }
}
