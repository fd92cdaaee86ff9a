//! The types of whole models: llama.cpp's mixes.

use crate::plan::Dtype;

/// Types for the tensors of a model, by llama.cpp's names. The output is in Q6_K if nothing else is
/// said, and V is in more bits where several query heads share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types)]
pub enum Mix {
    /// Q2_K; Q3_K for V, down and attention's output.
    Q2_K,
    /// Q2_K; Q4_K for V and, in the first eighth of the layers, down. It needs an importance matrix.
    Q2_K_S,
    /// Q3_K.
    Q3_K_S,
    /// Q3_K; Q4_K or Q5_K for V, down and attention's output.
    Q3_K_M,
    /// Q3_K; Q5_K for V, down and attention's output.
    Q3_K_L,
    /// IQ4_XS; Q5_K for the first down projections.
    IQ4_XS,
    /// IQ4_NL; Q5_K for the first down projections.
    IQ4_NL,
    /// Q4_K; Q5_K for the first V and down projections.
    Q4_K_S,
    /// Q4_K; Q6_K for the output and, in half of the layers, V and down.
    Q4_K_M,
    /// Q5_K.
    Q5_K_S,
    /// Q5_K; Q6_K for the output and, in half of the layers, V and down.
    Q5_K_M,
    /// Q6_K.
    Q6_K,
    /// Q8_0.
    Q8_0,
    /// Q4_0; Q6_K for the output.
    Q4_0,
    /// Q4_1; Q6_K for the output.
    Q4_1,
    /// Q5_0; Q6_K for the output.
    Q5_0,
    /// Q5_1; Q6_K for the output.
    Q5_1,
    /// MXFP4 for stacks of experts, Q8_0 for all else.
    MXFP4_MOE,
    /// F16.
    F16,
}

impl Mix {
    /// The number of the mix in `general.file_type`, and the type that most tensors are of.
    /// Source: `llama_ftype` in llama.h, `llama_ftype_get_default_type`.
    const fn facts(self) -> (u32, Dtype) {
        match self {
            Mix::F16 => (1, Dtype::F16),
            Mix::Q4_0 => (2, Dtype::Q4_0),
            Mix::Q4_1 => (3, Dtype::Q4_1),
            Mix::Q8_0 => (7, Dtype::Q8_0),
            Mix::Q5_0 => (8, Dtype::Q5_0),
            Mix::Q5_1 => (9, Dtype::Q5_1),
            Mix::Q2_K => (10, Dtype::Q2_K),
            Mix::Q3_K_S => (11, Dtype::Q3_K),
            Mix::Q3_K_M => (12, Dtype::Q3_K),
            Mix::Q3_K_L => (13, Dtype::Q3_K),
            Mix::Q4_K_S => (14, Dtype::Q4_K),
            Mix::Q4_K_M => (15, Dtype::Q4_K),
            Mix::Q5_K_S => (16, Dtype::Q5_K),
            Mix::Q5_K_M => (17, Dtype::Q5_K),
            Mix::Q6_K => (18, Dtype::Q6_K),
            Mix::Q2_K_S => (21, Dtype::Q2_K),
            Mix::IQ4_NL => (25, Dtype::IQ4_NL),
            Mix::IQ4_XS => (30, Dtype::IQ4_XS),
            Mix::MXFP4_MOE => (38, Dtype::MXFP4),
        }
    }

    /// The number of the mix in `general.file_type`.
    pub(super) const fn file_type(self) -> u32 {
        self.facts().0
    }

    /// The type that most tensors are of.
    pub(super) const fn base(self) -> Dtype {
        self.facts().1
    }
}
