//! Stands in for the published `find_cuda_helper`, which panics on a machine without a CUDA toolkit.
//!
//! `cust` and `cust_raw` call it from their build scripts to link `libcuda`. halfwarp opens `libcuda` at run time
//! (`cuda_loader`), so there is nothing to find and nothing to link.

/// Does nothing: no toolkit is looked for and no library is linked.
pub fn include_cuda() {}
