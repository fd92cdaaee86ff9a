//! What the 32 threads of a warp do together. All of them call these functions, converged.
//!
//! The device bodies are LLVM's intrinsics, not `asm!`: LLVM knows them to be convergent and moves
//! no call of them into a branch.

/// Threads of a warp.
pub const WARP_SIZE: u32 = 32;

/// All lanes.
const FULL_MASK: u32 = u32::MAX;

/// Segment and clamp operand of a shuffle over the whole warp.
#[cfg(target_arch = "nvptx64")]
const WHOLE_WARP: u32 = 0x1f;

#[cfg(target_arch = "nvptx64")]
unsafe extern "C" {
    #[link_name = "llvm.nvvm.shfl.sync.bfly.f32"]
    fn shfl_bfly_f32(mask: u32, value: f32, lane_mask: u32, clamp: u32) -> f32;
    #[link_name = "llvm.nvvm.shfl.sync.bfly.i32"]
    fn shfl_bfly_u32(mask: u32, value: u32, lane_mask: u32, clamp: u32) -> u32;
    #[link_name = "llvm.nvvm.shfl.sync.idx.f32"]
    fn shfl_idx_f32(mask: u32, value: f32, lane: u32, clamp: u32) -> f32;
    #[link_name = "llvm.nvvm.bar.warp.sync"]
    fn bar_warp_sync(mask: u32);
}

/// A value that a shuffle can carry from lane to lane.
pub trait Shuffle: Copy {
    /// See [`shuffle_xor`].
    fn shuffle_xor(self, lane_mask: u32) -> Self;
}

impl Shuffle for f32 {
    #[inline(always)]
    #[track_caller]
    fn shuffle_xor(self, lane_mask: u32) -> Self {
        shuffle_xor_f32(self, lane_mask)
    }
}

impl Shuffle for u32 {
    #[inline(always)]
    #[track_caller]
    fn shuffle_xor(self, lane_mask: u32) -> Self {
        shuffle_xor_u32(self, lane_mask)
    }
}

/// The value of lane `lane_id ^ lane_mask`. CUDA C `__shfl_xor_sync`.
#[inline(always)]
#[track_caller]
pub fn shuffle_xor<T: Shuffle>(value: T, lane_mask: u32) -> T {
    value.shuffle_xor(lane_mask)
}

instruction! {
    "shfl.sync.bfly.b32" => fn shuffle_xor_f32(value: f32, lane_mask: u32) -> f32 {
        shfl_bfly_f32(FULL_MASK, value, lane_mask, WHOLE_WARP)
    } host {
        f32::from_bits(shuffle("shfl.sync.bfly.b32", value.to_bits(), lane_id() ^ lane_mask))
    }

    "shfl.sync.bfly.b32" => fn shuffle_xor_u32(value: u32, lane_mask: u32) -> u32 {
        shfl_bfly_u32(FULL_MASK, value, lane_mask, WHOLE_WARP)
    } host {
        shuffle("shfl.sync.bfly.b32", value, lane_id() ^ lane_mask)
    }

    /// The value of lane `lane`. CUDA C `__shfl_sync`.
    "shfl.sync.idx.b32" => pub fn shuffle_idx(value: f32, lane: u32) -> f32 {
        shfl_idx_f32(FULL_MASK, value, lane, WHOLE_WARP)
    } host {
        f32::from_bits(shuffle("shfl.sync.idx.b32", value.to_bits(), lane))
    }

    /// Waits for all lanes, and makes their writes to memory visible to each other. CUDA C
    /// `__syncwarp`.
    "bar.warp.sync" => pub fn sync_warp() {
        bar_warp_sync(FULL_MASK)
    } host {
        simt::device::sync_warp(FULL_MASK)
    }
}

/// A shuffle over the whole warp: the value of lane `from`, modulo 32.
#[cfg(not(target_arch = "nvptx64"))]
#[track_caller]
fn shuffle(mnemonic: &'static str, value: u32, from: u32) -> u32 {
    // A lane brings its value, and the number of the lane whose value it wants.
    let brought = [value, from % WARP_SIZE];
    let [got, ..] = simt::device::collective(mnemonic, FULL_MASK, &brought, |lanes| {
        let brought = *lanes;
        lanes.iter_mut().for_each(|lane| *lane = brought[lane[1] as usize]);
    });
    got
}

/// Index of the thread in its warp, of a one-dimensional block.
#[inline(always)]
#[track_caller]
pub fn lane_id() -> u32 {
    crate::thread::thread_idx_x() % WARP_SIZE
}

/// Index of the warp in its one-dimensional block.
#[inline(always)]
#[track_caller]
pub fn warp_idx() -> u32 {
    crate::thread::thread_idx_x() / WARP_SIZE
}

/// The sum of `value` over the warp, in every lane: five shuffles.
#[inline(always)]
#[track_caller]
pub fn reduce_add(mut value: f32) -> f32 {
    let mut lane_mask = WARP_SIZE / 2;
    while lane_mask > 0 {
        value += shuffle_xor(value, lane_mask);
        lane_mask /= 2;
    }
    value
}
