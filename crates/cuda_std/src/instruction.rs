//! How an instruction is declared: its mnemonic, its device body, and its host body.

/// Declares functions that are one PTX instruction each.
///
/// `"mnemonic" => pub fn name(args) -> ret { device body } host { host body }`: the device runs the
/// first body, which may use `asm!`; the emulator runs the second, which does what the ISA page
/// says. The mnemonic is appended to the documentation by `ptx!`, with its link and what it
/// requires. A method takes `self`; constants are `name<const N: u32>(args)`.
macro_rules! instruction {
    // `ptx!` matches the mnemonic as a token: attributes are taken off one by one before it.
    (@attributes [$($done:tt)*] #[$($meta:tt)*] $($rest:tt)*) => {
        instruction!(@attributes [$($done)* #[$($meta)*]] $($rest)*);
    };
    (
        @attributes [$($attributes:tt)*] $mnemonic:tt =>
        $vis:vis unsafe fn $name:ident $(<$(const $const:ident: $of:ty),+>)? ($($args:tt)*)
        $(-> $ret:ty)? $body:block host $host:block
        $($rest:tt)*
    ) => {
        instruction!(
            @fn [$vis unsafe] [$($attributes)*] $mnemonic,
            $name [$(<$(const $const: $of),+>)?] ($($args)*) [$(-> $ret)?] $body $host
        );
        instruction!($($rest)*);
    };
    (
        @attributes [$($attributes:tt)*] $mnemonic:tt =>
        $vis:vis fn $name:ident $(<$(const $const:ident: $of:ty),+>)? ($($args:tt)*)
        $(-> $ret:ty)? $body:block host $host:block
        $($rest:tt)*
    ) => {
        instruction!(
            @fn [$vis] [$($attributes)*] $mnemonic,
            $name [$(<$(const $const: $of),+>)?] ($($args)*) [$(-> $ret)?] $body $host
        );
        instruction!($($rest)*);
    };
    (
        @fn [$($qualifier:tt)*] [$($attributes:tt)*] $mnemonic:tt,
        $name:ident [$($consts:tt)*] ($($args:tt)*) [$($ret:tt)*] $body:block $host:block
    ) => {
        $($attributes)*
        #[doc = ptx!($mnemonic)]
        #[inline(always)]
        #[track_caller]
        $($qualifier)* fn $name $($consts)* ($($args)*) $($ret)* {
            #[cfg(target_arch = "nvptx64")]
            // SAFETY: one instruction; the function's documentation says what its operands must be.
            #[allow(unused_unsafe)]
            unsafe {
                $body
            }
            #[cfg(not(target_arch = "nvptx64"))]
            $host
        }
    };
    () => {};
    ($($declarations:tt)+) => {
        instruction!(@attributes [] $($declarations)+);
    };
}
