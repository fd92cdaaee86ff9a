//! Blocks that access each other's shared memory.

use conformance_kernels::cluster::*;
use cuda_std::launch::Geometry;
use cuda_std::tensor_map::{Element, L2Promotion, Swizzle, TensorMapSpec};

use crate::inputs::{blocks, random_words};
use crate::{Buffer, Case, Want};

/// Clusters per launch.
const NUM_CLUSTERS: usize = 3;

const BLOCKS: usize = CLUSTER as usize;

/// Block indices in a grid of clusters of 2 x 1 x 2 blocks.
pub fn places() -> Case {
    const GRID: [u32; 3] = [4, 3, 2];
    let mut wanted = Vec::new();
    for z in 0..GRID[2] {
        for (_, x) in (0..GRID[1]).flat_map(|y| (0..GRID[0]).map(move |x| (y, x))) {
            let values: [u32; NUM_VALUES as usize] = [x % 2, 0, z, 2, 1, 2, x % 2 + 2 * z];
            wanted.extend(values);
        }
    }
    Case::new("cluster_places", vec![Buffer::Out(Want::Words(wanted))], |p| {
        let geometry = Geometry { grid: GRID, block: [1; 3], shared_bytes: 0 };
        cluster_places::Args { out: p.at(0) }.launch(geometry)
    })
}

fn geometry() -> Geometry {
    blocks((NUM_CLUSTERS * BLOCKS) as u32, 32)
}

/// Loads and stores in the shared memory of other blocks.
pub fn peers() -> Case {
    let x: Vec<u32> = random_words(90).take(NUM_CLUSTERS * BLOCKS * 32).collect();
    let mut wanted = vec![0; x.len()];
    for (cluster, words) in x.chunks(BLOCKS * 32).enumerate() {
        for (rank, lane) in (0..BLOCKS).flat_map(|rank| (0..32).map(move |lane| (rank, lane))) {
            let from_own_on = (0..BLOCKS).map(|i| &words[(rank + i) % BLOCKS * 32..][..32]);
            let sum = from_own_on.fold(0u32, |sum, theirs| {
                let four = &theirs[lane & !3..];
                let all = (0..4).fold(0, |all, i| all ^ four[i].rotate_left(i as u32));
                sum.rotate_left(5).wrapping_add(theirs[31 - lane]).wrapping_add(all)
            });
            let next = (rank + 1) % BLOCKS;
            wanted[(cluster * BLOCKS + next) * 32 + lane] =
                sum.wrapping_add(words[rank * 32 + lane]);
        }
    }
    let buffers = vec![Buffer::words(&x), Buffer::Out(Want::Words(wanted))];
    Case::new("cluster_peers", buffers, |p| {
        cluster_peers_u32::Args { x: p.at(0), out: p.at(1) }.launch(geometry())
    })
}

/// Phases that blocks complete for each other.
pub fn arrivals() -> Case {
    const NUM_ROUNDS: u32 = 6;
    let wanted = vec![NUM_ROUNDS; NUM_CLUSTERS * BLOCKS];
    let buffers = vec![Buffer::Out(Want::Words(wanted))];
    Case::new("cluster_arrive", buffers, |p| {
        cluster_arrive::Args { num_rounds: NUM_ROUNDS, out: p.at(0) }.launch(geometry())
    })
}

/// The words of each cluster, repeated for each of its blocks.
fn repeated(x: &[u32]) -> Vec<u32> {
    x.chunks(BLOCKS * SLICE as usize).flat_map(|words| words.repeat(BLOCKS)).collect()
}

fn slices() -> Vec<u32> {
    random_words(91).take(NUM_CLUSTERS * BLOCKS * SLICE as usize).collect()
}

/// Multicast, and copies between blocks.
pub fn copies() -> Case {
    let x = slices();
    let buffers = vec![Buffer::words(&x), Buffer::Out(Want::Words(repeated(&x)))];
    Case::new("cluster_copies", buffers, |p| {
        cluster_copies_u32::Args { x: p.at(0), out: p.at(1) }.launch(geometry())
    })
}

/// Asynchronous stores to the next block of each cluster.
pub fn stores() -> Case {
    const BLOCK_WORDS: usize = 32 * SENT as usize;
    let x: Vec<u32> = random_words(92).take(NUM_CLUSTERS * BLOCKS * BLOCK_WORDS).collect();
    let mut wanted = x.clone();
    wanted.chunks_mut(BLOCKS * BLOCK_WORDS).for_each(|words| words.rotate_right(BLOCK_WORDS));
    let buffers = vec![Buffer::words(&x), Buffer::Out(Want::Words(wanted))];
    Case::new("cluster_stores", buffers, |p| {
        cluster_stores_u32::Args { x: p.at(0), out: p.at(1) }.launch(geometry())
    })
}

/// Multicast of boxes of a tensor.
pub fn tensors() -> Case {
    let x = slices();
    let spec = TensorMapSpec {
        address: 0,
        element: Element::U32,
        dims: vec![SLICE.into(), (NUM_CLUSTERS * BLOCKS) as u64],
        strides_bytes: vec![4 * u64::from(SLICE)],
        box_dims: vec![SLICE, 1],
        swizzle: Swizzle::None,
        l2_promotion: L2Promotion::default(),
    };
    let buffers =
        vec![Buffer::words(&x), Buffer::TensorMap(0, spec), Buffer::Out(Want::Words(repeated(&x)))];
    Case::new("cluster_tensor", buffers, |p| {
        let geometry = Geometry { shared_bytes: 4 * CLUSTER * SLICE + 8, ..geometry() };
        cluster_tensor_u32::Args { map: p.map(1), out: p.at(2) }.launch(geometry)
    })
}
