//! What can be wrong with a plan.

use super::{CacheType, Dtype};

/// What can be wrong with a plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// Shapes that do not fit each other, or something that is read before it is written.
    #[error("{0}")]
    Shape(String),
    /// Accumulators in f16 of operands in another type.
    #[error("accumulators in F16 need operands in F16, these are in {operand}: accumulate in F32")]
    Accumulate {
        /// Type of the operands.
        operand: Dtype,
    },
    /// An element type that an operation does not take, or not together with the others.
    #[error("{at}: {what} is {got}, expected {}", either(wanted))]
    Dtype {
        /// The operation, or the plan itself.
        at: String,
        /// What of it.
        what: &'static str,
        /// Type that was found.
        got: Dtype,
        /// The types that would be right.
        wanted: Vec<Dtype>,
    },
    /// Heads that are no whole number of blocks of the cache.
    #[error(
        "the {} cache in {cache_type} stores blocks of {} elements: heads of {head_dim} are no \
         whole number of them",
        of.to_uppercase(),
        cache_type.block_elems()
    )]
    CacheBlocks {
        /// `k` or `v`.
        of: &'static str,
        /// Type of the cache.
        cache_type: CacheType,
        /// Elements of a head.
        head_dim: usize,
    },
    /// Rows of 16-bit elements that do not start at multiples of 16 bytes, as tensor cores want
    /// them, or rows that are no whole number of blocks.
    #[error("`{name}`: {what} of {elems} elements of {dtype}, expected a multiple of {multiple}")]
    Unaligned {
        /// The activation, weight or cache.
        name: String,
        /// What is no multiple: a row, or the columns before a view.
        what: &'static str,
        /// Number of elements that is no multiple.
        elems: usize,
        /// Type of the elements.
        dtype: Dtype,
        /// Number of which it should be a multiple.
        multiple: usize,
    },
}

/// `F16 or F32`.
fn either(dtypes: &[Dtype]) -> String {
    dtypes.iter().map(Dtype::to_string).collect::<Vec<_>>().join(" or ")
}
