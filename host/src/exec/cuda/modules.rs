//! Modules of machine code, one a kernel: loaded when a plan is prepared that first launches it,
//! compiled if the cache has none.
//!
//! The driver compiles a module whole, on the way from the first start to the first token, and a
//! model launches few of the instances of a kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CString, c_void};
use std::ptr;

use cust::context::Context;
use cust::module::Module;
use cust::sys::{self, CUfunction, CUjit_option, CUjitInputType};
use rayon::prelude::*;

use super::cubin_cache::CubinCache;
use super::device::{check, failed, make_current};
use crate::exec::ExecError;
use crate::exec::lower::Task;
use crate::ptx::{Kernel, KernelSet};
use cuda_std::launch::Launch;

/// Shared memory that a block gets without asking.
const DEFAULT_SHARED_BYTES: u32 = 48 << 10;

/// Shared memory that the driver keeps for itself of each block.
const RESERVED_BYTES: u32 = 1 << 10;

/// Least share of a multiprocessor's memory, in per cent, that a kernel wants as shared memory.
const LEAST_CARVEOUT: u32 = 25;

/// How much of a multiprocessor's memory should be shared memory, in per cent of `most_bytes`, for
/// a kernel whose blocks have `shared_bytes` each: two blocks'.
///
/// A multiprocessor divides its memory anew only when it is idle. Left to the driver, a GEMM's
/// blocks leave room for one block of the attention that follows, which starts early; and where
/// most of the memory is shared, L1 has too little for loads under way. Measured on an H200 (random
/// weights, f16, 128 tokens after 512), Phi-3 Mini and Qwen2.5-0.5B: 317 and 1,660 tokens a second
/// as the driver has it; 369 and 1,710 with 25 % for every kernel of the step, 385 and 1,688 with
/// 50, 364 and 1,549 with 75, 288 and 1,370 with 100.
fn carveout_percent(shared_bytes: u32, most_bytes: u32) -> u32 {
    let two_blocks = 2 * (u64::from(shared_bytes) + u64::from(RESERVED_BYTES));
    let percent = (100 * two_blocks).div_ceil(u64::from(most_bytes.max(1)));
    (percent.min(100) as u32).max(LEAST_CARVEOUT)
}

/// The kernels that a device was given, by symbol.
pub struct Modules {
    target: &'static KernelSet,
    cache: CubinCache,
    /// Most shared memory of a multiprocessor.
    sm_shared_bytes: u32,
    loaded: BTreeMap<&'static str, Loaded>,
}

/// A kernel, and the module of machine code that holds it alone.
struct Loaded {
    kernel: &'static Kernel,
    module: Module,
    /// Dynamic shared memory that a block may have: the most of any launch.
    shared_bytes: u32,
}

impl Modules {
    pub fn new(target: &'static KernelSet, cache: CubinCache, sm_shared_bytes: u32) -> Self {
        Modules { target, cache, sm_shared_bytes, loaded: BTreeMap::new() }
    }

    /// Loads the kernels of `tasks` that are not there yet, compiling them side by side.
    pub fn load<'a>(
        &mut self,
        context: &Context,
        tasks: impl IntoIterator<Item = &'a Task>,
    ) -> Result<(), ExecError> {
        let symbol = |task: &Task| match task {
            Task::Launch(launch) => Some(launch.symbol),
            Task::Gemm(_) | Task::AllReduce(_) => None,
        };
        let symbols: BTreeSet<&'static str> = tasks.into_iter().filter_map(symbol).collect();
        let missing = symbols.into_par_iter().filter(|symbol| !self.loaded.contains_key(symbol));
        let load = |symbol| {
            let kernel = self.target.kernel(symbol).ok_or_else(|| no_kernel(symbol))?;
            make_current(context)?;
            let module = load_or_compile(&self.cache, kernel)?;
            Ok((symbol, Loaded { kernel, module, shared_bytes: DEFAULT_SHARED_BYTES }))
        };
        let new: Vec<_> = missing.map(load).collect::<Result<_, ExecError>>()?;
        self.loaded.extend(new);
        Ok(())
    }

    /// The function that `launch` names, ready for its shared memory. Its module lives as long as
    /// `self`.
    pub fn function(&mut self, launch: &Launch) -> Result<CUfunction, ExecError> {
        let Loaded { kernel, module, shared_bytes } =
            self.loaded.get_mut(launch.symbol).ok_or_else(|| no_kernel(launch.symbol))?;
        let num_threads: u32 = launch.geometry.block.iter().product();
        if num_threads > kernel.max_threads {
            return Err(ExecError::Unsupported {
                op: launch.symbol.to_owned(),
                why: format!("a block of {num_threads} threads: at most {}", kernel.max_threads),
            });
        }
        let function = module.get_function(launch.symbol).map_err(failed("cuModuleGetFunction"))?;
        let function = function.to_raw();
        let wanted_bytes = launch.geometry.shared_bytes;
        let set = |attribute, value: u32, what: &str| {
            // SAFETY: `function` is of a module that is loaded.
            let code = unsafe { sys::cuFuncSetAttribute(function, attribute, value as i32) };
            check(&format!("{value} {what} for {}", launch.symbol), code)
        };
        if wanted_bytes > *shared_bytes {
            let attribute =
                sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            set(attribute, wanted_bytes, "bytes of shared memory")?;
            *shared_bytes = wanted_bytes;
        }
        let attribute =
            sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
        let carveout = carveout_percent(wanted_bytes, self.sm_shared_bytes);
        set(attribute, carveout, "per cent of shared memory")?;
        Ok(function)
    }
}

