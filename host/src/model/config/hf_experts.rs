//! What config.json says of experts, and of the layers that have them.

use super::fields::{Fields, POSITIVE};
use super::{ConfigError, ExpertScores, Experts, Family, gemma4, range};
use crate::plan::Groups;

/// The experts of a family that has them.
pub(super) fn experts(fields: &Fields, family: Family) -> Result<Option<Experts>, ConfigError> {
    let num_experts = match family {
        Family::Gemma4 => return gemma4::hf_experts(fields),
        Family::Qwen3Next | Family::Qwen35Moe => "num_experts",
        Family::Qwen3Moe if !fields.has("num_local_experts") => "num_experts",
        // As transformers 5 saves both.
        Family::Qwen3Moe | Family::Mixtral | Family::GptOss | Family::GraniteMoe => {
            "num_local_experts"
        }
        Family::Glm4Moe if !fields.has("n_routed_experts") => "num_local_experts",
        Family::Glm4Moe => "n_routed_experts",
        _ => return Ok(None),
    };
    let intermediate_size = match family {
        Family::Qwen3Moe | Family::Glm4Moe | Family::Qwen3Next | Family::Qwen35Moe => {
            "moe_intermediate_size"
        }
        _ => "intermediate_size",
    };
    let experts = Experts::new(
        fields.required_count(num_experts, range::NUM_EXPERTS)?,
        fields.required_count("num_experts_per_tok", range::NUM_EXPERTS)?,
        fields.required_count(intermediate_size, range::INTERMEDIATE_SIZE)?,
    );
    Ok(Some(match family {
        // transformers' class has false, which no published model takes.
        Family::Qwen3Moe => Experts { normalise: fields.flag("norm_topk_prob", false)?, ..experts },
        Family::Qwen3Next => Experts {
            normalise: fields.flag("norm_topk_prob", true)?,
            ..with_shared(fields, experts)?
        },
        Family::Qwen35Moe => with_shared(fields, experts)?,
        Family::GptOss => Experts { bias: true, ..experts },
        Family::Glm4Moe => of_glm(fields, experts)?,
        // The softmax of the chosen logits is that of all, divided by the sum of the chosen.
        _ => experts,
    }))
}

/// With the shared expert, which has a gate.
fn with_shared(fields: &Fields, experts: Experts) -> Result<Experts, ConfigError> {
    let size =
        fields.required_count("shared_expert_intermediate_size", range::INTERMEDIATE_SIZE)?;
    Ok(Experts { shared_intermediate_size: Some(size), shared_gate: true, ..experts })
}

fn of_glm(fields: &Fields, experts: Experts) -> Result<Experts, ConfigError> {
    let group = |field| fields.count(field, range::NUM_EXPERTS).map(|count| count.unwrap_or(1));
    let groups = Groups { count: group("n_group")?, top_k: group("topk_group")? };
    let num_shared = fields.count("n_shared_experts", 0..=*range::NUM_EXPERTS.end())?.unwrap_or(1);
    let shared = experts.intermediate_size * num_shared;
    if shared > *range::INTERMEDIATE_SIZE.end() {
        return Err(fields.invalid("n_shared_experts", "their MLP is too large to be true"));
    }
    Ok(Experts {
        scores: ExpertScores::Sigmoid {
            // All of one group, or of all.
            groups: Some(groups).filter(|groups| groups.count != groups.top_k),
        },
        normalise: fields.flag("norm_topk_prob", true)?,
        scale: fields.number("routed_scaling_factor", POSITIVE)?.unwrap_or(1.0),
        shared_intermediate_size: Some(shared).filter(|size| *size > 0),
        ..experts
    })
}

/// Which layers have experts.
pub(super) fn layers(
    fields: &Fields,
    family: Family,
    num_layers: usize,
) -> Result<Vec<bool>, ConfigError> {
    const DENSE: &str = "mlp_only_layers";
    match family {
        Family::Mixtral | Family::GptOss | Family::GraniteMoe | Family::Qwen35Moe => {
            Ok(vec![true; num_layers])
        }
        Family::Glm4Moe => {
            let dense = fields.count("first_k_dense_replace", 0..=usize::MAX)?.unwrap_or(1);
            Ok((0..num_layers).map(|layer| layer >= dense).collect())
        }
        Family::Qwen3Moe | Family::Qwen3Next => {
            let step = fields.count("decoder_sparse_step", 1..=usize::MAX)?.unwrap_or(1);
            let dense = fields.counts(DENSE)?.unwrap_or_default();
            if dense.iter().any(|layer| *layer >= num_layers) {
                return Err(fields.invalid(DENSE, format!("there are {num_layers} layers")));
            }
            let has_experts =
                |layer: usize| (layer + 1).is_multiple_of(step) && !dense.contains(&layer);
            Ok((0..num_layers).map(has_experts).collect())
        }
        Family::Gemma4 => Ok(vec![gemma4::hf_experts(fields)?.is_some(); num_layers]),
        _ => Ok(vec![false; num_layers]),
    }
}
