//! Instructions of clusters; `setmaxnreg`; dependencies between launches.

use super::{wait_until, with};

/// Index of the block in its cluster.
#[track_caller]
pub fn cluster_block_idx() -> [u32; 3] {
    with(|machine, _| Ok(machine.layout.cluster_block_idx(machine.blocks[machine.current.0].index)))
}

/// Blocks of a cluster.
#[track_caller]
pub fn cluster_dim() -> [u32; 3] {
    with(|machine, _| Ok(machine.layout.cluster))
}

/// The block's rank in its cluster (`%cluster_ctarank`).
#[track_caller]
pub fn cluster_rank() -> u32 {
    with(|machine, _| Ok(machine.layout.cluster_rank(machine.blocks[machine.current.0].index)))
}

/// `mapa`: the address in the cluster's window (`Space::Cluster`) that corresponds to `address` in
/// the block of rank `rank`.
#[track_caller]
pub fn map_shared(address: u32, rank: u32) -> u32 {
    with(|machine, _| machine.map_shared(address, rank))
}

/// `setmaxnreg`: sets the registers of each thread of the warp to `count`, more (`increase`) or
/// fewer than before.
#[track_caller]
pub fn set_max_registers(count: u32, increase: bool) {
    wait_until(|machine, location| machine.set_registers(count, increase, location));
}

/// `griddepcontrol.wait`: waits for earlier launches.
#[track_caller]
pub fn wait_for_dependencies() {
    with(|machine, _| {
        machine.wait_for_launches();
        Ok(())
    });
}

/// `griddepcontrol.launch_dependents`: the next launch may start.
#[track_caller]
pub fn launch_dependents() {
    with(|machine, _| {
        machine.let_next_launch_start();
        Ok(())
    });
}
