//! Widths of heads that the kernels for every GPU have instances for; a head takes the narrowest that
//! holds it.

cuda_std::instance_set! {
    /// Panels of 32 columns, with the head's width in symbols.
    pub(crate) HEAD_DIMS = [2 as "64", 3 as "96", 4 as "128", 8 as "256"];
}
