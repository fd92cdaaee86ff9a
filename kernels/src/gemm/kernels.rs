//! The kernels, an operand source, a mainloop and an epilogue each, and their launches.

pub mod epilogue;
pub mod f32;
pub mod f32_small_m;
pub mod fp8;
pub mod gemv;
pub mod sm80;
pub mod sm90;
pub mod small_m;
pub mod streamed;
pub mod swapped;