fn no_kernel(symbol: &str) -> ExecError {
    ExecError::Unsupported {
        op: symbol.to_owned(),
        why: "there is no such kernel in this program".to_owned(),
    }
}

/// The instruction that moves registers between the warps of a block.
const SET_MAX_REGISTERS: &str = "setmaxnreg";

fn load_or_compile(cache: &CubinCache, kernel: &Kernel) -> Result<Module, ExecError> {
    let text = kernel.text();
    if text.contains(SET_MAX_REGISTERS) {
        // A linker compiles the kernel as a part of a program, and ignores the instruction:
        // accumulators spill, and MMAs wait for each other. The driver keeps what it compiles as a
        // whole in a cache of its own.
        return Module::from_ptx(text, &[]).map_err(failed("cuModuleLoadDataEx"));
    }
    if let Some(cubin) = cache.read(kernel.symbol, &text)
        && let Ok(module) = Module::from_cubin(cubin, &[])
    {
        return Ok(module);
    }
    let cubin = compile(kernel.symbol, &text)?;
    cache.write(kernel.symbol, &text, &cubin);
    Module::from_cubin(cubin, &[]).map_err(failed("cuModuleLoadDataEx"))
}

/// Has the driver compile PTX for the current context's device.
fn compile(symbol: &str, text: &str) -> Result<Vec<u8>, ExecError> {
    let mut log = vec![0u8; 8192];
    let mut options =
        [CUjit_option::CU_JIT_ERROR_LOG_BUFFER, CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    // The driver takes sizes by value, in the place of a pointer.
    let mut values = [log.as_mut_ptr().cast::<c_void>(), log.len() as *mut c_void];
    let mut state = ptr::null_mut();
    // SAFETY: two options and their values; they and the log outlive `state`.
    let code =
        unsafe { sys::cuLinkCreate_v2(2, options.as_mut_ptr(), values.as_mut_ptr(), &mut state) };
    check("cuLinkCreate", code)?;
    let result = link(state, symbol, text);
    // SAFETY: `state` is one that was created, and is not used again.
    check("cuLinkDestroy", unsafe { sys::cuLinkDestroy(state) })?;
    result.map_err(|error| match error {
        ExecError::Driver { call, error } => {
            let log = log.split(|&byte| byte == 0).next().unwrap_or_default();
            let log = String::from_utf8_lossy(log);
            ExecError::Driver { call, error: format!("{error} {}", log.trim()) }
        }
        other => other,
    })
}

fn link(state: sys::CUlinkState, symbol: &str, text: &str) -> Result<Vec<u8>, ExecError> {
    let zero_ended = |text: &str| {
        CString::new(text).map_err(|_| ExecError::Driver {
            call: format!("compiling `{symbol}`"),
            error: "a zero byte in the PTX".to_owned(),
        })
    };
    let (text, name) = (zero_ended(text)?, zero_ended(symbol)?);
    let text = text.as_bytes_with_nul();
    // SAFETY: `state` is live; `text`, its zero byte included, and `name` outlive the call, and
    // the driver does not write to `text`. No options.
    let code = unsafe {
        sys::cuLinkAddData_v2(
            state,
            CUjitInputType::CU_JIT_INPUT_PTX,
            text.as_ptr().cast_mut().cast(),
            text.len(),
            name.as_ptr(),
            0,
            ptr::null_mut(),
            ptr::null_mut(),
        )
    };
    check(&format!("compiling the kernel `{symbol}`"), code)?;
    let (mut cubin, mut bytes) = (ptr::null_mut(), 0);
    // SAFETY: `state` is live.
    let code = unsafe { sys::cuLinkComplete(state, &mut cubin, &mut bytes) };
    check(&format!("linking the kernel `{symbol}`"), code)?;
    // SAFETY: the driver's image is `bytes` long and lives until `state` is destroyed, after this
    // copy.
    Ok(unsafe { std::slice::from_raw_parts(cubin.cast::<u8>(), bytes) }.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_blocks_have_room() {
        const H200: u32 = 228 << 10;
        for (shared_bytes, percent) in [(0, 25), (9 << 10, 25), (52 << 10, 47), (200 << 10, 100)] {
            assert_eq!(carveout_percent(shared_bytes, H200), percent, "{shared_bytes}");
        }
        assert_eq!(carveout_percent(u32::MAX, 0), 100);
    }
}
