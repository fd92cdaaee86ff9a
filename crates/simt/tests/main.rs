//! The emulator by kernels written as closures.

mod asynchronous;
mod emulate;
