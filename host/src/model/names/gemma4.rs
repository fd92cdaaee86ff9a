//! Names of the tensors that only Gemma 4 has.

use crate::model::{Config, Experts, PerLayerInputs};

/// Names of such tensors in one kind of checkpoint; they take `.weight` but where it says
/// otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gemma4Names {
    /// The whole name of what the residual stream is multiplied with after a layer.
    pub scalar: &'static str,
    /// The table of the inputs of all layers; its name and the next two are the model's.
    pub inputs: &'static str,
    /// What projects the embedding to them.
    pub input_projection: &'static str,
    /// The norm of that.
    pub input_norm: &'static str,
    /// What the input of a layer is gated by.
    pub input_gate: &'static str,
    /// The projection of the gated.
    pub input_out: &'static str,
    /// The norm of that.
    pub input_post_norm: &'static str,
    /// The norm after an MLP that has experts beside it.
    pub beside_experts_post_norm: &'static str,
    /// The norm before the experts.
    pub experts_norm: &'static str,
    /// The norm after them.
    pub experts_post_norm: &'static str,
    /// The whole name of the weight of the router's norm.
    pub router_scale: &'static str,
    /// The whole name of what the weights of experts are multiplied with.
    pub expert_scales: &'static str,
}

impl Gemma4Names {
    /// The tensors of a layer with their shapes, outermost dimension first.
    pub fn of_layer(&self, config: &Config, has_experts: bool) -> Vec<(String, Vec<usize>)> {
        let hidden = config.hidden_size;
        let mut tensors = Vec::new();
        let mut push = |name: String, shape: &[usize]| tensors.push((name, shape.to_vec()));
        let weight = |stem: &str| format!("{stem}.weight");
        if let Some(PerLayerInputs { width, .. }) = config.per_layer_inputs {
            push(weight(self.input_gate), &[width, hidden]);
            push(weight(self.input_out), &[hidden, width]);
            push(weight(self.input_post_norm), &[hidden]);
        }
        if let Some(Experts { num_experts, beside_mlp: true, .. }) = config.experts
            && has_experts
        {
            for stem in [self.beside_experts_post_norm, self.experts_norm, self.experts_post_norm] {
                push(weight(stem), &[hidden]);
            }
            push(self.router_scale.to_owned(), &[hidden]);
            push(self.expert_scales.to_owned(), &[num_experts]);
        }
        if config.scales_layers {
            push(self.scalar.to_owned(), &[1]);
        }
        tensors
    }

    /// The tensors of the model, likewise.
    pub fn of_model(&self, config: &Config) -> Vec<(String, Vec<usize>)> {
        let Some(PerLayerInputs { vocab_size, width }) = config.per_layer_inputs else {
            return Vec::new();
        };
        let all = width * config.num_layers();
        [
            (self.inputs, vec![vocab_size, all]),
            (self.input_projection, vec![all, config.hidden_size]),
            (self.input_norm, vec![width]),
        ]
        .map(|(stem, shape)| (format!("{stem}.weight"), shape))
        .to_vec()
    }
}

pub(super) const HF_GEMMA4: Gemma4Names = Gemma4Names {
    scalar: "layer_scalar",
    inputs: "embed_tokens_per_layer",
    input_projection: "per_layer_model_projection",
    input_norm: "per_layer_projection_norm",
    input_gate: "per_layer_input_gate",
    input_out: "per_layer_projection",
    input_post_norm: "post_per_layer_input_norm",
    beside_experts_post_norm: "post_feedforward_layernorm_1",
    experts_norm: "pre_feedforward_layernorm_2",
    experts_post_norm: "post_feedforward_layernorm_2",
    router_scale: "router.scale",
    expert_scales: "router.per_expert_scale",
};

pub(super) const GGUF_GEMMA4: Gemma4Names = Gemma4Names {
    scalar: "layer_output_scale.weight",
    inputs: "per_layer_token_embd",
    input_projection: "per_layer_model_proj",
    input_norm: "per_layer_proj_norm",
    input_gate: "inp_gate",
    input_out: "proj",
    input_post_norm: "post_norm",
    beside_experts_post_norm: "post_ffw_norm_1",
    experts_norm: "pre_ffw_norm_2",
    experts_post_norm: "post_ffw_norm_2",
    router_scale: "ffn_gate_inp.scale",
    expert_scales: "ffn_down_exps.scale",
};
