//! How an instruction is declared: its mnemonic, its device body, and its host body.

/// Declares functions that are one PTX instruction each.
///
/// `"mnemonic" => pub fn name(args) -> ret { device body } host { host body }`: the device runs the
/// one, which may use `asm!`; the emulator the other, which is what the ISA page says. The mnemonic
/// is appended to the documentation. A method takes `self`; constants are `name<const N: u32>(args)`.
macro_rules! instruction {
    () => {};
    (
        $(#[$meta:meta])* $mnemonic:literal =>
        $vis:vis unsafe fn $name:ident $(<$(const $const:ident: $of:ty),+>)? ($($args:tt)*)
        $(-> $ret:ty)? $body:block host $host:block
        $($rest:tt)*
    ) => {
        instruction!(
            @fn [$vis unsafe] $(#[$meta])* $mnemonic,
            $name [$(<$(const $const: $of),+>)?] ($($args)*) [$(-> $ret)?] $body $host
        );
        instruction!($($rest)*);
    };
    (
        $(#[$meta:meta])* $mnemonic:literal =>
        $vis:vis fn $name:ident $(<$(const $const:ident: $of:ty),+>)? ($($args:tt)*)
        $(-> $ret:ty)? $body:block host $host:block
        $($rest:tt)*
    ) => {
        instruction!(
            @fn [$vis] $(#[$meta])* $mnemonic,
            $name [$(<$(const $const: $of),+>)?] ($($args)*) [$(-> $ret)?] $body $host
        );
        instruction!($($rest)*);
    };
    (
        @fn [$($qualifier:tt)*] $(#[$meta:meta])* $mnemonic:literal,
        $name:ident [$($consts:tt)*] ($($args:tt)*) [$($ret:tt)*] $body:block $host:block
    ) => {
        $(#[$meta])*
        #[doc = concat!("\n\nPTX `", $mnemonic, "`.")]
        #[inline(always)]
        #[track_caller]
        $($qualifier)* fn $name $($consts)* ($($args)*) $($ret)* {
            #[cfg(target_arch = "nvptx64")]
            // SAFETY: one instruction; what it asks of its operands stands in the function's docs.
            #[allow(unused_unsafe)]
            unsafe {
                $body
            }
            #[cfg(not(target_arch = "nvptx64"))]
            $host
        }
    };
}
