#!/usr/bin/env python3
"""Turns some goldens into GGUF files, as llama.cpp's convert_hf_to_gguf.py does: names, permuted rows of Q and K,
metadata, RoPE factors. Written with gguf-py, and so independent of this project.

    python make_gguf.py [NAME ..]        (gguf, numpy, safetensors, torch; after make_goldens.py)

Writes gguf/NAME.gguf; `expected.safetensors` of the golden holds for it too.
"""

import json
import math
import pathlib
import sys

import gguf
import numpy as np
import torch
from safetensors.torch import load_file

HERE = pathlib.Path(__file__).parent
NAMES = [
    "llama-bias",
    "llama-llama3",
    "qwen2-yarn",
    "qwen3",
    "phi3-longrope-long",
    "granite",
    "smollm3",
    "olmo2",
    "olmo3",
    "ministral3",
    "qwen3-moe",
    "mixtral",
    "gpt-oss",
    "gpt-oss-mxfp4",
    "glm4-moe",
    "granitemoe",
    "gemma2",
    "gemma3",
    "gemma4",
    "gemma4-e",
    "gemma4-moe",
    "qwen3-next",
    "qwen3.5",
    "qwen3.5-moe",
]
ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "phi3": gguf.MODEL_ARCH.PHI3,
    "granite": gguf.MODEL_ARCH.GRANITE,
    "smollm3": gguf.MODEL_ARCH.SMOLLM3,
    "olmo2": gguf.MODEL_ARCH.OLMO2,
    "olmo3": gguf.MODEL_ARCH.OLMO2,
    "ministral3": gguf.MODEL_ARCH.MISTRAL3,
    "qwen3_moe": gguf.MODEL_ARCH.QWEN3MOE,
    "mixtral": gguf.MODEL_ARCH.LLAMA,
    "gpt_oss": gguf.MODEL_ARCH.GPT_OSS,
    "glm4_moe": gguf.MODEL_ARCH.GLM4_MOE,
    "granitemoe": gguf.MODEL_ARCH.GRANITE_MOE,
    "gemma2": gguf.MODEL_ARCH.GEMMA2,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
    "gemma4_text": gguf.MODEL_ARCH.GEMMA4,
    "qwen3_next": gguf.MODEL_ARCH.QWEN3NEXT,
    "qwen3_5_text": gguf.MODEL_ARCH.QWEN35,
    "qwen3_5_moe_text": gguf.MODEL_ARCH.QWEN35MOE,
}
ROUTERS = (
    ".mlp.gate.weight",
    "_moe.gate.weight",
    "_moe.router.layer.weight",
    ".mlp.router.weight",
    ".router.proj.weight",
)
# Those whose rows of Q and K are permuted.
PERMUTED = ["llama", "granite", "smollm3", "ministral3", "mixtral", "granitemoe"]


def permute(tensor, num_heads):
    """Rows of Q and K for interleaved RoPE: `i, i + head_dim / 2` of each head become neighbours."""
    halves = tensor.reshape(num_heads, 2, -1, *tensor.shape[1:])
    return halves.swapaxes(1, 2).reshape(tensor.shape)


def llama3_factors(rope, head_dim):
    """What divides each frequency, `rope_freqs.weight`."""
    frequencies = rope["rope_theta"] ** -(np.arange(0, head_dim, 2) / head_dim)
    context = rope["original_max_position_embeddings"]
    factors = []
    for wavelength in 2 * math.pi / frequencies:
        if wavelength < context / rope["high_freq_factor"]:
            factors.append(1.0)
        elif wavelength > context / rope["low_freq_factor"]:
            factors.append(rope["factor"])
        else:
            low, high = rope["low_freq_factor"], rope["high_freq_factor"]
            smooth = (context / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, dtype=np.float32)


