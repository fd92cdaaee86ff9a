//! Operations that read or write 16 bits.

use cuda_std::launch::Launch;

use super::Lowering;
use crate::exec::ExecError;
use crate::plan::{Dtype, Op};

impl Lowering<'_> {
    /// The launches of an operation that has 16-bit elements, of `dtype`.
    pub(super) fn halves_op(&mut self, op: &Op, dtype: Dtype) -> Result<Vec<Launch>, ExecError> {
        Err(ExecError::Unsupported {
            op: op.name().to_owned(),
            why: format!("{dtype} plans run on the CPU only so far: --device cpu"),
        })
    }
}
