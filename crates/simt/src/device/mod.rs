//! Instructions of a thread: `cuda_std` calls them, kernels do not.
//!
//! # Panics
//! Every function panics outside of a launch. If a check fails, it unwinds with a payload that ends
//! the launch.

mod atomic;
mod barrier;
mod bulk;
mod cluster;
mod mbarrier;
mod wgmma;

pub use atomic::*;
pub use barrier::*;
pub use bulk::*;
pub use cluster::*;
pub use mbarrier::*;
pub use wgmma::*;

use crate::SYNC_WARP;
use crate::access::Span;
pub use crate::block::Words;
use crate::clock::WARP_SIZE;
use crate::fault::FaultKind;
use crate::machine::{At, Machine, Space};
use crate::schedule::{ACTIVE, suspend};
use std::panic::{Location, resume_unwind};

/// Calls `f` with the launch that runs on this thread of the host.
#[track_caller]
fn with<R>(f: impl FnOnce(&mut Machine, &'static Location<'static>) -> Result<R, FaultKind>) -> R {
    let location = Location::caller();
    let result = ACTIVE.with_borrow_mut(|active| {
        let machine = active.as_mut()?;
        let result = counted(machine, location, f);
        Some(result.map_err(|kind| machine.fault(kind, location.to_string())))
    });
    match result {
        Some(Ok(value)) => value,
        Some(Err(fault)) => resume_unwind(Box::new(fault)),
        None => {
            panic!("an instruction was called outside of a launch: emulate the kernel's launch")
        }
    }
}

/// Calls `f` as one instruction of the thread. It is called in one place, so that it is inlined.
#[inline]
fn counted<R>(
    machine: &mut Machine,
    location: At,
    f: impl FnOnce(&mut Machine, At) -> Result<R, FaultKind>,
) -> Result<R, FaultKind> {
    if machine.step() {
        machine.check_steps()?;
    }
    f(machine, location)
}

/// Index of the thread in its block.
#[track_caller]
pub fn thread_idx() -> [u32; 3] {
    with(|machine, _| Ok(machine.layout.thread_idx(machine.current.1)))
}

/// Index of the block in the grid.
#[track_caller]
pub fn block_idx() -> [u32; 3] {
    with(|machine, _| Ok(machine.layout.block_idx(machine.blocks[machine.current.0].index)))
}

/// Threads of a block.
#[track_caller]
pub fn block_dim() -> [u32; 3] {
    with(|machine, _| Ok(machine.layout.geometry.block))
}

/// Blocks of the grid.
#[track_caller]
pub fn grid_dim() -> [u32; 3] {
    with(|machine, _| Ok(machine.layout.geometry.grid))
}

/// Calls `f` until it says that the thread can go on; while it does not, the thread waits to be
/// woken.
#[track_caller]
fn wait_until(mut f: impl FnMut(&mut Machine, At) -> Result<bool, FaultKind>) {
    while !with(&mut f) {
        suspend();
    }
}

/// Reads `out.len()` bytes at `address`, a multiple of `align`.
#[track_caller]
pub fn load(space: Space, address: u64, align: usize, out: &mut [u8]) {
    let span = Span::read(space, address, out.len(), align);
    let spins = with(|machine, location| {
        machine.load(span, out, location)?;
        machine.spins((space, address), location)
    });
    if spins {
        suspend();
    }
}

/// As [`load`], of bytes that may be uninitialised: those are poison.
#[track_caller]
pub fn speculate(space: Space, address: u64, align: usize, out: &mut [u8]) {
    let span = Span::read(space, address, out.len(), align);
    with(|machine, location| machine.speculate(span, out, location))
}

/// Writes `bytes` at `address`, a multiple of `align`.
#[track_caller]
pub fn store(space: Space, address: u64, align: usize, bytes: &[u8]) {
    let span = Span::write(space, address, bytes.len(), align);
    with(|machine, location| machine.store(span, bytes, location))
}

/// Starts an asynchronous copy of `src_len` bytes from global to shared memory, zero-filled to
/// `dst_len`. Each address is a multiple of the length there.
#[track_caller]
pub fn copy_async(dst: u32, dst_len: usize, src: u64, src_len: usize) {
    with(|machine, location| {
        machine.copy_async((u64::from(dst), dst_len), (src, src_len), location)
    })
}

/// Commits the thread's asynchronous copies as a group.
#[track_caller]
pub fn commit_group() {
    with(|machine, _| {
        machine.commit_copies();
        Ok(())
    })
}

/// Waits until at most `pending` of the thread's newest groups are pending.
#[track_caller]
pub fn wait_group(pending: usize) {
    with(|machine, _| machine.wait_copies(pending))
}

/// Waits for the lanes `mask` of the warp, and orders their accesses before it before those after
/// it.
#[track_caller]
pub fn sync_warp(mask: u32) {
    collective(SYNC_WARP, mask, &[], |_| ());
}

/// A collective of the lanes `mask` of the warp: `finish` turns the operands of each lane, at most
/// 12 words, into its results. It orders no memory accesses.
#[track_caller]
pub fn collective(
    instruction: &'static str,
    mask: u32,
    brought: &[u32],
    finish: impl FnOnce(&mut [Words; WARP_SIZE]),
) -> Words {
    let mut words = Words::default();
    words[..brought.len()].copy_from_slice(brought);
    let met =
        with(|machine, location| machine.meet_warp((instruction, mask), words, location, finish));
    // No closure: it would hide the caller's line.
    match met {
        Some(words) => words,
        None => {
            suspend();
            with(|machine, _| Ok(machine.result()))
        }
    }
}

/// Address of the block's dynamic shared memory in the shared window, a multiple of 1024.
#[track_caller]
pub fn dynamic_shared() -> u32 {
    with(|machine, _| Ok(machine.block().dynamic_start() as u32))
}

/// Address of the block's static array `key`: a module's path, and a number there. Reports name it
/// by the caller's line.
#[track_caller]
pub fn static_shared(key: (&'static str, usize), bytes: usize, align: usize) -> u32 {
    with(|machine, location| Ok(machine.block().array(key, (bytes, align), location)? as u32))
}