def add_rope(writer, config, head_dim):
    rope = config.get("rope_parameters") or config["rope_scaling"]
    if "full_attention" in rope:
        writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
        rope = rope["full_attention"]
    writer.add_rope_freq_base(rope.get("rope_theta", config.get("rope_theta")))
    match rope.get("rope_type", rope.get("type")):
        case "proportional":
            rotated = int(head_dim * rope["partial_rotary_factor"] / 2)
            factors = [1.0] * rotated + [1e30] * (head_dim // 2 - rotated)
            writer.add_tensor("rope_freqs.weight", np.array(factors, dtype=np.float32))
        case "linear":
            writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
            writer.add_rope_scaling_factor(rope["factor"])
        case "llama3":
            writer.add_tensor("rope_freqs.weight", llama3_factors(rope, head_dim))
        case "yarn":
            writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
            writer.add_rope_scaling_factor(rope["factor"])
            writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
            if "beta_fast" in rope:
                writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
                writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
        case "longrope":
            original = config["original_max_position_embeddings"]
            extension = config["max_position_embeddings"] / original
            writer.add_rope_scaling_orig_ctx_len(original)
            writer.add_rope_scaling_attn_factors(
                math.sqrt(1 + math.log(extension) / math.log(original))
            )
            for kind in ("long", "short"):
                factors = np.array(rope[f"{kind}_factor"], dtype=np.float32)
                writer.add_tensor(f"rope_factors_{kind}.weight", factors)


def add_family(writer, config):
    match config["model_type"]:
        case "phi3":
            writer.add_sliding_window(config["sliding_window"] or 0)
        case "granite" | "granitemoe":
            writer.add_attention_scale(config["attention_multiplier"])
            writer.add_embedding_scale(config["embedding_multiplier"])
            writer.add_residual_scale(config["residual_multiplier"])
            writer.add_logit_scale(config["logits_scaling"])
            if config["model_type"] == "granitemoe":
                writer.add_expert_count(config["num_local_experts"])
                writer.add_expert_used_count(config["num_experts_per_tok"])
        case "gpt_oss":
            writer.add_sliding_window(config["sliding_window"])
            writer.add_expert_count(config["num_local_experts"])
            writer.add_expert_used_count(config["num_experts_per_tok"])
            writer.add_expert_feed_forward_length(config["intermediate_size"])
        case "glm4_moe":
            writer.add_expert_count(config["n_routed_experts"])
            writer.add_expert_used_count(config["num_experts_per_tok"])
            writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
            writer.add_expert_shared_count(config["n_shared_experts"])
            writer.add_leading_dense_block_count(config["first_k_dense_replace"])
            writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
            writer.add_expert_weights_scale(config["routed_scaling_factor"])
            writer.add_expert_weights_norm(config["norm_topk_prob"])
            writer.add_expert_group_count(config["n_group"])
            writer.add_expert_group_used_count(config["topk_group"])
        case "olmo3":
            writer.add_sliding_window(config["sliding_window"])
            writer.add_sliding_window_pattern(
                [kind == "sliding_attention" for kind in config["layer_types"]]
            )
        case "gemma2":
            writer.add_sliding_window(config["sliding_window"])
            writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
            writer.add_final_logit_softcapping(config["final_logit_softcapping"])
        case "gemma3_text":
            writer.add_sliding_window(config["sliding_window"])
            # Not written by llama.cpp, which knows both by the architecture.
            writer.add_attention_scale(config["query_pre_attn_scalar"] ** -0.5)
            writer.add_sliding_window_pattern(
                [kind == "sliding_attention" for kind in config["layer_types"]]
            )
        case "gemma4_text":
            slides = [kind == "sliding_attention" for kind in config["layer_types"]]
            writer.add_sliding_window(config["sliding_window"])
            writer.add_sliding_window_pattern(slides)
            writer.add_final_logit_softcapping(config["final_logit_softcapping"])
            writer.add_shared_kv_layers(config["num_kv_shared_layers"])
            writer.add_embedding_length_per_layer_input(config["hidden_size_per_layer_input"])
            writer.add_key_length_swa(config["head_dim"])
            writer.add_value_length_swa(config["head_dim"])
            writer.add_rope_dimension_count_swa(config["head_dim"])
            if config["use_double_wide_mlp"]:
                first = config["num_hidden_layers"] - config["num_kv_shared_layers"]
                width = config["intermediate_size"]
                writer.add_feed_forward_length([width * (1 + (i >= first)) for i in range(len(slides))])
            if config["num_global_key_value_heads"]:
                heads = [config["num_global_key_value_heads"], config["num_key_value_heads"]]
                writer.add_head_count_kv([heads[slide] for slide in slides])
            if config["enable_moe_block"]:
                writer.add_expert_count(config["num_experts"])
                writer.add_expert_used_count(config["top_k_experts"])
                writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
        case "qwen3_moe":
            writer.add_expert_count(config["num_local_experts"])
            writer.add_expert_used_count(config["num_experts_per_tok"])
            writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
        case "qwen3_next" | "qwen3_5_text" | "qwen3_5_moe_text":
            heads, width = config["linear_num_value_heads"], config["linear_value_head_dim"]
            writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
            writer.add_ssm_state_size(config["linear_key_head_dim"])
            writer.add_ssm_group_count(config["linear_num_key_heads"])
            writer.add_ssm_time_step_rank(heads)
            writer.add_ssm_inner_size(heads * width)
            writer.add_uint32(
                f"{writer.arch}.full_attention_interval", config["layer_types"].index("full_attention") + 1
            )
            if "num_experts" in config:
                writer.add_expert_count(config["num_experts"])
                writer.add_expert_used_count(config["num_experts_per_tok"])
                writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
                writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
        case "mixtral":
            writer.add_expert_count(config["num_local_experts"])
            writer.add_expert_used_count(config["num_experts_per_tok"])
        case "ministral3":
            rope = config["rope_parameters"]
            writer.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
            writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])


