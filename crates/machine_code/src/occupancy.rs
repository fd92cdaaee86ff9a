//! How many blocks of a kernel a multiprocessor holds at a time.
//!
//! The rules are those of NVIDIA's occupancy calculator (`cuda_occupancy.h`), for compute capability
//! 8.0 and 9.0.

/// Lanes of a warp.
const WARP_SIZE: u32 = 32;

/// Registers are given to warps in units of this many.
const REGISTER_UNIT: u32 = 256;

/// A multiprocessor is divided into four, each with its own registers and warps.
const SUB_PARTITIONS: u32 = 4;

/// Shared memory is given to blocks in units of this many bytes.
const SHARED_UNIT_BYTES: u32 = 128;

/// Shared memory that the system takes for each block.
const SYSTEM_SHARED_BYTES: u32 = 1 << 10;

/// What a multiprocessor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Multiprocessor {
    /// GPUs that have it.
    pub gpus: &'static str,
    /// 32-bit registers.
    pub registers: u32,
    /// Shared memory at most.
    pub shared_bytes: u32,
    /// Resident warps at most.
    pub max_warps: u32,
    /// Resident blocks at most.
    pub max_blocks: u32,
}

impl Multiprocessor {
    /// Multiprocessor of an A100.
    pub const SM_80: Self = Multiprocessor {
        gpus: "A100",
        registers: 64 << 10,
        shared_bytes: 164 << 10,
        max_warps: 64,
        max_blocks: 32,
    };

    /// Multiprocessor of an H100 or H200.
    pub const SM_90: Self =
        Multiprocessor { gpus: "H100 and H200", shared_bytes: 228 << 10, ..Self::SM_80 };

    /// The one that a target is for: `sm_80`, `sm_90` or `sm_90a`.
    pub fn from_target(target: &str) -> Option<Self> {
        match target {
            "sm_80" => Some(Self::SM_80),
            "sm_90" | "sm_90a" => Some(Self::SM_90),
            _ => None,
        }
    }

    /// How many blocks it holds; none if `block` needs more than it has.
    pub fn occupancy(&self, block: &BlockResources) -> Occupancy {
        let warps = block.threads.div_ceil(WARP_SIZE).max(1);
        let limits = [
            (Limit::Registers, self.blocks_by_registers(block.registers, warps)),
            (Limit::SharedMemory, self.blocks_by_shared_memory(block.shared_bytes)),
            (Limit::Threads, self.max_warps / warps),
            (Limit::Blocks, self.max_blocks),
        ];
        let blocks = limits.iter().map(|(_, blocks)| *blocks).min().unwrap_or(0);
        let reached = limits.into_iter().filter(|(_, limit)| *limit == blocks);
        Occupancy {
            blocks,
            warps: blocks * warps,
            percent: 100.0 * f64::from(blocks * warps) / f64::from(self.max_warps),
            limits: reached.map(|(limit, _)| limit).collect(),
        }
    }

    fn blocks_by_registers(&self, registers: u32, warps: u32) -> u32 {
        let of_warp = (registers.max(1) * WARP_SIZE).next_multiple_of(REGISTER_UNIT);
        // A block must fit as if each sub-partition got the same number of its warps.
        if of_warp * warps.next_multiple_of(SUB_PARTITIONS) > self.registers {
            return 0;
        }
        self.registers / SUB_PARTITIONS / of_warp * SUB_PARTITIONS / warps
    }

    fn blocks_by_shared_memory(&self, bytes: u32) -> u32 {
        self.shared_bytes / (bytes + SYSTEM_SHARED_BYTES).next_multiple_of(SHARED_UNIT_BYTES)
    }
}

/// What a block needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockResources {
    /// Threads.
    pub threads: u32,
    /// Registers of a thread.
    pub registers: u32,
    /// Shared memory, static and dynamic.
    pub shared_bytes: u32,
}

/// What a multiprocessor runs out of first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Registers.
    Registers,
    /// Shared memory.
    SharedMemory,
    /// Resident warps.
    Threads,
    /// Resident blocks.
    Blocks,
}

impl Limit {
    /// Name of the limit in a table.
    pub fn name(self) -> &'static str {
        match self {
            Limit::Registers => "registers",
            Limit::SharedMemory => "shared",
            Limit::Threads => "threads",
            Limit::Blocks => "blocks",
        }
    }
}

