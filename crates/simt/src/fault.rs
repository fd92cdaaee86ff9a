//! What the emulator reports.

use std::fmt;

/// A fault of a kernel or of its launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The kernel's symbol.
    pub kernel: String,
    /// Who did it; nobody alone for a deadlock, and for what no launch can be made of.
    pub by: Option<Party>,
    /// What is wrong.
    pub kind: FaultKind,
    /// A collective before the fault that lanes came to from different lines: often the fault's cause.
    pub pairing: Option<Box<Pairing>>,
}

/// A collective of a warp, such as a shuffle, in which calls at different lines of the source met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pairing {
    /// Its PTX mnemonic.
    pub instruction: String,
    /// The lane that came first.
    pub first: Party,
    /// One that came from elsewhere.
    pub other: Party,
}

/// A thread, and where it is in the kernel's source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Party {
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

/// A place in a buffer, or behind its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The buffer's name.
    pub name: String,
    /// Bytes from its start.
    pub offset: u64,
    /// Bytes of the buffer.
    pub len: usize,
}

/// Threads of a block that wait at the same place.
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
    /// No launch can be made of this.
    Launch(String),
    /// An access outside of every buffer, or over the end of one.
    OutOfBounds(Box<MemoryAccess>),
    /// An address that is no multiple of what the access asks for.
    Misaligned {
        /// The access.
        access: Box<MemoryAccess>,
        /// What its address must be a multiple of.
        align: usize,
    },
    /// A read of memory that nothing has written.
    Uninitialised(Box<MemoryAccess>),
    /// Two threads access the same bytes, one writes, and nothing orders the two.
    Race {
        /// The later access, of [`Fault::by`].
        access: Box<MemoryAccess>,
        /// The earlier one.
        other: Box<Party>,
        /// Whether that one writes.
        other_writes: bool,
    },
    /// An access to bytes that an asynchronous operation still reads or writes: a copy, or a matrix
    /// product.
    NotWaitedFor {
        /// The access, of [`Fault::by`].
        access: Box<MemoryAccess>,
        /// The thread that started the operation, and where.
        started: Box<Party>,
        /// Whether the operation writes the bytes.
        writes: bool,
    },
    /// An asynchronous access to bytes that were written by a load or store unit, with no
    /// `fence.proxy.async` between the two.
    Unfenced {
        /// The access, of [`Fault::by`].
        access: Box<MemoryAccess>,
        /// Who wrote the bytes.
        other: Box<Party>,
    },
    /// An access to bytes that the launch before may still read or write, with no
    /// `griddepcontrol.wait` before it.
    Dependency {
        /// The access, of [`Fault::by`].
        access: Box<MemoryAccess>,
        /// Where the launch before accesses the bytes.
        location: String,
        /// Whether it writes them.
        writes: bool,
    },
    /// A block of a launch that overlaps with those before ends, and no thread of it has executed
    /// `griddepcontrol.wait`: the launch may end before those before it have, which launches behind
    /// it do not wait for.
    NeverWaits,
    /// A block ends before others are done with its shared memory: an asynchronous operation that
    /// no thread of the block has waited for, or a thread of another block.
    EndsEarly {
        /// A place there.
        place: Box<Place>,
        /// The thread that accesses it or has it accessed, and where.
        other: Box<Party>,
        /// Whether that writes.
        writes: bool,
    },
    /// An instruction that cannot be run with these operands, or not now.
    Invalid(String),
    /// A loop that does not end: what a thread did for so long.
    Endless(String),
    /// Threads that can go on wait in vain for what another one writes.
    Livelock(Vec<Waiting>),
    /// No thread can go on.
    Deadlock(Vec<Waiting>),
    /// The kernel panicked: the message.
    Panic(String),
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Party { block, thread, location } = self;
        write!(f, "thread {thread:?} of block {block:?} at {location}")
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
            FaultKind::Launch(_) => "not a launch",
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
            FaultKind::Race { access, other, other_writes } => {
                let verb = if *other_writes { "wrote" } else { "read" };
                write!(f, "\n  {access}\n  {other} {verb} them; nothing orders the two")
            }
            FaultKind::NotWaitedFor { access, started, writes } => {
                let verb = if *writes { "writes" } else { "reads" };
                write!(f, "\n  {access}\n  {started} started what still {verb} them")
            }
            FaultKind::Unfenced { access, other } => {
                write!(f, "\n  {access}\n  {other} wrote them, with no proxy fence between the two")
            }
            FaultKind::Dependency { access, location, writes } => {
                let verb = if *writes { "writes" } else { "reads" };
                write!(f, "\n  {access}\n  the launch before {verb} them at {location}")
            }
            FaultKind::NeverWaits => f.write_str(
                ": no thread of the block has waited; those launches may go on when this one has \
                 ended, and the next waits for this one alone",
            ),
            FaultKind::EndsEarly { place, other, writes } => {
                let verb = if *writes { "writes" } else { "reads" };
                write!(f, "\n  {place} is gone then")?;
                write!(f, "\n  {other} {verb} it, or started what does; nothing orders the two")
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

/// The threads that wait, a few lines of them.
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
