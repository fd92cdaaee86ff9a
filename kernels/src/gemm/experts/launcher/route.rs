//! The launch of the choice of experts.

use super::super::route;
use crate::Rows;
use crate::gemm::problem::refuse;
use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError, arg_u32};
use cuda_std::warp::WARP_SIZE;

/// The choice of each token's experts.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// Upper bound of the tokens.
    pub max_tokens: usize,
    /// Experts.
    pub num_experts: usize,
    /// Experts of a token.
    pub top_k: usize,
    /// Whether a token's weights are divided by their sum.
    pub normalise: bool,
    /// Multiplies the weights.
    pub scale: f32,
    /// Groups of experts, and how many of them a token is restricted to; of sigmoids alone.
    pub groups: Option<[usize; 2]>,
    /// An expert that every token goes to besides.
    pub shared: Option<SharedExpert>,
}

/// An expert that every token goes to: the one after those that are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedExpert {
    /// With a weight of 1.
    Whole,
    /// With the sigmoid of a logit after those of the experts for a weight.
    Gated,
}

/// The operands of [`Route`].
#[derive(Clone, Copy, Debug)]
pub struct RouteOperands {
    /// The number of tokens.
    pub num_tokens: DevicePtr<u32>,
    /// `[max_tokens, num_experts]`, and one more for the gate of a shared expert.
    pub logits: Rows<f32>,
    /// `[num_experts]`, if scores are sigmoids.
    pub bias: Option<DevicePtr<f32>>,
    /// `[max_tokens, top_k]`, and one more for a shared expert.
    pub experts: Rows<u32>,
    /// As `experts`.
    pub weights: Rows<f32>,
}

impl Route {
    /// The launch, or `None` if there are no tokens.
    ///
    /// # Errors
    /// [`LaunchError`] for more than 512 experts, a `top_k` beyond their number, more than 32 groups or
    /// some that do not divide the experts, and sizes beyond a `u32`.
    pub fn launch(&self, operands: &RouteOperands) -> Result<Option<Launch>, LaunchError> {
        let args = self.args(operands)?;
        let grid = [self.max_tokens.div_ceil(route::WARPS as usize), 1, 1];
        let geometry = Geometry::new(grid, route::NUM_THREADS as usize, 0)?;
        let takes = |i: route::route_f32::Instance| self.num_experts <= WARP_SIZE as usize * i.n();
        let instance = route::route_f32::Instance::find(takes).expect("one for the most experts");
        Ok(geometry.map(|geometry| args.launch(instance, geometry)))
    }

    /// Logits of a token.
    pub(in super::super) fn num_logits(&self) -> usize {
        self.num_experts + usize::from(self.shared == Some(SharedExpert::Gated))
    }

    pub(in super::super) fn check(&self) -> Result<(), LaunchError> {
        check_experts(self.num_experts, self.top_k, MAX_ROUTED)?;
        let [num_groups, _] = self.groups.unwrap_or([1, 1]);
        if !(1..=32).contains(&num_groups) || !self.num_experts.is_multiple_of(num_groups) {
            return refuse("groups", num_groups, "at most 32 that divide the experts");
        }
        Ok(())
    }

    pub(in super::super) fn args(
        &self,
        operands: &RouteOperands,
    ) -> Result<route::route_f32::Args, LaunchError> {
        let RouteOperands { num_tokens, logits, bias, experts, weights } = *operands;
        self.check()?;
        let [num_groups, top_groups] = self.groups.unwrap_or([1, 1]);
        Ok(route::route_f32::Args {
            num_tokens,
            num_experts: self.num_experts as u32,
            top_k: self.top_k as u32,
            normalise: self.normalise.into(),
            scale: self.scale,
            bias: bias.unwrap_or(DevicePtr::null()),
            num_groups: num_groups as u32,
            top_groups: arg_u32("groups", top_groups)?,
            shared: match self.shared {
                None => 0,
                Some(SharedExpert::Whole) => 1,
                Some(SharedExpert::Gated) => 2,
            },
            logits: logits.ptr,
            logits_stride: logits.stride_arg()?,
            experts: experts.ptr,
            experts_stride: experts.stride_arg()?,
            weights: weights.ptr,
            weights_stride: weights.stride_arg()?,
        })
    }
}

/// Most experts to choose from.
const MAX_ROUTED: usize = 512;

/// Refuses numbers of experts that no kernel takes.
pub(super) fn check_experts(
    num_experts: usize,
    top_k: usize,
    most: usize,
) -> Result<(), LaunchError> {
    if num_experts > most {
        return refuse("experts", num_experts, "at most 512, and a shared one");
    }
    if top_k == 0 || top_k > num_experts {
        return refuse("experts of a token", top_k, "from 1 to the number of experts");
    }
    Ok(())
}
