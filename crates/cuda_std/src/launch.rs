//! What a typed launcher makes: a launch, ready for an executor. Host only.

use core::marker::PhantomData;

/// An address in the memory of a device, of elements of type `T`; `0` is "none" where a kernel takes an optional one.
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

/// One kernel launch: what `cuLaunchKernel` needs, by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The PTX entry.
    pub symbol: &'static str,
    /// The module of PTX that holds the entry: the kernel's family.
    pub module: &'static str,
    /// Grid, block, shared memory.
    pub geometry: Geometry,
    /// The arguments' bytes, each at its natural alignment.
    pub args: Vec<u8>,
    /// Where each argument starts in `args`.
    pub arg_offsets: Vec<u32>,
}
