//! Faults, and how they are printed.

use std::fmt;

/// A fault of a kernel or of its launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The kernel's symbol.
    pub kernel: String,
    /// The thread that caused it; `None` for a deadlock or livelock, and for a launch that no
    /// device takes.
    pub by: Option<Party>,
    /// What is wrong.
    pub kind: FaultKind,
    /// A collective before the fault that lanes came to from different lines: often the fault's
    /// cause.
    pub pairing: Option<Box<Pairing>>,
}

/// A collective of a warp, such as a shuffle, in which calls at different lines of the source met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pairing {
    /// PTX mnemonic of the collective.
    pub instruction: String,
    /// The lane that came first.
    pub first: Party,
    /// One that came from elsewhere.
    pub other: Party,
}

/// Which of several launches that run together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InStream {
    /// The device that it runs on.
    pub device: u16,
    /// Number of the launch in the device's stream.
    pub number: u16,
}

/// Why two accesses, of which nothing orders one before the other, are a race.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unordered {
    /// At least one of them is not atomic.
    Plain,
    /// As above, and before that a thread of the block has read what another one had released, but
    /// the scope of one of the two was too narrow.
    NarrowRelease,
    /// The earlier one is of an earlier launch of the same stream, which its thread has not waited
    /// for.
    Launches,
    /// Both are atomic, but the scope of one does not include the other's thread.
    NarrowScope,
    /// Both are atomic, but of different sizes.
    Sizes,
    /// The earlier one has received a message, whose memory the later one reuses.
    Reused,
}

/// A thread, and where it is in the kernel's source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Party {
    /// Which launch is meant, if several run together.
    pub launch: Option<InStream>,
    /// Index of the block in the grid.
    pub block: [u32; 3],
    /// Index of the thread in the block.
    pub thread: [u32; 3],
    /// File, line and column of the kernel.
    pub location: String,
}

/// An access to memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryAccess {
    /// Whether it writes.
    pub writes: bool,
    /// Bytes of it.
    pub bytes: usize,
    /// The buffer that it is in, or the one before the address; `None` if there is none.
    pub buffer: Option<Place>,
    /// The address, in global memory or in the block's shared window.
    pub address: u64,
}

/// A place in a buffer, or after its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The buffer's name.
    pub name: String,
    /// Bytes from its start.
    pub offset: u64,
    /// Bytes of the buffer.
    pub len: usize,
}

/// Threads of a block that wait at the same source line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// One of them.
    pub first: Party,
    /// How many they are.
    pub threads: usize,
    /// What they wait for.
    pub what: String,
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// A launch that no device takes, or with more threads than the kernel's launch bound.
    Launch(String),
    /// An access outside of every buffer, or past the end of one.
    OutOfBounds(Box<MemoryAccess>),
    /// An address that is not aligned for the access.
    Misaligned {
        /// The access.
        access: Box<MemoryAccess>,
        /// The alignment that it needs.
        align: usize,
    },
    /// A read of memory that has not been written.
    Uninitialised(Box<MemoryAccess>),
    /// Unordered accesses of two threads to the same bytes, at least one of them a write.
    Race {
        /// The later access, of [`Fault::by`].
        access: Box<MemoryAccess>,
        /// The earlier one.
        other: Box<Party>,
        /// Whether that one writes.
        other_writes: bool,
        /// Why they are not ordered.
        why: Unordered,
    },
    /// An access to bytes that an asynchronous operation, a copy or a `wgmma`, may still read or
    /// write.
    NotWaitedFor {
        /// The access, of [`Fault::by`].
        access: Box<MemoryAccess>,
        /// The thread that started the operation, and where.
        started: Box<Party>,
        /// Whether the operation writes the bytes.
        writes: bool,
    },
    /// An asynchronous access to bytes that a thread stored, without `fence.proxy.async` between
    /// the two.
    Unfenced {
        /// The access, of [`Fault::by`].
        access: Box<MemoryAccess>,
        /// Who wrote the bytes.
        other: Box<Party>,
    },
    /// An access to bytes that an earlier launch may still read or write, without
    /// `griddepcontrol.wait` before it.
    Dependency {
        /// The access, of [`Fault::by`].
        access: Box<MemoryAccess>,
        /// Where the earlier launch accesses the bytes.
        location: Box<str>,
        /// Whether it writes them.
        writes: bool,
    },
    /// A block of an overlapping launch ends, and no thread of it has executed
    /// `griddepcontrol.wait`: the launch may end before earlier ones, which later launches do not
    /// wait for.
    NeverWaits,
    /// A block ends while its shared memory is still accessed: by an asynchronous operation that no
    /// thread of the block has waited for, or by a thread of another block.
    EndsEarly {
        /// A place in that memory.
        place: Box<Place>,
        /// The thread that accesses it, or started the operation that does.
        other: Box<Party>,
        /// Whether the access is a write.
        writes: bool,
    },
    /// An instruction that is invalid with these operands, or at this point.
    Invalid(String),
    /// A loop that does not end: what a thread has done, and what it has not done meanwhile.
    Endless(String),
    /// Threads poll for a change that no thread makes.
    Livelock(Vec<Waiting>),
    /// No thread can go on.
    Deadlock(Vec<Waiting>),
    /// The kernel panicked: the message.
    Panic(String),
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Party { launch, block, thread, location } = self;
        write!(f, "thread {thread:?} of block {block:?} ")?;
        if let Some(InStream { device, number }) = launch {
            write!(f, "of launch {number} on device {device} ")?;
        }
        write!(f, "at {location}")
    }
}

