//! Modules of machine code: loaded when a prepared plan first needs them, compiled if the cache has none.

use std::collections::BTreeMap;
use std::ffi::{CString, c_void};
use std::ptr;

use cust::context::Context;
use cust::module::Module as LoadedModule;
use cust::sys::{self, CUfunction, CUjit_option, CUjitInputType};
use rayon::prelude::*;

use super::cubin_cache::CubinCache;
use super::device::{check, failed, make_current};
use crate::exec::ExecError;
use crate::ptx::{Module, Target};
use cuda_std::launch::Launch;

/// Shared memory that a block gets without asking.
const DEFAULT_SHARED_BYTES: u32 = 48 << 10;

/// The modules of a device.
pub struct Modules {
    target: &'static Target,
    cache: CubinCache,
    loaded: BTreeMap<&'static str, LoadedModule>,
}

impl Modules {
    pub fn new(target: &'static Target, cache: CubinCache) -> Self {
        Modules { target, cache, loaded: BTreeMap::new() }
    }

    /// Loads the modules of `launches` that are not there yet, compiling them side by side.
    pub fn load(&mut self, context: &Context, launches: &[Launch]) -> Result<(), ExecError> {
        let mut missing = Vec::new();
        for launch in launches {
            let module = self.target.module(launch.module).ok_or_else(|| no_kernel(launch))?;
            if !self.loaded.contains_key(module.name)
                && missing.iter().all(|other: &&Module| other.name != module.name)
            {
                missing.push(module);
            }
        }
        let load = |module: &&'static Module| {
            make_current(context)?;
            Ok((module.name, load_or_compile(&self.cache, module)?))
        };
        let new: Vec<_> = missing.par_iter().map(load).collect::<Result<_, ExecError>>()?;
        self.loaded.extend(new);
        Ok(())
    }

    /// The function that `launch` names, ready for its shared memory. The module lives as long as `self`.
    pub fn function(&self, launch: &Launch) -> Result<CUfunction, ExecError> {
        let kernels = self.target.kernels();
        let (_, kernel) = { kernels }
            .find(|(module, kernel)| (module.name, kernel.symbol) == (launch.module, launch.symbol))
            .ok_or_else(|| no_kernel(launch))?;
        let num_threads: u32 = launch.geometry.block.iter().product();
        if num_threads > kernel.max_threads {
            return Err(ExecError::Unsupported {
                op: launch.symbol.to_owned(),
                why: format!("a block of {num_threads} threads: at most {}", kernel.max_threads),
            });
        }
        let module = self.loaded.get(launch.module).ok_or_else(|| no_kernel(launch))?;
        let function = module.get_function(launch.symbol).map_err(failed("cuModuleGetFunction"))?;
        let function = function.to_raw();
        let shared_bytes = launch.geometry.shared_bytes;
        if shared_bytes > DEFAULT_SHARED_BYTES {
            let attribute =
                sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: `function` is of a module that is loaded.
            let code = unsafe { sys::cuFuncSetAttribute(function, attribute, shared_bytes as i32) };
            check(&format!("{} bytes of shared memory for {}", shared_bytes, launch.symbol), code)?;
        }
        Ok(function)
    }
}

fn no_kernel(launch: &Launch) -> ExecError {
    ExecError::Unsupported {
        op: launch.symbol.to_owned(),
        why: format!("there is no such kernel in the module `{}`", launch.module),
    }
}

fn load_or_compile(cache: &CubinCache, module: &Module) -> Result<LoadedModule, ExecError> {
    if let Some(cubin) = cache.read(module)
        && let Ok(loaded) = LoadedModule::from_cubin(cubin, &[])
    {
        return Ok(loaded);
    }
    let cubin = compile(module)?;
    cache.write(module, &cubin);
    LoadedModule::from_cubin(cubin, &[]).map_err(failed("cuModuleLoadDataEx"))
}

/// Has the driver compile PTX for the current context's device.
fn compile(module: &Module) -> Result<Vec<u8>, ExecError> {
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
    let result = link(state, module);
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

fn link(state: sys::CUlinkState, module: &Module) -> Result<Vec<u8>, ExecError> {
    let zero_ended = |text: &str| {
        CString::new(text).map_err(|_| ExecError::Driver {
            call: format!("compiling `{}`", module.name),
            error: "a zero byte in the PTX".to_owned(),
        })
    };
    let (text, name) = (zero_ended(module.text)?, zero_ended(module.name)?);
    let text = text.as_bytes_with_nul();
    // SAFETY: `state` is live; `text`, its zero byte included, and `name` outlive the call, and the driver does not
    // write to `text`. No options.
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
    check(&format!("compiling the kernels `{}`", module.name), code)?;
    let (mut cubin, mut bytes) = (ptr::null_mut(), 0);
    // SAFETY: `state` is live.
    let code = unsafe { sys::cuLinkComplete(state, &mut cubin, &mut bytes) };
    check(&format!("linking the kernels `{}`", module.name), code)?;
    // SAFETY: the driver's image is `bytes` long and lives until `state` is destroyed, after this copy.
    Ok(unsafe { std::slice::from_raw_parts(cubin.cast::<u8>(), bytes) }.to_vec())
}
