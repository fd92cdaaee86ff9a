//! Clusters: shared memory of other blocks, and the cluster's barrier.

use crate::clock::Knowledge;
use crate::fault::FaultKind;
use crate::machine::{At, Machine};
use crate::point::Point;

/// Bit of an address in the cluster's window at which the block's rank, plus one, starts.
const RANK_SHIFT: u32 = 24;

/// The barrier of a cluster's threads.
#[derive(Default)]
pub(crate) struct ClusterBarrier {
    /// Completed phases.
    phase: u32,
    arrived: usize,
    released: Option<Knowledge>,
    /// Threads that wait: slot of the block, and thread.
    waiting: Vec<(usize, usize)>,
    /// What the completed phases have released.
    completed: Option<Knowledge>,
}

impl Machine {
    /// The address in the cluster's window that corresponds to `address` in the block of rank
    /// `rank`.
    pub fn map_shared(&mut self, address: u32, rank: u32) -> Result<u32, FaultKind> {
        let blocks = self.layout.blocks_per_cluster();
        if rank as usize >= blocks {
            let why = format!("block {rank} of a cluster of {blocks}");
            return Err(FaultKind::Invalid(why));
        }
        Ok(address & ((1 << RANK_SHIFT) - 1) | (rank + 1) << RANK_SHIFT)
    }

    /// The slot of the block that an address of the cluster's window is in, and the address there.
    pub fn locate_in_cluster(&self, address: u64) -> Result<(usize, u64), FaultKind> {
        let own = self.current.0;
        match (address >> RANK_SHIFT) as usize {
            0 => Ok((own, address)),
            rank if rank <= self.layout.blocks_per_cluster() => {
                let place = self.place_in_cluster(rank - 1)?;
                Ok((place, address & ((1 << RANK_SHIFT) - 1)))
            }
            _ => Err(FaultKind::Invalid(format!(
                "{address:#x} is no address of the cluster's shared memory"
            ))),
        }
    }

    /// The slot of the block of this rank in the own cluster.
    pub fn place_in_cluster(&self, rank: usize) -> Result<usize, FaultKind> {
        let own = self.blocks[self.current.0].index;
        let index = self.layout.block_of_cluster(self.layout.cluster_of(own), rank);
        self.place_of(index).ok_or_else(|| {
            FaultKind::Invalid(format!(
                "the shared memory of block {:?}, which has ended",
                self.layout.block_idx(index)
            ))
        })
    }

    /// The thread arrives at the cluster's barrier.
    pub fn cluster_arrive(&mut self, release: bool) -> Result<(), FaultKind> {
        let (place, thread) = self.current;
        if self.blocks[place].threads[thread].cluster_phase.is_some() {
            let why = "barrier.cluster.arrive twice, without barrier.cluster.wait between";
            return Err(FaultKind::Invalid(why.to_owned()));
        }
        let made_mbarriers = self.blocks[place].threads[thread].made_mbarriers.take();
        let knowledge = if release { Some(self.clock().release(thread)) } else { made_mbarriers };
        let cluster = self.layout.cluster_of(self.blocks[place].index);
        let barrier = self.cluster_barriers.entry(cluster).or_default();
        barrier.arrived += 1;
        join(&mut barrier.released, knowledge.as_ref());
        self.blocks[place].threads[thread].cluster_phase = Some(barrier.phase);
        self.complete_cluster_barrier(cluster);
        Ok(())
    }

    /// Whether all threads of the cluster have arrived at its barrier; if not, the thread waits.
    pub fn cluster_wait(&mut self, location: At) -> Result<bool, FaultKind> {
        let (place, thread) = self.current;
        let cluster = self.layout.cluster_of(self.blocks[place].index);
        let barrier = self.cluster_barriers.entry(cluster).or_default();
        let Some(phase) = self.blocks[place].threads[thread].cluster_phase else {
            let why = "barrier.cluster.wait without barrier.cluster.arrive before it";
            return Err(FaultKind::Invalid(why.to_owned()));
        };
        if phase == barrier.phase {
            barrier.waiting.push((place, thread));
            self.wait(Point::Cluster, location);
            return Ok(false);
        }
        let completed = barrier.completed.clone();
        self.blocks[place].threads[thread].cluster_phase = None;
        if let Some(completed) = completed {
            self.clock().acquire(&completed);
        }
        Ok(true)
    }

    /// A thread of the cluster has ended: others may have waited only for it.
    pub fn end_of_cluster_thread(&mut self) {
        let (place, thread) = self.current;
        let cluster = self.layout.cluster_of(self.blocks[place].index);
        let Some(barrier) = self.cluster_barriers.get_mut(&cluster) else { return };
        if self.blocks[place].threads[thread].cluster_phase == Some(barrier.phase) {
            // It no longer has to arrive.
            barrier.arrived -= 1;
        }
        self.complete_cluster_barrier(cluster);
    }

    fn complete_cluster_barrier(&mut self, cluster: u64) {
        let ranks = 0..self.layout.blocks_per_cluster();
        let places: Vec<usize> = ranks
            .filter_map(|rank| self.place_of(self.layout.block_of_cluster(cluster, rank)))
            .collect();
        let live: usize = places.iter().map(|&place| self.blocks[place].live).sum();
        let barrier = self.cluster_barriers.entry(cluster).or_default();
        if barrier.arrived < live || live == 0 {
            return;
        }
        barrier.phase += 1;
        barrier.arrived = 0;
        let released = barrier.released.take();
        join(&mut barrier.completed, released.as_ref());
        let waiting = std::mem::take(&mut barrier.waiting);
        for (place, thread) in waiting {
            self.wake(place, [thread]);
        }
    }
}

fn join(all: &mut Option<Knowledge>, one: Option<&Knowledge>) {
    match (all, one) {
        (Some(all), Some(one)) => all.join(one),
        (all @ None, Some(one)) => *all = Some(one.clone()),
        (_, None) => {}
    }
}
