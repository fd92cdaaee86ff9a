//! Mixtures of experts: the router, and linear layers of the experts that tokens have chosen.
//!
//! A choice is a token's `i`-th expert. [`few`], [`many`] and, on Hopper, [`wgmma`] take chunks of
//! choices of the same expert: of up to 8, 64 and 256. The choices of a token are computed apart, and
//! [`combine`] adds them in their order, so that a token's bits do not depend on the others'; those
//! of a single token, where they may, are one launch with their sum, [`sum`].

pub mod chunk;
pub mod combine;
mod e4m3;
pub mod few;
pub mod group;
pub mod linear_f32;
pub mod many;
pub mod norm_route;
pub mod route;
pub mod sum;
mod weight;
pub mod wgmma;

#[cfg(not(target_arch = "nvptx64"))]
mod launcher;
#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::{
    ExpertLinear, ExpertOperands, ExpertOut, Route, RouteOperands, SharedExpert, Stored,
};
#[cfg(not(target_arch = "nvptx64"))]
pub use norm_route::{NormRoute, NormRouteOperands};
