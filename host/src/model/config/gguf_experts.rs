//! What GGUF metadata say of experts, and of the layers that have them.

use super::fields::{Fields, POSITIVE};
use super::{ConfigError, ExpertScores, Experts, Family, range};
use crate::plan::Groups;

const COUNT: &str = "expert_count";

/// The experts of a family that has them. llama.cpp knows by the architecture that the scores of
/// the chosen ones are divided by their sum, but for GLM.
pub(super) fn experts(fields: &Fields, family: Family) -> Result<Option<Experts>, ConfigError> {
    let count = fields.count(COUNT, 0..=*range::NUM_EXPERTS.end())?.filter(|count| *count > 0);
    let num_experts = match (count, family) {
        (
            count,
            Family::Qwen3Moe
            | Family::GptOss
            | Family::Glm4Moe
            | Family::GraniteMoe
            | Family::Qwen3Next
            | Family::Qwen35Moe,
        ) => count.map_or_else(|| fields.required_count(COUNT, range::NUM_EXPERTS), Ok)?,
        (Some(count), Family::Llama | Family::Gemma4) => count,
        (None, _) => return Ok(None),
        (Some(_), _) => return Err(fields.invalid(COUNT, "experts of this family are not known")),
    };
    let top_k = fields.required_count("expert_used_count", range::NUM_EXPERTS)?;
    let intermediate_size = match family {
        Family::Llama | Family::GraniteMoe => "feed_forward_length",
        _ => "expert_feed_forward_length",
    };
    let size = |key, size: usize| match size {
        0 => Ok(None),
        size if range::INTERMEDIATE_SIZE.contains(&size) => Ok(Some(size)),
        _ => Err(fields.invalid(key, "their MLP is too large to be true")),
    };
    let intermediate_size = fields.required_count(intermediate_size, range::INTERMEDIATE_SIZE)?;
    let experts = Experts::new(num_experts, top_k, intermediate_size);
    Ok(Some(match family {
        Family::GptOss => Experts { bias: true, ..experts },
        Family::Gemma4 => Experts { beside_mlp: true, ..experts },
        Family::Qwen3Next | Family::Qwen35Moe => {
            let key = "expert_shared_feed_forward_length";
            let shared = fields.required_count(key, range::INTERMEDIATE_SIZE)?;
            Experts { shared_intermediate_size: Some(shared), shared_gate: true, ..experts }
        }
        Family::GraniteMoe => {
            let key = "expert_shared_feed_forward_length";
            let shared = fields.count(key, 0..=usize::MAX)?.unwrap_or(0);
            Experts { shared_intermediate_size: size(key, shared)?, ..experts }
        }
        Family::Glm4Moe => {
            let key = "expert_shared_count";
            let num_shared = fields.count(key, 0..=*range::NUM_EXPERTS.end())?.unwrap_or(0);
            let shared_intermediate_size = size(key, num_shared * intermediate_size)?;
            Experts { shared_intermediate_size, ..of_glm(fields, experts)? }
        }
        _ => experts,
    }))
}

fn of_glm(fields: &Fields, experts: Experts) -> Result<Experts, ConfigError> {
    const GATING: &str = "expert_gating_func";
    /// llama.cpp's number of it; 0 stands for none given.
    const SIGMOID: usize = 2;
    let gating = fields.count(GATING, 0..=usize::MAX)?.unwrap_or(0);
    if ![0, SIGMOID].contains(&gating) {
        return Err(fields.invalid(GATING, format!("GLM has sigmoids ({SIGMOID})")));
    }
    let group = |key| {
        let count = fields.count(key, 0..=*range::NUM_EXPERTS.end());
        count.map(|count| count.filter(|count| *count > 0).unwrap_or(1))
    };
    let groups =
        Groups { count: group("expert_group_count")?, top_k: group("expert_group_used_count")? };
    let scale = fields.number("expert_weights_scale", 0.0..=*POSITIVE.end())?;
    Ok(Experts {
        scores: ExpertScores::Sigmoid {
            groups: Some(groups).filter(|groups| groups.count != groups.top_k),
        },
        normalise: fields.flag("expert_weights_norm", false)?,
        scale: scale.filter(|scale| *scale > 0.0).unwrap_or(1.0),
        ..experts
    })
}

/// Which layers have experts.
pub(super) fn layers(
    fields: &Fields,
    family: Family,
    num_layers: usize,
) -> Result<Vec<bool>, ConfigError> {
    let dense = match family {
        Family::Glm4Moe => fields.count("leading_dense_block_count", 0..=usize::MAX)?.unwrap_or(0),
        Family::Qwen3Moe
        | Family::GptOss
        | Family::GraniteMoe
        | Family::Qwen3Next
        | Family::Qwen35Moe => 0,
        Family::Llama | Family::Gemma4
            if fields.count(COUNT, 0..=usize::MAX)?.is_some_and(|count| count > 0) =>
        {
            0
        }
        _ => num_layers,
    };
    Ok((0..num_layers).map(|layer| layer >= dense).collect())
}
