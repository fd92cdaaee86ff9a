//! What a typed launcher makes: a launch, ready for an executor. Host only.

use core::marker::PhantomData;
#[cfg(feature = "emulator")]
use simt::{Fault, Kernel, Memory, Report};
#[cfg(feature = "emulator")]
use std::sync::Arc;

pub use gpu_types::{Geometry, LaunchError};

/// An address in the memory of a device, of elements of type `T`; `0` is "none" where a kernel
/// takes an optional one.
#[repr(transparent)]
pub struct DevicePtr<T>(pub u64, PhantomData<T>);

impl<T> DevicePtr<T> {
    /// The pointer to `address`.
    pub const fn new(address: u64) -> Self {
        DevicePtr(address, PhantomData)
    }

    /// No memory at all, for an optional operand that is absent.
    pub const fn null() -> Self {
        DevicePtr(0, PhantomData)
    }

    /// The pointer `elems` elements on.
    pub const fn add(self, elems: usize) -> Self {
        DevicePtr(self.0 + (elems * size_of::<T>()) as u64, PhantomData)
    }
}

impl<T> Clone for DevicePtr<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for DevicePtr<T> {}

impl<T> core::fmt::Debug for DevicePtr<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl<T> PartialEq for DevicePtr<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl<T> Eq for DevicePtr<T> {}

/// `value` as a kernel's argument.
///
/// # Errors
/// [`LaunchError::Shape`] if it does not fit.
pub fn arg_u32(what: &'static str, value: usize) -> Result<u32, LaunchError> {
    u32::try_from(value).map_err(|_| LaunchError::Shape {
        what,
        value,
        expected: "at most 4294967295",
    })
}

/// A PTX entry: what all its launches have in common.
#[derive(Debug)]
pub struct Entry {
    /// Name of the entry.
    pub symbol: &'static str,
    /// Most threads of a block: the kernel's launch bound.
    pub max_threads: u32,
    /// Blocks of a cluster in x, y, z, for which the kernel is compiled.
    pub cluster: [u32; 3],
    /// Whether it may start before the previous launch has ended: the kernel itself waits for that.
    pub overlaps: bool,
    /// For the emulator.
    pub body: Body,
}

/// What each thread of an entry runs on the emulator: the kernel, with arguments from the launch's
/// bytes. The symbol determines it, so all bodies compare equal. Without the feature `emulator` it is
/// empty, and the host compiles no instance of the kernel.
#[derive(Clone, Copy)]
pub struct Body(#[cfg(feature = "emulator")] fn(&mut ArgReader<'_>));

impl Body {
    /// The body that calls the kernel.
    #[cfg(feature = "emulator")]
    pub const fn new(kernel: fn(&mut ArgReader<'_>)) -> Self {
        Body(kernel)
    }

    /// No body.
    #[cfg(not(feature = "emulator"))]
    #[doc(hidden)]
    pub const fn none() -> Self {
        Body()
    }
}

/// For what `#[kernel]` expands to: the body of an entry, if there is an emulator.
#[cfg(feature = "emulator")]
#[doc(hidden)]
#[macro_export]
macro_rules! launch_body {
    ($kernel:expr) => {
        $crate::launch::Body::new($kernel)
    };
}

/// As above, without an emulator.
#[cfg(not(feature = "emulator"))]
#[doc(hidden)]
#[macro_export]
macro_rules! launch_body {
    ($kernel:expr) => {
        $crate::launch::Body::none()
    };
}

impl PartialEq for Body {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Body {}

impl core::fmt::Debug for Body {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Body")
    }
}

/// One kernel launch: what `cuLaunchKernel` needs, by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The PTX entry.
    pub symbol: &'static str,
    /// Grid, block, shared memory.
    pub geometry: Geometry,
    /// Most threads of a block: the kernel's launch bound.
    pub max_threads: u32,
    /// Blocks of a cluster in x, y, z, for which the kernel is compiled.
    pub cluster: [u32; 3],
    /// Whether it may start before the previous launch has ended: the kernel itself waits for that.
    pub overlaps: bool,
    /// The arguments' bytes, each at its natural alignment.
    pub args: Vec<u8>,
    /// Where each argument starts in `args`.
    pub arg_offsets: Vec<u32>,
    /// For the emulator.
    pub body: Body,
}

impl Launch {
    /// A launch of `entry`, without arguments yet.
    pub fn new(entry: &Entry, geometry: Geometry) -> Self {
        let (args, arg_offsets) = (Vec::new(), Vec::new());
        let &Entry { symbol, max_threads, cluster, overlaps, body } = entry;
        Launch { symbol, geometry, max_threads, cluster, overlaps, args, arg_offsets, body }
    }

    /// Runs the launch on the emulator. Its pointers are addresses of `memory`; concurrent
    /// operations happen in an order drawn from `seed`.
    ///
    /// # Errors
    /// The first [`Fault`]: of the kernel, or of a launch that no device takes.
    #[cfg(feature = "emulator")]
    pub fn emulate(&self, memory: &mut Memory, seed: u64) -> Result<Report, Fault> {
        simt::emulate(self.kernel(), self.geometry, self.threads(), memory, seed)
    }

    /// Runs launches of several devices at the same time on the emulator: `streams[d]` are those of
    /// device `d`, one after the other. All pointers are addresses of `memory`.
    ///
    /// # Errors
    /// As [`Launch::emulate`].
    #[cfg(feature = "emulator")]
    pub fn emulate_streams(
        streams: &[Vec<Launch>],
        memory: &mut Memory,
        seed: u64,
    ) -> Result<Report, Fault> {
        let of = |launch: &Launch| simt::StreamLaunch {
            kernel: launch.kernel(),
            geometry: launch.geometry,
            body: launch.threads(),
            overlaps: launch.overlaps,
        };
        let streams: Vec<Vec<_>> =
            streams.iter().map(|launches| launches.iter().map(of).collect()).collect();
        simt::emulate_streams(&streams, memory, seed)
    }

    #[cfg(feature = "emulator")]
    fn kernel(&self) -> Kernel {
        let &Launch { symbol, max_threads, cluster, .. } = self;
        Kernel { symbol, max_threads, cluster }
    }

    /// What each thread runs.
    #[cfg(feature = "emulator")]
    fn threads(&self) -> simt::Body {
        let (Body(kernel), args) = (self.body, self.args.clone());
        Arc::new(move || kernel(&mut ArgReader::new(&args)))
    }

    /// Adds the next argument, aligned to its size.
    fn push(&mut self, bytes: &[u8]) {
        self.push_aligned(bytes, bytes.len());
    }

    /// Adds the next argument.
    pub(crate) fn push_aligned(&mut self, bytes: &[u8], align: usize) {
        self.args.resize(self.args.len().next_multiple_of(align), 0);
        self.arg_offsets.push(self.args.len() as u32);
        self.args.extend_from_slice(bytes);
    }
}

/// The arguments of a launch, read one after the other as the kernel's parameters are.
pub struct ArgReader<'a> {
    args: &'a [u8],
    position: usize,
}

