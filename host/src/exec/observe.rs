//! A step looked at from inside: the values and the times of its operations.

use super::ExecError;
use crate::plan::{Dtype, Plan, View};
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use half::{bf16, f16};

/// The activations of a step between two of its operations.
pub trait Activations {
    /// The rows of `view`, dense, `[num_rows, width]`. 16-bit elements are widened.
    ///
    /// Memory is reused within a step: what is there is what the last operation that wrote to the
    /// activation, or to one in the same place, left.
    ///
    /// # Errors
    /// [`ExecError::Unsupported`] for elements that are no floating-point numbers;
    /// [`ExecError::Driver`]; [`ExecError::Unwritten`] on the emulator.
    fn rows(&self, view: View) -> Result<Vec<f32>, ExecError>;

    /// The rows of a `view` of u32 elements, dense, `[num_rows, width]`.
    ///
    /// # Errors
    /// As [`Activations::rows`], for elements of another type.
    fn indices(&self, view: View) -> Result<Vec<u32>, ExecError>;
}

/// What is called after each operation, with its index in the plan as it runs
/// ([`Executor::plan`](super::Executor::plan)).
pub type AfterOp<'a> = dyn FnMut(usize, &dyn Activations) -> Result<(), ExecError> + Send + 'a;

/// Times of a step that was repeated, in microseconds: each list has a time of each repetition.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepTimes {
    /// By operation of the plan as it runs. Each starts when the one before has ended.
    pub ops_us: Vec<Vec<f64>>,
    /// What an event takes, where operations are timed by events: it is taken off `ops_us`.
    pub event_us: Option<f64>,
    /// The whole step, its operations started one by one as in `ops_us`, and nothing timed between
    /// them.
    pub step_us: Vec<f64>,
    /// The whole step as [`Executor::run`](super::Executor::run) starts it, where that is another
    /// way: as one CUDA graph, in which kernels overlap.
    pub graph_us: Option<Vec<f64>>,
    /// Kernels of the step, where it is launched as such.
    pub num_launches: Option<usize>,
}

/// The elements of `view` in `bytes`, which are u32.
///
/// # Errors
/// [`ExecError::Unsupported`] for elements of another type.
pub(super) fn indices(plan: &Plan, view: View, bytes: &[u8]) -> Result<Vec<u32>, ExecError> {
    match plan.dtype(view) {
        Dtype::U32 => Ok(bytemuck::pod_collect_to_vec(bytes)),
        dtype => Err(ExecError::Unsupported {
            op: plan.tensor(view.tensor).name.clone(),
            why: format!("{dtype} elements are no indices"),
        }),
    }
}

/// The elements of `view` in `bytes`, as f32.
///
/// # Errors
/// [`ExecError::Unsupported`] for elements that are no floating-point numbers.
pub(super) fn widen(plan: &Plan, view: View, bytes: &[u8]) -> Result<Vec<f32>, ExecError> {
    let mut values = vec![0.0; bytes.len() / plan.dtype(view).block_bytes()];
    let halves = || bytemuck::pod_collect_to_vec::<u8, u16>(bytes);
    match plan.dtype(view) {
        Dtype::F32 => bytemuck::cast_slice_mut(&mut values).copy_from_slice(bytes),
        Dtype::F16 => halves().reinterpret_cast::<f16>().convert_to_f32_slice(&mut values),
        Dtype::BF16 => halves().reinterpret_cast::<bf16>().convert_to_f32_slice(&mut values),
        dtype => {
            return Err(ExecError::Unsupported {
                op: plan.tensor(view.tensor).name.clone(),
                why: format!("{dtype} elements are no floating-point numbers"),
            });
        }
    }
    Ok(values)
}