def mxfp4(blocks, scales):
    """Blocks of GGUF, [.., rows, 17 n], of those of safetensors: halves of a block in place of neighbours."""
    low, high = blocks & 15, blocks >> 4
    codes = torch.stack([low, high], dim=-1).flatten(-2)
    nibbles = codes[..., :16] | codes[..., 16:] << 4
    return torch.cat([scales[..., None], nibbles], dim=-1).flatten(-2)


def tiled(tensor, config, dim):
    """Heads of values, of `dim`, in the order in which those that share a head of keys are apart."""
    k_heads, heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    grouped = tensor.unflatten(dim, (k_heads, heads // k_heads, -1))
    dim %= tensor.ndim
    return grouped.transpose(dim, dim + 1).flatten(dim, dim + 2)


def delta(tensors, config):
    """The tensors of the language model, those of Gated DeltaNet as llama.cpp has them."""
    k_heads = config["linear_num_key_heads"]
    k_width = k_heads * config["linear_key_head_dim"]
    shared = config["linear_num_value_heads"] // k_heads
    is_next = config["model_type"] == "qwen3_next"
    order = (lambda tensor, dim: tensor) if is_next else (lambda tensor, dim: tiled(tensor, config, dim))
    ordered = lambda tensor: torch.cat([tensor[: 2 * k_width], order(tensor[2 * k_width :], 0)])
    for source, tensor in tensors.items():
        if source.startswith(("model.visual.", "mtp.")):
            continue
        source = source.replace("model.language_model.", "model.")
        layer, _, stem = source.partition(".linear_attn.")
        linear = f"{layer}.linear_attn"
        if stem == "in_proj_qkvz.weight":
            groups = tensor.unflatten(0, (k_heads, -1))
            k, v = config["linear_key_head_dim"], shared * config["linear_value_head_dim"]
            q, k, v, z = [part.flatten(0, 1) for part in groups.split([k, k, v, v], dim=1)]
            yield f"{linear}.in_proj_qkv.weight", torch.cat([q, k, v])
            yield f"{linear}.in_proj_z.weight", z
        elif stem == "in_proj_qkv.weight":
            yield source, ordered(tensor)
        elif stem in ("in_proj_z.weight", "in_proj_a.weight", "in_proj_b.weight"):
            yield source, order(tensor, 0)
        elif stem == "conv1d.weight":
            yield source, ordered(tensor[:, 0]).float()
        elif stem == "A_log":
            yield source, -order(tensor.float(), 0).exp()
        elif stem == "dt_bias":
            yield f"{linear}.dt_proj.bias", order(tensor, 0)
        elif stem == "out_proj.weight":
            yield source, order(tensor, 1)
        elif source.endswith("shared_expert_gate.weight"):
            yield source, tensor[0]
        elif source.endswith("mlp.experts.gate_up_proj"):
            gate, up = tensor.chunk(2, dim=1)
            yield source.replace("gate_up_proj", "gate_proj.weight"), gate
            yield source.replace("gate_up_proj", "up_proj.weight"), up
        elif source.endswith("mlp.experts.down_proj"):
            yield f"{source}.weight", tensor
        elif source.endswith("norm.weight") and not stem:
            yield source, tensor.float() + 1
        else:
            yield source, tensor


def gemma4(tensors):
    """The tensors of the language model, by names that gguf-py knows."""
    for source, tensor in tensors.items():
        if source.startswith(("model.vision_tower.", "model.audio_tower.")):
            continue
        source = source.replace("model.language_model.", "model.")
        if source.endswith("layer_scalar") or ".experts." in source:
            source += ".weight"
        yield source, tensor


def unfused(tensors):
    """The tensors, gate and up of experts apart, and [.., out, in]."""
    for source, tensor in tensors.items():
        layer, _, stem = source.partition(".mlp.experts.")
        moe = f"{layer}.mlp.experts"
        match stem:
            case "gate_up_proj":
                yield f"{moe}.gate_proj.weight", tensor.mT[:, ::2]
                yield f"{moe}.up_proj.weight", tensor.mT[:, 1::2]
            case "down_proj":
                yield f"{moe}.down_proj.weight", tensor.mT
            case "gate_up_proj_blocks":
                quantized = mxfp4(tensor, tensors[source.replace("blocks", "scales")])
                yield f"{moe}.gate_proj.weight", quantized[:, ::2]
                yield f"{moe}.up_proj.weight", quantized[:, 1::2]
            case "down_proj_blocks":
                scales = tensors[source.replace("blocks", "scales")]
                yield f"{moe}.down_proj.weight", mxfp4(tensor, scales)
            case "gate_up_proj_bias":
                yield f"{moe}.gate_proj.bias", tensor[:, ::2]
                yield f"{moe}.up_proj.bias", tensor[:, 1::2]
            case "down_proj_bias":
                yield f"{moe}.down_proj.bias", tensor
            case "gate_up_proj_scales" | "down_proj_scales":
                pass
            case _ if source.endswith("input_linear.weight"):
                gate, up = tensor.chunk(2, dim=1)
                layer = source.removesuffix(".block_sparse_moe.input_linear.weight")
                yield f"{layer}.mlp.experts.gate_proj.weight", gate
                yield f"{layer}.mlp.experts.up_proj.weight", up
            case _ if source.endswith("sinks"):
                yield f"{source}.weight", tensor
            case _:
                yield source.replace("e_score_correction_bias", "e_score_correction.bias"), tensor


def stacked(tensors):
    """The tensors, those of experts (`experts.3.NAME`) as one of three dimensions (`experts.NAME`)."""
    experts = {}
    for source, tensor in unfused(tensors):
        layer, _, of_expert = source.partition(".experts.")
        number, _, stem = of_expert.partition(".")
        if not number.isdigit():
            yield source, tensor
            continue
        experts.setdefault(f"{layer}.experts.{stem}", {})[int(number)] = tensor
    for source, of_experts in experts.items():
        yield source, torch.stack([of_experts[number] for number in sorted(of_experts)])


def convert(name):
    config = json.loads((HERE / name / "config.json").read_text())
    config |= config.get("text_config", {})
    family = config["model_type"]
    num_heads, num_layers = config["num_attention_heads"], config["num_hidden_layers"]
    num_kv_heads = config["num_key_value_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // num_heads
    if family == "gemma4_text":
        # As published configurations say.
        layers = config.get("per_layer_config", {}).values()
        for key, of_layer in [("global_head_dim", "head_dim"), ("num_global_key_value_heads", "num_key_value_heads")]:
            config.setdefault(key, next((layer.get(of_layer) for layer in layers), None))
        head_dim = config["global_head_dim"]

    (HERE / "gguf").mkdir(exist_ok=True)
    architecture = ARCHITECTURES[family]
    writer = gguf.GGUFWriter(
        HERE / "gguf" / f"{name}.gguf", gguf.MODEL_ARCH_NAMES[architecture]
    )
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    if not config.get("use_double_wide_mlp"):
        writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(num_layers)
    writer.add_head_count(num_heads)
    if not config.get("num_global_key_value_heads"):
        writer.add_head_count_kv(num_kv_heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    rotary = config.get("partial_rotary_factor", 1.0)
    if "linear_num_key_heads" in config:
        rotary = config["rope_parameters"]["partial_rotary_factor"]
    writer.add_rope_dimension_count(int(head_dim * rotary))
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    add_family(writer, config)
    writer.add_eos_token_id(config["eos_token_id"])
    add_rope(writer, config, head_dim)

    names = gguf.get_tensor_name_map(architecture, num_layers)
    tensors = load_file(HERE / name / "model.safetensors")
    if "linear_num_key_heads" in config:
        tensors = dict(delta(tensors, config))
    if family == "gemma4_text":
        tensors = dict(gemma4(tensors))
    for source, tensor in stacked(tensors):
        if family in PERMUTED and "q_proj" in source:
            tensor = permute(tensor, num_heads)
        if family in PERMUTED and "k_proj" in source:
            tensor = permute(tensor, num_kv_heads)
        if family.startswith(("gemma2", "gemma3")) and source.endswith("norm.weight"):
            tensor = tensor.float() + 1
        if tensor.ndim == 1 or "conv1d" in source or source.endswith(ROUTERS + (".bias",)):
            tensor = tensor.float()
        kind = {torch.uint8: gguf.GGMLQuantizationType.MXFP4, torch.bfloat16: gguf.GGMLQuantizationType.BF16}
        kind = kind.get(tensor.dtype)
        bytes_or_numbers = tensor.contiguous().view(torch.uint8) if kind else tensor.contiguous()
        target = names.get_name(source, try_suffixes=(".weight", ".bias"))
        if source.endswith(".router.scale"):
            target = names.get_name(source.replace("scale", "proj")) + ".scale"
        if source.endswith(".per_expert_scale"):
            target = names.get_name(source.replace("router.per_expert_scale", "experts.down_proj")) + ".scale"
        writer.add_tensor(target, bytes_or_numbers.numpy(), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    for name in sys.argv[1:] or NAMES:
        convert(name)