impl<'a> ArgReader<'a> {
    /// A reader of a launch's `args`.
    pub fn new(args: &'a [u8]) -> Self {
        ArgReader { args, position: 0 }
    }

    /// The next argument, for a parameter of type `P`.
    ///
    /// # Panics
    /// If the bytes end before.
    pub fn read<P: KernelArg>(&mut self) -> P {
        P::read(self)
    }

    /// The next `N` bytes from a multiple of `align` on.
    pub(crate) fn bytes<const N: usize>(&mut self, align: usize) -> [u8; N] {
        let start = self.position.next_multiple_of(align);
        self.position = start + N;
        self.args[start..self.position].try_into().expect("`N` bytes")
    }
}

/// A type that a kernel can take as a parameter.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a kernel's parameter",
    label = "expected `Global<T>`, `GlobalMut<T>`, `TensorMap`, `u32`, `i32`, `u64`, `f32`, or an array"
)]
pub trait KernelArg {
    /// The argument of the launcher.
    type Host: Copy + Send + Sync + 'static;

    /// Adds `value` to the arguments of `launch`.
    fn push(launch: &mut Launch, value: Self::Host);

    /// The kernel's parameter on the emulator: what `push` has added.
    fn read(args: &mut ArgReader<'_>) -> Self;
}

macro_rules! scalar_args {
    ($($ty:ty),*) => {$(
        impl KernelArg for $ty {
            type Host = $ty;

            fn push(launch: &mut Launch, value: $ty) {
                launch.push(&value.to_le_bytes());
            }

            fn read(args: &mut ArgReader<'_>) -> Self {
                <$ty>::from_le_bytes(args.bytes(size_of::<$ty>()))
            }
        }
    )*};
}

scalar_args!(u32, i32, u64, f32);

impl<T: Send + Sync + 'static> KernelArg for crate::Global<T> {
    type Host = DevicePtr<T>;

    fn push(launch: &mut Launch, value: DevicePtr<T>) {
        launch.push(&value.0.to_le_bytes());
    }

    fn read(args: &mut ArgReader<'_>) -> Self {
        crate::Global::from_address(args.read())
    }
}

/// One argument: the elements, one after the other.
impl<T: KernelArg, const N: usize> KernelArg for [T; N] {
    type Host = [T::Host; N];

    fn push(launch: &mut Launch, values: [T::Host; N]) {
        let first = launch.arg_offsets.len();
        values.into_iter().for_each(|value| T::push(launch, value));
        launch.arg_offsets.truncate(first + 1);
    }

    fn read(args: &mut ArgReader<'_>) -> Self {
        core::array::from_fn(|_| args.read())
    }
}

impl<T: Send + Sync + 'static> KernelArg for crate::GlobalMut<T> {
    type Host = DevicePtr<T>;

    fn push(launch: &mut Launch, value: DevicePtr<T>) {
        launch.push(&value.0.to_le_bytes());
    }

    fn read(args: &mut ArgReader<'_>) -> Self {
        crate::GlobalMut::from_address(args.read())
    }
}
