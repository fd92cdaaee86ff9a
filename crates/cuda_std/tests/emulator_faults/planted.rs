//! Runs correct kernels and kernels with a planted fault, and checks the report.

use std::fs;
use std::path::Path;

use cuda_std::launch::{DevicePtr, Geometry, Launch};
use cuda_std::tensor_map::{EncodedTensorMap, TensorMapSpec};
use simt::{Fault, FaultKind, Init, Memory, Party};

/// The output of a launch.
pub type Run = Result<Vec<f32>, Fault>;

/// The memory of one launch.
#[derive(Default)]
pub struct Device {
    memory: Memory,
    /// Address and elements of the output.
    out: Option<(u64, usize)>,
}

impl Device {
    /// A buffer of the numbers 0, 1, 2, ...
    pub fn numbers(&mut self, name: &str, len: usize) -> DevicePtr<f32> {
        let bytes: Vec<u8> = (0..len).flat_map(|i| (i as f32).to_le_bytes()).collect();
        DevicePtr::new(self.memory.alloc(name, Init::Bytes(&bytes)))
    }

    /// A buffer of as many zeros.
    pub fn zeros<T>(&mut self, name: &str, len: usize) -> DevicePtr<T> {
        let bytes = vec![0; len * size_of::<T>()];
        DevicePtr::new(self.memory.alloc(name, Init::Bytes(&bytes)))
    }

    /// The output, uninitialised.
    pub fn out(&mut self, len: usize) -> DevicePtr<f32> {
        let address = self.memory.alloc("out", Init::Poisoned(4 * len));
        self.out = Some((address, len));
        DevicePtr::new(address)
    }

    /// The launch overlaps with an earlier one, which may have written these buffers.
    #[track_caller]
    pub fn overlap(&mut self, written: &[u64]) {
        for &address in written {
            self.memory.assume_written(address).unwrap();
        }
        self.memory.overlap_next_launch();
    }

    /// A tensor map.
    pub fn map(&mut self, spec: &TensorMapSpec) -> EncodedTensorMap {
        spec.check().unwrap();
        spec.emulated()
    }

    fn output(&self) -> Vec<f32> {
        let Some((address, len)) = self.out else { return Vec::new() };
        let mut bytes = vec![0; 4 * len];
        self.memory.read(address, &mut bytes).unwrap();
        let (words, _) = bytes.as_chunks();
        words.iter().map(|word| f32::from_le_bytes(*word)).collect()
    }
}

/// One-dimensional blocks with 4 KiB of dynamic shared memory each.
pub fn geometry(blocks: u32, threads: u32) -> Geometry {
    Geometry { grid: [blocks, 1, 1], block: [threads, 1, 1], shared_bytes: 4096 }
}

/// Runs the launch under every seed.
pub fn run(launch: impl Fn(&mut Device) -> Launch) -> Vec<Run> {
    let one = |seed| {
        let mut device = Device::default();
        launch(&mut device).emulate(&mut device.memory, seed)?;
        Ok(device.output())
    };
    simt::seeds().map(one).collect()
}

/// No run has a fault, and element `i` of each output is `want(i)`.
#[track_caller]
pub fn assert_right(runs: &[Run], want: impl Fn(usize) -> f32) {
    for (seed, run) in runs.iter().enumerate() {
        let got = run.as_ref().unwrap_or_else(|fault| panic!("seed {seed}: {fault}"));
        for (i, &got) in got.iter().enumerate() {
            assert_eq!(got, want(i), "seed {seed}: element {i}");
        }
    }
}

/// The fault is found in every run, as one of the right kinds, in `kernel`, on a line that has one
/// of `lines` in it; gives the first report.
#[track_caller]
pub fn assert_found(
    runs: &[Run],
    kernel: &str,
    lines: &[&str],
    is_right: impl Fn(&FaultKind) -> bool,
) -> String {
    for (seed, run) in runs.iter().enumerate() {
        let Err(fault) = run else { panic!("seed {seed}: the fault was not found") };
        assert!(is_right(&fault.kind), "seed {seed}: {fault}");
        assert!(fault.to_string().contains(&format!(" in `{kernel}`\n")), "seed {seed}: {fault}");
        let parties = parties(fault);
        assert!(!parties.is_empty(), "seed {seed}: {fault}");
        for party in parties {
            let line = source_line(&party.location);
            let known = lines.iter().any(|text| line.contains(text));
            assert!(known, "seed {seed}: {fault}\nwhere the kernel says: {line}");
        }
    }
    runs[0].as_ref().unwrap_err().to_string()
}

/// The threads that a report has to name, with their source lines; an access has to name its
/// buffer.
#[track_caller]
fn parties(fault: &Fault) -> Vec<&Party> {
    let by = fault.by.as_ref();
    let (by, access) = match &fault.kind {
        FaultKind::Launch(_) => (vec![], None),
        FaultKind::OutOfBounds(access)
        | FaultKind::Misaligned { access, .. }
        | FaultKind::Uninitialised(access)
        | FaultKind::Dependency { access, .. } => (vec![by.unwrap()], Some(access)),
        FaultKind::Race { access, other, .. }
        | FaultKind::NotWaitedFor { access, started: other, .. }
        | FaultKind::Unfenced { access, other } => (vec![by.unwrap(), &**other], Some(access)),
        // The end of a block has no source line.
        FaultKind::NeverWaits => (vec![], None),
        FaultKind::EndsEarly { other, .. } => (vec![&**other], None),
        FaultKind::Livelock(waiting) | FaultKind::Deadlock(waiting) => {
            (waiting.iter().map(|waiting| &waiting.first).collect(), None)
        }
        FaultKind::Invalid(_) | FaultKind::Panic(_) | FaultKind::Endless(_) => {
            (vec![by.unwrap()], None)
        }
    };
    if let Some(access) = access {
        assert!(access.buffer.is_some() || access.address == 0, "{fault}");
    }
    by
}

/// The line of the source that a report names.
pub fn source_line(location: &str) -> String {
    let mut parts = location.split(':');
    let (Some(file), Some(line)) = (parts.next(), parts.next()) else {
        panic!("{location} is no place in a file");
    };
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file);
    let source = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{location}: {error}"));
    let number: usize = line.parse().expect("a line's number");
    source.lines().nth(number - 1).expect("a line of the file").to_owned()
}

/// Two unordered accesses; or the reader came first, and read uninitialised memory.
pub fn is_unordered(kind: &FaultKind) -> bool {
    matches!(kind, FaultKind::Race { .. } | FaultKind::Uninitialised(_))
}

/// A deadlock.
pub fn is_deadlock(kind: &FaultKind) -> bool {
    matches!(kind, FaultKind::Deadlock(_))
}

/// An invalid instruction, with `why` in its text.
pub fn is_invalid(why: &str) -> impl Fn(&FaultKind) -> bool {
    move |kind| matches!(kind, FaultKind::Invalid(text) if text.contains(why))
}
