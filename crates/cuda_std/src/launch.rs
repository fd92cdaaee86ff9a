//! What a typed launcher makes: a launch, ready for an executor. Host only.

use core::marker::PhantomData;
#[cfg(feature = "emulator")]
use simt::{Fault, Memory, Report};
#[cfg(feature = "emulator")]
use std::sync::Arc;

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

/// Grid, block and dynamic shared memory of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block.
    pub shared_bytes: u32,
}

impl Geometry {
    /// Largest grid in x, y, z; every CUDA device has these limits.
    pub const MAX_GRID: [usize; 3] = [i32::MAX as usize, 65_535, 65_535];

    /// A grid of one-dimensional blocks, or `None` if it is empty: there is nothing to launch.
    ///
    /// # Errors
    /// [`LaunchError::Grid`] if an axis of the grid is beyond [`Geometry::MAX_GRID`].
    pub fn new(
        grid: [usize; 3],
        num_threads: usize,
        shared_bytes: usize,
    ) -> Result<Option<Self>, LaunchError> {
        for (axis, (&blocks, &limit)) in grid.iter().zip(&Self::MAX_GRID).enumerate() {
            if blocks > limit {
                return Err(LaunchError::Grid { axis: ["x", "y", "z"][axis], blocks, limit });
            }
        }
        if grid.contains(&0) {
            return Ok(None);
        }
        Ok(Some(Geometry {
            grid: grid.map(|blocks| blocks as u32),
            block: [num_threads as u32, 1, 1],
            shared_bytes: shared_bytes as u32,
        }))
    }
}

/// Why no launch can be made of an operation's shapes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LaunchError {
    /// More blocks along an axis than a grid can have.
    Grid {
        /// `x`, `y` or `z`.
        axis: &'static str,
        /// Blocks that the shapes ask for.
        blocks: usize,
        /// Blocks that a grid can have.
        limit: usize,
    },
    /// A size or stride that the kernel cannot take.
    Shape {
        /// Name of the size.
        what: &'static str,
        /// Its value.
        value: usize,
        /// What would be right.
        expected: &'static str,
    },
}

impl core::fmt::Display for LaunchError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            LaunchError::Grid { axis, blocks, limit } => {
                write!(f, "a grid of {blocks} blocks in {axis}: at most {limit} can be launched")
            }
            LaunchError::Shape { what, value, expected } => {
                write!(f, "{what} is {value}: expected {expected}")
            }
        }
    }
}

impl core::error::Error for LaunchError {}

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

/// The kernel's text with the launch's arguments: what each thread runs in the emulator. It follows
/// from the symbol and the arguments, so that all are equal. Without the feature `emulator` it is
/// nothing, and the host compiles no instance of the kernel.
#[derive(Clone)]
pub struct Body(#[cfg(feature = "emulator")] Arc<dyn Fn() + Send + Sync>);

impl Body {
    /// The body that calls the kernel.
    #[cfg(feature = "emulator")]
    pub fn new(kernel: impl Fn() + Send + Sync + 'static) -> Self {
        Body(Arc::new(kernel))
    }

    /// No body.
    #[cfg(not(feature = "emulator"))]
    #[doc(hidden)]
    pub fn none() -> Self {
        Body()
    }
}

/// For what `#[kernel]` expands to: the body that evaluates an expression, if there is an emulator.
#[cfg(feature = "emulator")]
#[doc(hidden)]
#[macro_export]
macro_rules! launch_body {
    ($kernel:expr) => {
        $crate::launch::Body::new(move || $kernel)
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
    /// Blocks of a cluster in x, y, z, as the kernel was compiled for.
    pub cluster: [u32; 3],
    /// Whether it may start before the launch before it has ended: the kernel waits by itself.
    pub overlaps: bool,
    /// The arguments' bytes, each at its natural alignment.
    pub args: Vec<u8>,
    /// Where each argument starts in `args`.
    pub arg_offsets: Vec<u32>,
    /// For the emulator.
    pub body: Body,
}

impl Launch {
    /// A launch without arguments yet.
    pub fn new(symbol: &'static str, geometry: Geometry, body: Body) -> Self {
        let (args, arg_offsets) = (Vec::new(), Vec::new());
        let (cluster, overlaps) = ([1, 1, 1], false);
        Launch { symbol, geometry, cluster, overlaps, args, arg_offsets, body }
    }

    /// Runs the launch on the emulator, where its pointers are addresses of `memory`; the order of
    /// what is concurrent is drawn from `seed`.
    ///
    /// # Errors
    /// The first [`Fault`] of the kernel; also what a device refuses to launch.
    #[cfg(feature = "emulator")]
    pub fn emulate(&self, memory: &mut Memory, seed: u64) -> Result<Report, Fault> {
        let Geometry { grid, block, shared_bytes } = self.geometry;
        let geometry = simt::Geometry { grid, block, cluster: self.cluster, shared_bytes };
        simt::emulate(self.symbol, geometry, self.body.0.clone(), memory, seed)
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

/// A type that a kernel can take as a parameter.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a kernel's parameter",
    label = "expected `Global<T>`, `GlobalMut<T>`, `TensorMap`, `u32`, `i32`, `u64` or `f32`"
)]
pub trait KernelArg {
    /// What the launcher takes for it.
    type Host: Copy + Send + Sync + 'static;

    /// Adds `value` to the arguments of `launch`.
    fn push(launch: &mut Launch, value: Self::Host);

    /// What the kernel gets of `value` in the emulator.
    fn emulated(value: Self::Host) -> Self;
}

macro_rules! scalar_args {
    ($($ty:ty),*) => {$(
        impl KernelArg for $ty {
            type Host = $ty;

            fn push(launch: &mut Launch, value: $ty) {
                launch.push(&value.to_le_bytes());
            }

            fn emulated(value: $ty) -> Self {
                value
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

    fn emulated(value: DevicePtr<T>) -> Self {
        crate::Global::from_address(value.0)
    }
}

impl<T: Send + Sync + 'static> KernelArg for crate::GlobalMut<T> {
    type Host = DevicePtr<T>;

    fn push(launch: &mut Launch, value: DevicePtr<T>) {
        launch.push(&value.0.to_le_bytes());
    }

    fn emulated(value: DevicePtr<T>) -> Self {
        crate::GlobalMut::from_address(value.0)
    }
}
