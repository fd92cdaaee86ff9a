//! Widths of heads that the kernels for every GPU have instances for; a head takes the narrowest that
//! holds it.

cuda_std::instance_set! {
    /// Panels of 32 columns, with the head's width in symbols.
    pub(crate) HEAD_DIMS = [2 as "64", 3 as "96", 4 as "128", 8 as "256"];
}

cuda_std::instance_set! {
    /// As `HEAD_DIMS`, of dense operands of 16 bits.
    pub(crate) HALF_HEAD_DIMS = [2 as "64", 3 as "96", 4 as "128", 8 as "256", 16 as "512"];
}

/// Warps that share rows and keys of heads of up to `32 * panels` columns: each computes all
/// scores, and a part of the columns of the output, as its registers hold no more than 256 of 16
/// rows.
pub(super) const fn column_parts(panels: usize) -> usize {
    if panels > 8 { 2 } else { 1 }
}
