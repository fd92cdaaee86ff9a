//! How a PTX entry gets its parameters. Device only; `#[kernel]` writes what uses it.

use crate::{Global, GlobalMut};

/// A type that a kernel can take as a parameter.
pub trait Param: Sized {
    /// What stands in the entry's list of parameters.
    type Entry;

    /// What the kernel gets: `address` is where the launch has left the parameter.
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

/// The generic address of an entry's parameter `$index`, where the launch has left it. A Rust
/// reference to it would be to a copy in local memory.
// LLVM names the parameters so. Nothing is left of the two instructions where nobody asks.
#[macro_export]
macro_rules! param_address {
    ($symbol:ident, $index:literal) => {{
        let address: u64;
        // SAFETY: an address is taken, and nothing read.
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