impl fmt::Display for Unordered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unordered::Plain => "nothing orders the two",
            Unordered::NarrowRelease => {
                "nothing orders the two: a release and an acquire met, but the scope of one does \
                 not include the other's thread"
            }
            Unordered::Launches => {
                "that launch may still run, as nothing orders griddepcontrol.wait between the two"
            }
            Unordered::NarrowScope => {
                "both are atomic, but the scope of one does not include the other's thread"
            }
            Unordered::Sizes => "both are atomic, but of different sizes",
            Unordered::Reused => {
                "it received a message there, and nothing orders that before the memory is reused"
            }
        })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place { name, offset, len } = self;
        write!(f, "`{name}` + {offset} (of {len})")
    }
}

impl fmt::Display for MemoryAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MemoryAccess { writes, bytes, buffer, address } = self;
        write!(f, "{} {bytes} bytes at ", if *writes { "writes" } else { "reads" })?;
        match buffer {
            Some(place) => place.fmt(f),
            None if *address == 0 => f.write_str("a null pointer"),
            None => write!(f, "{address:#x}, where no buffer is"),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match &self.kind {
            FaultKind::Launch(_) => "invalid launch",
            FaultKind::OutOfBounds(_) => "out of bounds",
            FaultKind::Misaligned { .. } => "misaligned",
            FaultKind::Uninitialised(_) => "uninitialised read",
            FaultKind::Race { .. } => "race",
            FaultKind::NotWaitedFor { .. } => "asynchronous operation not waited for",
            FaultKind::Unfenced { .. } => "missing fence.proxy.async",
            FaultKind::Dependency { .. } | FaultKind::NeverWaits => "missing griddepcontrol.wait",
            FaultKind::EndsEarly { .. } => "block ends too early",
            FaultKind::Invalid(_) => "invalid instruction",
            FaultKind::Endless(_) => "endless loop",
            FaultKind::Livelock(_) => "livelock",
            FaultKind::Deadlock(_) => "deadlock",
            FaultKind::Panic(_) => "panic",
        };
        write!(f, "{name} in `{}`", self.kernel)?;
        if let Some(by) = &self.by {
            write!(f, "\n  {by}")?;
        }
        match &self.kind {
            FaultKind::Launch(why) | FaultKind::Panic(why) | FaultKind::Invalid(why) => {
                write!(f, ": {why}")
            }
            FaultKind::Endless(what) => write!(f, ": {what}"),
            FaultKind::OutOfBounds(access) | FaultKind::Uninitialised(access) => {
                write!(f, "\n  {access}")
            }
            FaultKind::Misaligned { access, align } => {
                write!(f, "\n  {access}: address {:#x} is no multiple of {align}", access.address)
            }
            FaultKind::Race { access, other, other_writes, why } => {
                let verb = if *other_writes { "wrote" } else { "read" };
                write!(f, "\n  {access}\n  {other} {verb} them; {why}")
            }
            FaultKind::NotWaitedFor { access, started, writes } => {
                let verb = if *writes { "writes" } else { "reads" };
                write!(
                    f,
                    "\n  {access}\n  {started} started the asynchronous operation that still \
                     {verb} them"
                )
            }
            FaultKind::Unfenced { access, other } => {
                write!(f, "\n  {access}\n  {other} wrote them, with no proxy fence between the two")
            }
            FaultKind::Dependency { access, location, writes } => {
                let verb = if *writes { "writes" } else { "reads" };
                write!(f, "\n  {access}\n  an earlier launch {verb} them at {location}")
            }
            FaultKind::NeverWaits => f.write_str(
                ": no thread of the block has waited; so this launch may end before earlier ones, \
                 which the next launch does not wait for",
            ),
            FaultKind::EndsEarly { place, other, writes } => {
                let verb = if *writes { "writes" } else { "reads" };
                write!(f, "\n  {place} is freed with the block")?;
                write!(f, "\n  {other} {verb} it, or started an asynchronous operation that does")?;
                f.write_str("; wait for that first")
            }
            FaultKind::Deadlock(waiting) | FaultKind::Livelock(waiting) => {
                write_waiting(f, waiting)
            }
        }?;
        match &self.pairing {
            Some(pairing) => write!(f, "\n  {pairing}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Pairing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Pairing { instruction, first, other } = self;
        write!(f, "before that, {instruction} paired two source lines: {first}, {other}")
    }
}

/// Which threads wait where, at most eight lines.
fn write_waiting(f: &mut fmt::Formatter<'_>, waiting: &[Waiting]) -> fmt::Result {
    const MOST_LINES: usize = 8;
    for Waiting { first, threads, what } in waiting.iter().take(MOST_LINES) {
        write!(f, "\n  {first}")?;
        if *threads > 1 {
            write!(f, " and {} more", threads - 1)?;
        }
        write!(f, ": {what}")?;
    }
    match waiting.len().saturating_sub(MOST_LINES) {
        0 => Ok(()),
        more => write!(f, "\n  and {more} more places"),
    }
}

impl std::error::Error for Fault {}
