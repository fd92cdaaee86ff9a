//! The ranks of a test: one memory that all devices access, workspaces, and streams of launches.

use crate::harness::*;
use cuda_std::launch::{DevicePtr, Geometry, Launch};
use cuda_std::prelude::*;
use kernels::all_reduce::{Ranks, Workspace};
use oracle::Element;
use simt::{Fault, Init, Memory};

const COPY_THREADS: u32 = 32;

/// Copies `len` elements, in one block: what precedes and follows an all-reduce.
#[kernel(launch_bounds(COPY_THREADS), overlaps)]
unsafe fn copy_u16(len: u32, x: Global<u16>, out: GlobalMut<u16>) {
    grid::wait_for_dependencies();
    grid::launch_dependents();
    let mut i = thread::thread_idx_x();
    while i < len {
        // SAFETY: `len` elements each.
        unsafe { out.set(i as usize, x.get(i as usize)) };
        i += COPY_THREADS;
    }
}

/// Devices that reduce together.
pub struct Group {
    memory: Memory,
    pub ranks: Vec<Ranks>,
    epochs: Vec<u64>,
    streams: Vec<Vec<Launch>>,
}

impl Group {
    /// Ranks with zeroed workspaces.
    pub fn new(workspace: Workspace) -> Self {
        Self::with_workspaces(workspace, |bytes| Init::Bytes(bytes))
    }

    /// Ranks with workspaces of which nothing is zeroed.
    pub fn not_zeroed(workspace: Workspace) -> Self {
        Self::with_workspaces(workspace, |bytes| Init::Poisoned(bytes.len()))
    }

    fn with_workspaces(workspace: Workspace, init: impl Fn(&[u8]) -> Init<'_>) -> Self {
        let (mut memory, zeros) = (Memory::new(), vec![0; workspace.bytes()]);
        let addresses: Vec<_> = (0..workspace.world())
            .map(|rank| memory.alloc(format!("workspace of rank {rank}"), init(&zeros)))
            .collect();
        // As if a launch before had used them: epochs and lines are accessed after the wait alone.
        addresses.iter().for_each(|&address| memory.assume_written(address).expect("a buffer"));
        let pointers: Vec<_> = addresses.iter().map(|&address| DevicePtr::new(address)).collect();
        let rank = |rank| Ranks::new(rank, workspace, pointers.clone()).expect("a right rank");
        let ranks: Vec<_> = (0..workspace.world()).map(rank).collect();
        let streams = ranks.iter().map(|_| Vec::new()).collect();
        Group { memory, ranks, epochs: addresses, streams }
    }

    /// All ranks have made so many calls before.
    pub fn start_at(&mut self, epoch: u32, num_epochs: usize) {
        let epochs: Vec<u8> = epoch.to_le_bytes().repeat(num_epochs);
        for &address in &self.epochs {
            self.memory.write(address, &epochs).expect("a workspace of that many epochs");
        }
    }

    /// A buffer of these numbers, which an earlier launch has written.
    pub fn numbers<T: Element>(&mut self, name: &str, rank: usize, values: &[f32]) -> DevicePtr<T> {
        let bytes: Vec<u8> = values.iter().flat_map(|value| T::of(*value).bytes()).collect();
        let address = self.memory.alloc(format!("{name} of rank {rank}"), Init::Bytes(&bytes));
        self.memory.assume_written(address).expect("a buffer");
        DevicePtr::new(address)
    }

    /// A buffer that nothing has written.
    pub fn poisoned<T: Element>(&mut self, name: &str, rank: usize, len: usize) -> DevicePtr<T> {
        let init = Init::Poisoned(size_of::<T>() * len);
        DevicePtr::new(self.memory.alloc(format!("{name} of rank {rank}"), init))
    }

    /// A step input of one number.
    pub fn count(&mut self, name: &str, value: usize) -> DevicePtr<u32> {
        let bytes = (value as u32).to_le_bytes();
        DevicePtr::new(self.memory.alloc(name, Init::Bytes(&bytes)))
    }

    /// Adds a launch to the stream of a rank.
    pub fn push(&mut self, rank: usize, launch: Launched) {
        let launch = made(launch);
        let symbol = symbol(&launch);
        assert!(launch.overlaps, "{symbol} does not wait for the launches before it");
        self.streams[rank].push(launch);
    }

    /// Adds a launch that copies `len` elements to the stream of a rank.
    pub fn copy<E: Element>(
        &mut self,
        rank: usize,
        len: usize,
        x: DevicePtr<E>,
        out: DevicePtr<E>,
    ) {
        let geometry = Geometry { grid: [1, 1, 1], block: [COPY_THREADS, 1, 1], shared_bytes: 0 };
        let (x, out) = (DevicePtr::new(x.0), DevicePtr::new(out.0));
        let args = copy_u16::Args { len: len as u32, x, out };
        self.push(rank, Ok(Some(args.launch(geometry))));
    }

    /// The rank leaves before its last `launches`.
    pub fn leave(&mut self, rank: usize, launches: usize) {
        let left = self.streams[rank].len() - launches;
        self.streams[rank].truncate(left);
    }

    /// Runs all streams.
    pub fn run(&mut self, seed: u64) -> Result<(), Fault> {
        self.memory.overlap_next_launch();
        let streams: Vec<_> = self.streams.iter_mut().map(std::mem::take).collect();
        Launch::emulate_streams(&streams, &mut self.memory, seed).map(|_| ())
    }

    /// `len` numbers, exactly.
    pub fn read<T: Element>(&self, ptr: DevicePtr<T>, len: usize) -> Vec<f32> {
        let mut bytes = vec![0; size_of::<T>() * len];
        self.memory.read_or_poison(ptr.0, &mut bytes).expect("a buffer of that length");
        bytes.chunks_exact(size_of::<T>()).map(|bytes| T::from_bytes(bytes).value()).collect()
    }
}
