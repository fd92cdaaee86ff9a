//! One function for each name that `cust` links against: a jump through a table.
//!
//! Until the driver is loaded, all entries of the table return `CUDA_ERROR_NOT_INITIALIZED`.

use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::symbols::with_symbols;

/// `CUDA_ERROR_NOT_INITIALIZED`: returned by every function while no driver is loaded.
const NOT_INITIALIZED: c_int = 3;
/// `CUDA_ERROR_NOT_SUPPORTED`: returned by functions that the loaded driver lacks.
const NOT_SUPPORTED: c_int = 801;

/// The entry of every function while no driver is loaded. It ignores its arguments, so that it can be called with any
/// signature: on both architectures the caller cleans up.
extern "C" fn no_driver() -> c_int {
    NOT_INITIALIZED
}

/// The entry of a function that the driver lacks.
extern "C" fn not_in_driver() -> c_int {
    NOT_SUPPORTED
}

macro_rules! define {
    ($($name:ident)*) => {
        /// The index of each function in the table.
        #[allow(non_camel_case_types, clippy::enum_variant_names)]
        enum Slot { $($name),* }

        /// Names, in the order of the table.
        pub const NAMES: &[&CStr] = &[$(
            match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a name with a zero byte"),
            }
        ),*];

        $(
            #[cfg(target_arch = "x86_64")]
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            #[allow(non_snake_case)]
            unsafe extern "C" fn $name() -> c_int {
                core::arch::naked_asm!(
                    "jmp qword ptr [rip + {table} + {offset}]",
                    table = sym TABLE,
                    offset = const Slot::$name as usize * size_of::<usize>(),
                )
            }

            #[cfg(target_arch = "aarch64")]
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            #[allow(non_snake_case)]
            unsafe extern "C" fn $name() -> c_int {
                core::arch::naked_asm!(
                    "adrp x16, {table} + {offset}",
                    "ldr x16, [x16, :lo12:{table} + {offset}]",
                    "br x16",
                    table = sym TABLE,
                    offset = const Slot::$name as usize * size_of::<usize>(),
                )
            }
        )*
    };
}

with_symbols!(define);

/// The targets of the trampolines.
static TABLE: [AtomicPtr<c_void>; NAMES.len()] =
    [const { AtomicPtr::new(no_driver as *mut c_void) }; NAMES.len()];

/// Fills the table with the address that `find` returns for each name.
pub fn fill(find: impl Fn(&CStr) -> *mut c_void) {
    for (name, entry) in NAMES.iter().zip(&TABLE) {
        let function = find(name);
        let function = if function.is_null() { not_in_driver as *mut c_void } else { function };
        entry.store(function, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn seven() -> c_int {
        7
    }

    #[test]
    fn each_function_jumps_to_its_own_entry() {
        // SAFETY: the table holds functions of this file, which take no arguments.
        let call = || unsafe { [cuGetErrorString(), cuLaunchKernel(), cuProfilerStop()] };
        assert_eq!(call(), [NOT_INITIALIZED; 3]);
        fill(|name| match name.to_bytes() {
            b"cuLaunchKernel" => seven as *mut c_void,
            _ => std::ptr::null_mut(),
        });
        assert_eq!(call(), [NOT_SUPPORTED, 7, NOT_SUPPORTED]);
    }

    #[test]
    fn calls_through_cust_raw_reach_the_table() {
        assert_eq!(
            cust_raw::cuLaunchKernel as *const () as usize,
            cuLaunchKernel as *const () as usize
        );
        assert_eq!(
            cust_raw::cuProfilerStop as *const () as usize,
            cuProfilerStop as *const () as usize
        );
    }

    #[test]
    fn the_names_are_those_of_cust_raw() {
        let source = source_of_cust_raw();
        let declared: Vec<&str> = source
            .split("extern \"C\" {")
            .skip(1)
            .filter_map(|block| block.trim_start().strip_prefix("pub fn "))
            .filter_map(|declaration| declaration.split('(').next())
            .collect();
        let ours: Vec<&str> = NAMES.iter().map(|name| name.to_str().unwrap()).collect();
        assert_eq!(ours, declared);
        assert_eq!(ours.len(), 353);
    }

    /// The declarations of the `cust_raw` that this test is built with: a dev-dependency, so that cargo
    /// has unpacked its source.
    fn source_of_cust_raw() -> String {
        let home = std::env::var_os("CARGO_HOME").map(std::path::PathBuf::from);
        let home = home.or_else(|| Some(std::env::home_dir()?.join(".cargo"))).unwrap();
        let registries = home.join("registry/src");
        std::fs::read_dir(&registries)
            .into_iter()
            .flatten()
            .flatten()
            .find_map(|registry| {
                std::fs::read_to_string(registry.path().join("cust_raw-0.11.3/src/cuda.rs")).ok()
            })
            .unwrap_or_else(|| panic!("cust_raw 0.11.3 is not in {}", registries.display()))
    }
}
