//! The CPU executor: every operation in f32.
