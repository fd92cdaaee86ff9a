//! How a PTX entry receives its parameters. Device only; `#[kernel]` generates the uses.

use crate::{Global, GlobalMut};

/// A type that a kernel can take as a parameter.
pub trait Param: Sized {
    /// Type of the parameter in the entry's parameter list.
    type Entry;

    /// The value that the kernel receives; `address` is the generic address of the parameter.
    fn receive(entry: Self::Entry, address: u64) -> Self;
}

macro_rules! by_value {
    ($($ty:ty $(, of $elem:ident)?;)*) => {$(
        impl $(<$elem>)? Param for $ty {
            type Entry = Self;

            #[inline(always)]
            fn receive(entry: Self, _: u64) -> Self {
                entry
            }
        }
    )*};
}

by_value!(u32; i32; u64; f32; Global<T>, of T; GlobalMut<T>, of T;);

/// An array, as one parameter of an entry.
#[repr(C)]
pub struct Array<T, const N: usize>([T; N]);

impl<T: Param<Entry = T>, const N: usize> Param for [T; N] {
    type Entry = Array<T, N>;

    #[inline(always)]
    fn receive(entry: Array<T, N>, _: u64) -> Self {
        entry.0
    }
}

/// The generic address of an entry's parameter `$index`. A Rust reference to the parameter would
/// point to a copy in local memory.
// The name is LLVM's. The two instructions are removed if the result is unused.
#[macro_export]
macro_rules! param_address {
    ($symbol:ident, $index:literal) => {{
        let address: u64;
        // SAFETY: it computes an address and accesses no memory.
        unsafe {
            ::core::arch::asm!(
                concat!("mov.b64 {0}, ", stringify!($symbol), "_param_", $index, ";"),
                "cvta.param.u64 {0}, {0};",
                out(reg64) address,
                options(pure, nomem, nostack, preserves_flags)
            );
        }
        address
    }};
}
