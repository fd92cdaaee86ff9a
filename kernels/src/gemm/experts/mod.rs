//! Mixtures of experts: the router, and linear layers of the experts that tokens have chosen.
//!
//! A choice is a token's `i`-th expert. [`few`] and [`many`] take chunks of choices of the same expert:
//! of up to eight and up to 64. The choices of a token are computed apart, and [`combine`] adds them
//! in their order, so that a token's bits do not depend on the others'.

pub mod chunk;
pub mod combine;
pub mod few;
pub mod group;
pub mod linear_f32;
pub mod many;
pub mod route;
mod weight;

#[cfg(not(target_arch = "nvptx64"))]
mod launcher;
#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::{ExpertLinear, ExpertOperands, ExpertOut, Route, RouteOperands, Stored};
