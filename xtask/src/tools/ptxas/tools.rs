//! NVIDIA's assembler and disassembler; they need neither CUDA nor a GPU.

use crate::tools::programs::Program;
use anyhow::Result;
use machine_code::Tools;
use model_cache::Cache;

/// The assembler.
pub const PTXAS: Program = Program {
    name: "ptxas",
    package: "nvidia-cuda-nvcc",
    version: "13.0.88",
    suffix: "bin/ptxas",
    sha256: None,
};

/// The disassembler.
pub const NVDISASM: Program = Program {
    name: "nvdisasm",
    package: "nvidia-cuda-nvdisasm",
    version: "13.2.78",
    suffix: "bin/nvdisasm",
    sha256: None,
};

/// The programs in the cache, fetched if they are missing.
pub fn provide(cache: &Cache) -> Result<Tools> {
    Ok(Tools { ptxas: PTXAS.provide(cache)?, nvdisasm: Some(NVDISASM.provide(cache)?) })
}