/// What a multiprocessor holds at a time.
#[derive(Clone, Debug, PartialEq)]
pub struct Occupancy {
    /// Blocks.
    pub blocks: u32,
    /// Warps of these blocks.
    pub warps: u32,
    /// These warps of the most that it could hold.
    pub percent: f64,
    /// What allows no more: one, or several that run out together.
    pub limits: Vec<Limit>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(sm: Multiprocessor, [threads, registers, shared_bytes]: [u32; 3]) -> (u32, Limit) {
        let found = sm.occupancy(&BlockResources { threads, registers, shared_bytes });
        assert_eq!(found.limits.len(), 1, "{found:?}");
        assert_eq!(found.warps, found.blocks * threads.div_ceil(32));
        (found.blocks, found.limits[0])
    }

    #[test]
    fn registers_are_given_to_warps_in_units_of_256() {
        let sm = Multiprocessor::SM_90;
        // 65 registers of 32 lanes are 2,080: 2,304 a warp, 7 warps a sub-partition, 28 in all.
        assert_eq!(blocks(sm, [256, 65, 0]), (3, Limit::Registers));
        // 33 are 1,280: 12 warps a sub-partition, though 51 would fit in four that were one.
        assert_eq!(blocks(sm, [64, 33, 0]), (24, Limit::Registers));
        // 64 are 2,048: 8 warps a sub-partition.
        assert_eq!(blocks(sm, [256, 64, 0]), (4, Limit::Registers));
        // 168 are 5,376: 3 warps a sub-partition, one block of 12.
        assert_eq!(blocks(sm, [384, 168, 0]), (1, Limit::Registers));
        // 5 warps of 8,192: 8 warps a multiprocessor, which holds one block.
        assert_eq!(blocks(sm, [160, 255, 0]), (1, Limit::Registers));
        // 9 warps count as 12, and 12 x 8,192 are more than there are.
        assert_eq!(blocks(sm, [288, 255, 0]), (0, Limit::Registers));
    }

    #[test]
    fn shared_memory_is_given_in_units_of_128_bytes_after_1_kib_for_the_system() {
        // 228 KiB are 233,472 bytes; two blocks of 113 KiB and 1 KiB fill them.
        let kib = 1 << 10;
        assert_eq!(blocks(Multiprocessor::SM_90, [128, 32, 113 * kib]), (2, Limit::SharedMemory));
        assert_eq!(
            blocks(Multiprocessor::SM_90, [128, 32, 113 * kib + 1]),
            (1, Limit::SharedMemory)
        );
        assert_eq!(blocks(Multiprocessor::SM_90, [128, 32, 227 * kib]), (1, Limit::SharedMemory));
        assert_eq!(
            blocks(Multiprocessor::SM_90, [128, 32, 227 * kib + 1]),
            (0, Limit::SharedMemory)
        );
        // 164 KiB of an A100: 163 KiB a block, or four of 40 KiB.
        assert_eq!(blocks(Multiprocessor::SM_80, [128, 32, 163 * kib]), (1, Limit::SharedMemory));
        assert_eq!(blocks(Multiprocessor::SM_80, [128, 32, 40 * kib]), (4, Limit::SharedMemory));
        assert_eq!(blocks(Multiprocessor::SM_90, [128, 32, 40 * kib]), (5, Limit::SharedMemory));
    }

    #[test]
    fn warps_and_blocks_have_limits_of_their_own() {
        for sm in [Multiprocessor::SM_80, Multiprocessor::SM_90] {
            assert_eq!(blocks(sm, [32, 16, 0]), (32, Limit::Blocks));
            assert_eq!(blocks(sm, [1024, 16, 0]), (2, Limit::Threads));
            // 3 warps a block: 21 blocks of 64 warps.
            assert_eq!(blocks(sm, [96, 16, 0]), (21, Limit::Threads));
        }
    }

    #[test]
    fn what_runs_out_together_is_named_together() {
        let block = BlockResources { threads: 256, registers: 32, shared_bytes: 0 };
        let found = Multiprocessor::SM_80.occupancy(&block);
        assert_eq!((found.blocks, found.warps, found.percent), (8, 64, 100.0));
        assert_eq!(found.limits, [Limit::Registers, Limit::Threads]);
        // A warp that is not full counts as one: 2 of them a block.
        let block = BlockResources { threads: 33, registers: 16, shared_bytes: 0 };
        let found = Multiprocessor::SM_90.occupancy(&block);
        assert_eq!((found.blocks, found.warps), (32, 64));
        assert_eq!(found.limits, [Limit::Threads, Limit::Blocks]);
    }

    #[test]
    fn a_target_that_is_not_known_has_no_multiprocessor() {
        assert_eq!(Multiprocessor::from_target("sm_90a"), Some(Multiprocessor::SM_90));
        assert_eq!(Multiprocessor::from_target("sm_80"), Some(Multiprocessor::SM_80));
        assert_eq!(Multiprocessor::from_target("sm_120"), None);
    }
}
