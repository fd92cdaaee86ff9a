//! How an instruction is declared: its mnemonic, its device body, and the host's one way out.

/// Declares functions that are one PTX instruction each.
///
/// `"mnemonic" => pub fn name(args) -> ret { device body }`: the device runs the body, which may
/// use `asm!`; on the host the call goes to [`needs_emulator`]. The mnemonic is appended to the
/// documentation.
macro_rules! instruction {
    () => {};
    (
        $(#[$meta:meta])* $mnemonic:literal =>
        $vis:vis unsafe fn $name:ident $args:tt $(-> $ret:ty)? $body:block $($rest:tt)*
    ) => {
        instruction!(@fn [$vis unsafe] $(#[$meta])* $mnemonic, $name $args [$(-> $ret)?] $body);
        instruction!($($rest)*);
    };
    (
        $(#[$meta:meta])* $mnemonic:literal =>
        $vis:vis fn $name:ident $args:tt $(-> $ret:ty)? $body:block $($rest:tt)*
    ) => {
        instruction!(@fn [$vis] $(#[$meta])* $mnemonic, $name $args [$(-> $ret)?] $body);
        instruction!($($rest)*);
    };
    (
        @fn [$($qualifier:tt)*] $(#[$meta:meta])* $mnemonic:literal,
        $name:ident ($($arg:ident: $ty:ty),*) [$($ret:tt)*] $body:block
    ) => {
        $(#[$meta])*
        #[doc = concat!("\n\nPTX `", $mnemonic, "`.")]
        #[inline(always)]
        #[track_caller]
        $($qualifier)* fn $name($($arg: $ty),*) $($ret)* {
            #[cfg(target_arch = "nvptx64")]
            // SAFETY: one instruction; what it asks of its operands stands in the function's docs.
            #[allow(unused_unsafe)]
            unsafe {
                $body
            }
            #[cfg(not(target_arch = "nvptx64"))]
            {
                let _ = ($($arg,)*);
                $crate::instruction::needs_emulator($mnemonic)
            }
        }
    };
}

/// Where every instruction ends on the host.
///
/// # Panics
/// Always: instructions run on a GPU, or in the emulator.
#[cfg(not(target_arch = "nvptx64"))]
#[cold]
#[track_caller]
pub(crate) fn needs_emulator(mnemonic: &'static str) -> ! {
    panic!("`{mnemonic}` was called on the host: it needs the emulator")
}
