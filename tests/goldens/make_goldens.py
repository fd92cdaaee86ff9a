#!/usr/bin/env python3
"""Makes the goldens of the families and the kinds of RoPE: tiny models with random weights, and what transformers
computes with them in float32.

    python make_goldens.py [--out DIR] [NAME ..]        (torch, transformers 5.17)

Writes DIR/NAME/{config.json, generation_config.json, model.safetensors, expected.safetensors} for every model below. The
weights are drawn in float32 and rounded to float16, as they are saved; everything else, the frequencies of RoPE
included, stays in float32. For the models that were given (GIVEN) it writes expected.safetensors alone, from the
weights that are there and the inputs of given.safetensors.
"""

import argparse
import copy
import json
import pathlib
import re

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3Config,
    Gemma3TextConfig,
    Gemma4TextConfig,
    Glm4MoeConfig,
    GptOssConfig,
    GraniteConfig,
    GraniteMoeConfig,
    LlamaConfig,
    Ministral3Config,
    MistralConfig,
    MixtralConfig,
    Olmo2Config,
    Olmo3Config,
    Phi3Config,
    Qwen2Config,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    Qwen3NextConfig,
    SmolLM3Config,
)

NUM_TOKENS = 100
PROMPT_LEN = 20
GREEDY_LEN = 40
# A greedy token whose lead over the second is smaller could be lost to rounding: another seed then.
MIN_MARGIN = 1e-3

# Sizes that every model has unless it says otherwise.
SIZES = dict(
    vocab_size=128,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=512,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)


def rope(rope_type, rope_theta=10000.0, **parameters):
    return dict(rope_type=rope_type, rope_theta=rope_theta, **parameters)


def longrope(**parameters):
    short_factor = [1.0 + 0.05 * i for i in range(16)]
    long_factor = [1.2 + 0.3 * i for i in range(16)]
    return rope("longrope", short_factor=short_factor, long_factor=long_factor, **parameters)


FOUR_LAYERS = dict(num_hidden_layers=4, intermediate_size=64)

# Two heads: no four devices can share them, nor so few columns of an expert.
TWO_HEADS = dict(num_attention_heads=2, num_key_value_heads=1)

# Windows smaller than the sequence in every other layer, YaRN whose ramp is not rounded, sinks, biases.
GPT_OSS = dict(
    SIZES,
    intermediate_size=64,
    head_dim=16,
    num_local_experts=4,
    num_experts_per_tok=2,
    sliding_window=16,
    rope_parameters=rope(
        "yarn",
        150000.0,
        factor=8.0,
        beta_fast=32.0,
        beta_slow=1.0,
        truncate=False,
        original_max_position_embeddings=32,
    ),
)

# Windows smaller than the sequence in two of three layers, whose RoPE is their own; a scale that is not of
# the heads' width, and a width whose root is no power of two.
GEMMA3 = dict(
    SIZES,
    hidden_size=96,
    num_hidden_layers=4,
    head_dim=16,
    query_pre_attn_scalar=40,
    sliding_window=16,
    sliding_window_pattern=3,
    rope_parameters=dict(
        full_attention=rope("linear", 1e6, factor=8.0),
        sliding_attention=rope("default", 1e4),
    ),
)

# Heads that are wider, and fewer, in every other layer, where a quarter is rotated; windows smaller than the sequence
# in the others, whose RoPE is their own; a width whose root is no power of two, and a cap that most logits feel.
GEMMA4 = dict(
    SIZES,
    hidden_size=96,
    num_hidden_layers=4,
    head_dim=16,
    global_head_dim=32,
    layer_types=["sliding_attention", "full_attention"] * 2,
    sliding_window=16,
    hidden_size_per_layer_input=0,
    vocab_size_per_layer_input=128,
    final_logit_softcapping=2.0,
)

# A layer of attention between two of Gated DeltaNet, whose value heads share key heads; a quarter of a head
# is rotated.
DELTA = dict(
    SIZES,
    num_hidden_layers=3,
    head_dim=32,
    layer_types=["linear_attention", "full_attention", "linear_attention"],
    linear_key_head_dim=32,
    linear_value_head_dim=32,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    rope_parameters=rope("default", 1e7, partial_rotary_factor=0.25),
)
DELTA_EXPERTS = dict(
    num_experts=6,
    num_experts_per_tok=2,
    moe_intermediate_size=32,
    shared_expert_intermediate_size=48,
)

# Phi-3 needs heads of hidden_size / num_attention_heads: 32.
PHI3 = dict(num_attention_heads=2, num_key_value_heads=1)

MODELS = {
    # Windows smaller than the sequence, on every layer and on some.
    "mistral-window": MistralConfig(**SIZES, sliding_window=16),
    "qwen2-window": Qwen2Config(
        **SIZES, use_sliding_window=True, sliding_window=16, max_window_layers=1
    ),
    # QK-norm; heads larger than hidden_size / num_attention_heads.
    "qwen3": Qwen3Config(
        **SIZES, head_dim=32, tie_word_embeddings=True, rope_parameters=rope("default", 1e6)
    ),
    # Seven query heads share a KV head.
    "llama-group7": LlamaConfig(
        **SIZES | dict(hidden_size=56, num_attention_heads=14),
        head_dim=16,
        tie_word_embeddings=True,
    ),
    "llama-bias": LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True),
    # What eight GPUs can share, two of which have the same KV head.
    "llama-heads8": LlamaConfig(
        **SIZES
        | dict(
            vocab_size=256, intermediate_size=256, num_attention_heads=8, num_key_value_heads=4
        ),
        head_dim=16,
    ),
    # Every way to stretch the context. The wavelengths of these heads reach from 6 to 20,000 positions.
    "llama-linear": LlamaConfig(**SIZES, rope_parameters=rope("linear", factor=4.0)),
    "llama-llama3": LlamaConfig(
        **SIZES,
        rope_parameters=rope(
            "llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=64,
        ),
    ),
    "qwen2-yarn": Qwen2Config(
        **SIZES, rope_parameters=rope("yarn", factor=4.0, original_max_position_embeddings=128)
    ),
    # The whole context, and the sequence, within the training's ...
    "phi3-longrope-short": Phi3Config(
        **SIZES | PHI3 | dict(max_position_embeddings=128),
        original_max_position_embeddings=128,
        rope_parameters=longrope(factor=4.0),
    ),
    # ... and beyond it from the first prompt on.
    "phi3-longrope-long": Phi3Config(
        **SIZES | PHI3, original_max_position_embeddings=16, rope_parameters=longrope()
    ),
    "phi3-partial-rotary": Phi3Config(
        **SIZES | PHI3, rope_parameters=rope("default", partial_rotary_factor=0.75)
    ),
    # Multipliers that are far from 1, a mean of squares that is not far from `rms_norm_eps`, and an odd
    # vocabulary.
    "granite": GraniteConfig(
        **SIZES | dict(vocab_size=131),
        rms_norm_eps=0.05,
        embedding_multiplier=12.0,
        residual_multiplier=0.22,
        attention_multiplier=0.1,
        logits_scaling=6.0,
        tie_word_embeddings=True,
    ),
    # The last of four layers has no RoPE.
    "smollm3": SmolLM3Config(**SIZES | FOUR_LAYERS),
    # Norms after the branches, QK-norm over all heads.
    "olmo2": Olmo2Config(**SIZES),
    # Three layers with windows smaller than the sequence, and one with YaRN.
    "olmo3": Olmo3Config(
        **SIZES | FOUR_LAYERS,
        sliding_window=16,
        rope_parameters=dict(
            sliding_attention=rope("default", 5e5),
            full_attention=rope("yarn", 5e5, factor=4.0, original_max_position_embeddings=64),
        ),
    ),
    # Three of eight experts, whose probabilities are divided by their sum.
    "qwen3-moe": Qwen3MoeConfig(
        **SIZES,
        head_dim=16,
        num_experts=8,
        num_experts_per_tok=3,
        moe_intermediate_size=64,
        norm_topk_prob=True,
    ),
    "mixtral": MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2),
    # A layer of three without experts, whose probabilities stay as they are; experts fused in the file.
    "qwen3-moe-fused": Qwen3MoeConfig(
        **SIZES | TWO_HEADS | dict(intermediate_size=64, num_hidden_layers=3),
        head_dim=16,
        num_experts=6,
        num_experts_per_tok=3,
        moe_intermediate_size=32,
        mlp_only_layers=[1],
        norm_topk_prob=False,
    ),
    "gpt-oss": GptOssConfig(**GPT_OSS),
    # The same in MXFP4, as it is published.
    "gpt-oss-mxfp4": GptOssConfig(**GPT_OSS | TWO_HEADS),
    # Two of four groups of two experts, two shared experts, a layer without experts, half of a head rotated.
    "glm4-moe": Glm4MoeConfig(
        **SIZES | TWO_HEADS | dict(intermediate_size=64),
        head_dim=16,
        attention_bias=True,
        use_qk_norm=True,
        first_k_dense_replace=1,
        n_routed_experts=8,
        num_experts_per_tok=3,
        n_shared_experts=2,
        moe_intermediate_size=32,
        n_group=4,
        topk_group=2,
        norm_topk_prob=True,
        routed_scaling_factor=1.5,
    ),
    "granitemoe": GraniteMoeConfig(
        **SIZES | dict(intermediate_size=64),
        embedding_multiplier=12.0,
        residual_multiplier=0.22,
        attention_multiplier=0.1,
        logits_scaling=6.0,
        num_local_experts=4,
        num_experts_per_tok=2,
        tie_word_embeddings=True,
    ),
    # Caps of scores and of logits that most of them feel; a window in the first and the third layer.
    "gemma2": Gemma2Config(
        **SIZES | dict(num_hidden_layers=3),
        head_dim=32,
        query_pre_attn_scalar=32,
        sliding_window=16,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=0.5,
    ),
    # As it is published, and in the old spelling, without `layer_types`.
    "gemma3": Gemma3TextConfig(**GEMMA3),
    "gemma3-old": Gemma3TextConfig(**GEMMA3),
    # The language model of one that takes images, with heads of 256.
    "gemma3-images": Gemma3Config(
        text_config=GEMMA3
        | TWO_HEADS
        | dict(hidden_size=64, num_hidden_layers=2, head_dim=256, sliding_window_pattern=2),
        vision_config=dict(
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            image_size=56,
            patch_size=14,
        ),
        mm_tokens_per_image=4,
        boi_token_index=125,
        eoi_token_index=126,
        image_token_index=127,
    ),
    # Values that are keys before their norm and rotation, of a head alone, where there is no window.
    "gemma4": Gemma4TextConfig(**GEMMA4, attention_k_eq_v=True, num_global_key_value_heads=1),
    # The language model of one that takes images: inputs of each layer, and two layers of each kind that read the keys
    # and values of earlier ones and have MLPs twice as wide; not the layers right before them.
    "gemma4-e": Gemma4TextConfig(
        **GEMMA4
        | dict(
            num_hidden_layers=7,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"]
            + ["full_attention", "sliding_attention"] * 2,
            hidden_size=64,
            intermediate_size=64,
            hidden_size_per_layer_input=16,
            num_kv_shared_layers=4,
            use_double_wide_mlp=True,
        )
    ),
    # Experts beside the MLP, fused in the file, as they are published.
    "gemma4-moe": Gemma4TextConfig(
        **GEMMA4 | dict(num_hidden_layers=2, layer_types=GEMMA4["layer_types"][:2]),
        attention_k_eq_v=True,
        num_global_key_value_heads=1,
        enable_moe_block=True,
        num_experts=6,
        top_k_experts=2,
        moe_intermediate_size=32,
    ),
    # Projections in groups, by head of keys.
    "qwen3-next": Qwen3NextConfig(
        **DELTA | DELTA_EXPERTS | dict(num_hidden_layers=2, layer_types=DELTA["layer_types"][:2])
    ),
    # The language model of one that takes images, with layers that predict further tokens beside it.
    "qwen3.5": Qwen3_5TextConfig(
        **DELTA | TWO_HEADS | dict(num_hidden_layers=2, layer_types=DELTA["layer_types"][:2])
        | dict(linear_num_key_heads=4, linear_num_value_heads=12, tie_word_embeddings=True)
    ),
    # Experts fused in the file, as they are published.
    # As large as the others: it is one more of them.
    "qwen3.5-moe": Qwen3_5MoeTextConfig(
        **DELTA | DELTA_EXPERTS | TWO_HEADS | dict(shared_expert_intermediate_size=32)
    ),
    # Q grows six times within the sequence.
    "ministral3": Ministral3Config(
        **SIZES,
        head_dim=16,
        rope_parameters=rope(
            "yarn",
            factor=16.0,
            original_max_position_embeddings=16,
            beta_fast=4.0,
            beta_slow=0.5,
            mscale=1.0,
            mscale_all_dim=0.5,
            llama_4_scaling_beta=0.5,
        ),
    ),
}

# Fields of configurations with experts that are checked to be stable.
EXPERTS = ["n_routed_experts", "num_local_experts", "num_experts"]

# Models that were not made here; their given.safetensors was computed with frequencies of RoPE rounded to float16.
GIVEN = ["llama-gqa", "phi3", "qwen2"]

# Models whose experts are written as transformers 5 has them in memory.
FUSED = ["qwen3-moe-fused", "qwen3.5-moe"]

# Models that are written as the language model of one that takes images.
OF_IMAGES = ["qwen3.5", "qwen3.5-moe", "gemma4-e"]

# Models whose experts are written in MXFP4.
IN_MXFP4 = ["gpt-oss-mxfp4"]

# Largest relative error of a mixture of experts in 16 bits: a choice between close experts that rounding
# turns gives more. Another seed then.
MAX_ERRORS = {torch.float16: 4e-3, torch.bfloat16: 3.5e-2}

# Models in which 16 bits are amplified from layer to layer: another seed above twice these errors.
AMPLIFIES = ["gemma4-e"]

# Sigmoids of routers are closer to each other than a softmax makes them: another seed for a closer choice.
MIN_CHOICE_MARGIN = 0.05

# Models whose config.json is written in the old spelling: `rope_theta` and `rope_scaling`.
OLD_SPELLING = ["llama-linear", "phi3-longrope-long", "olmo3", "gemma3-old"]

# Models whose config.json says of kinds of layers, as published ones do, what transformers saves of each layer.
BY_KIND = ["gemma4-e", "gemma4-moe"]


ROUTERS = (
    "mlp.gate.weight",
    "block_sparse_moe.gate.weight",
    "mlp.router.weight",
    "block_sparse_moe.router.weight",
)


def random_model(config, seed, dtype):
    """A model whose scores and logits spread widely enough for a wrong mask, head or angle to show."""
    generator = torch.Generator().manual_seed(seed)
    model = AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    is_gemma4 = config.model_type == "gemma4_text"
    is_gemma = "gemma" in config.model_type and not is_gemma4
    is_delta = config.model_type.startswith(("qwen3_next", "qwen3_5"))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if is_gemma4 and name.endswith(("q_norm.weight", "k_norm.weight")):
                # Scores are not divided by the root of a head's width.
                values = 0.6 + 0.1 * noise
            elif is_gemma4 and ("norm" in name or name.endswith("scale")):
                values = 1.0 + 0.2 * noise
            elif name.endswith("norm.weight"):
                # These add the 1 themselves, but after the delta rule.
                is_offset = is_gemma or (is_delta and "linear_attn" not in name)
                values = 0.2 * noise if is_offset else 1.0 + 0.1 * noise
            elif name.endswith("A_log"):
                # Memories of some tokens, and of all.
                values = 1.5 * noise - 1.5
            elif name.endswith("bias"):
                values = 0.3 * noise
            elif name.endswith("sinks"):
                values = 1.0 + noise
            elif "embed_tokens_per_layer" in name:
                values = noise / config.hidden_size_per_layer_input**0.5
            elif "embed_tokens" in name:
                # Gemma multiplies it by the root of its width.
                gemma = 0.3 * noise / parameter.shape[1] ** 0.5
                values = gemma if is_gemma or is_gemma4 else 0.3 * noise
            elif "vision" in name or "multi_modal" in name:
                values = 0.1 * noise
            elif name.endswith("router.proj.weight"):
                # Its input is divided by the root of its width.
                values = 6.0 * noise
            elif is_gemma4 and parameter.ndim == 3:
                values = 1.5 * noise / parameter.shape[2] ** 0.5
            elif name.endswith(ROUTERS):
                # Decided enough that rounding to 16 bits chooses no expert who counts instead of another.
                values = 6.0 * noise / parameter.shape[1] ** 0.5
            else:
                values = 1.5 * noise / parameter.shape[1] ** 0.5
            if name.endswith(("gate_up_proj_bias", "down_proj_bias")):
                values = 0.3 * noise
            # Parameters alone: `model.half()` would round the frequencies of RoPE too.
            parameter.copy_(values.to(dtype).float())
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(0.3 * torch.randn(buffer.shape, generator=generator))
            elif name.endswith("layer_scalar"):
                buffer.copy_((0.7 + 0.2 * torch.randn(buffer.shape, generator=generator)).to(dtype))
    return model


def mxfp4(weight):
    """Blocks [.., n, 16] and scales [.., n] of a weight [.., 32 n], and what they stand for."""
    levels = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    blocks = weight.unflatten(-1, (-1, 32))
    exponents = blocks.abs().amax(-1, keepdim=True).clamp(min=1e-30).log2().floor() - 2
    scaled = blocks / exponents.exp2()
    codes = (scaled.abs()[..., None] - levels).abs().argmin(-1)
    values = (levels[codes] * scaled.sign() * exponents.exp2()).flatten(-2)
    codes = codes | (scaled < 0).int() << 3
    packed = codes[..., ::2] | codes[..., 1::2] << 4
    return packed.to(torch.uint8), (exponents[..., 0] + 127).to(torch.uint8), values


def quantize_experts(model):
    """Makes the matrices of experts of gpt-oss those that MXFP4 stands for; and their tensors."""
    tensors = {}
    for name, parameter in model.named_parameters():
        if name.endswith(("gate_up_proj", "down_proj")):
            blocks, scales, values = mxfp4(parameter.data.mT)
            tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
            parameter.data = values.mT.contiguous()
    return tensors


def is_stable(model, tokens, want, slack=1):
    """Whether 16 bits give about the same logits."""
    for dtype, most in MAX_ERRORS.items():
        got = logits(copy.deepcopy(model).to(dtype), tokens).float()
        if (got - want).norm() / want.norm() > slack * most:
            return False
    return True


def choice_margin(model, tokens):
    """The smallest lead of a chosen expert, or group of experts, over one that is not; of sigmoids alone."""
    inputs = []
    gates = [
        layer.mlp
        for layer in getattr(model.model, "layers", [])
        if hasattr(getattr(getattr(layer, "mlp", None), "gate", None), "e_score_correction_bias")
    ]
    hooks = [gate.register_forward_pre_hook(lambda _, x: inputs.append(x[0])) for gate in gates]
    logits(model, tokens)
    for hook in hooks:
        hook.remove()
    margin = float("inf")
    for gate, x in zip(gates, inputs):
        config = model.config
        x = x.reshape(-1, x.shape[-1])
        scores = torch.sigmoid(x @ gate.gate.weight.T.float()) + gate.gate.e_score_correction_bias
        by_group = scores.unflatten(-1, (config.n_group, -1))
        groups = by_group.topk(2, -1).values.sum(-1)
        chosen = torch.zeros_like(groups).scatter(1, groups.topk(config.topk_group, -1).indices, 1.0)
        scores = by_group.masked_fill(chosen[..., None] == 0, -1.0).flatten(1)
        for values, count in [(groups, config.topk_group), (scores, config.num_experts_per_tok)]:
            ordered = values.sort(-1, descending=True).values
            margin = min(margin, (ordered[:, count - 1] - ordered[:, count]).min().item())
    return margin


@torch.no_grad()
def logits(model, tokens):
    """Logits of every token, [tokens, vocab_size], with no cache."""
    return model(tokens[None], use_cache=False).logits[0]


def greedy(model, prompt):
    """The most likely continuation and the smallest lead of a token over the second."""
    tokens, margin = prompt, float("inf")
    for _ in range(GREEDY_LEN):
        top = logits(model, tokens)[-1].topk(2)
        margin = min(margin, (top.values[0] - top.values[1]).item())
        tokens = torch.cat([tokens, top.indices[:1]])
    return tokens[len(prompt) :], margin


def old_spelling(path):
    config = json.loads(path.read_text())
    parameters = config.pop("rope_parameters")
    if config["model_type"] == "gemma3_text":
        config.pop("layer_types")
        config["sliding_window_pattern"] = config.pop("_sliding_window_pattern")
        config["rope_local_base_freq"] = parameters["sliding_attention"]["rope_theta"]
    # OLMo 3 has the scaling of its layers without a window alone, and says `rope_type`.
    kind = "rope_type" if "full_attention" in parameters else "type"
    parameters = parameters.get("full_attention", parameters)
    config["rope_theta"] = parameters.pop("rope_theta")
    config["rope_scaling"] = {kind: parameters.pop("rope_type")} | {
        key: value
        for key, value in parameters.items()
        if key in ("factor", "short_factor", "long_factor", "original_max_position_embeddings")
        and key not in config
    }
    path.write_text(json.dumps(config, indent=2) + "\n")


def by_kind(path):
    config = json.loads(path.read_text())
    of_layer = config.pop("per_layer_config")[str(config["layer_types"].index("full_attention"))]
    config["global_head_dim"] = of_layer["head_dim"]
    config["num_global_key_value_heads"] = of_layer.get("num_key_value_heads")
    path.write_text(json.dumps(config, indent=2) + "\n")


def save(name, model, dtype, quantized, out):
    """Writes the model, its experts as `name` wants them."""
    # The bias of a choice stays in float32.
    biases = {key: tensor for key, tensor in model.named_buffers() if "score_correction" in key}
    model.to(dtype)
    for key, tensor in model.named_buffers():
        tensor.data = biases.get(key, tensor)
    model.save_pretrained(out)
    tensors = dict(model.state_dict())
    if name in FUSED:
        save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, out / "model.safetensors")
    if name in IN_MXFP4:
        for key in quantized:
            tensors.pop(key.removesuffix("_blocks").removesuffix("_scales"), None)
        save_file(tensors | quantized, out / "model.safetensors")
        config = json.loads((out / "config.json").read_text())
        config["quantization_config"] = dict(
            quant_method="mxfp4",
            modules_to_not_convert=["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"],
        )
        (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def of_images(config, out):
    """Makes the model in `out` a part of one that takes images and predicts several tokens."""
    tensors = load_file(out / "model.safetensors")
    renamed = {
        re.sub(r"^model\.(language_model\.)?", "model.language_model.", key): tensor
        for key, tensor in tensors.items()
    }
    others = ["model.visual.patch_embed.proj.bias", "mtp.norm.weight", "mtp.layers.0.mlp.up_proj.weight"]
    is_gemma = config.model_type == "gemma4_text"
    if is_gemma:
        others = ["model.audio_tower.output_proj.bias", "model.vision_tower.std_bias"]
    save_file(renamed | {key: torch.ones(8) for key in others}, out / "model.safetensors")
    text_config = json.loads((out / "config.json").read_text())
    outer = {key: text_config.pop(key) for key in ("architectures", "dtype", "transformers_version")}
    outer |= dict(
        model_type=config.model_type.removesuffix("_text"),
        text_config=text_config
        | dict(dtype=outer["dtype"])
        | ({} if is_gemma else dict(mtp_num_hidden_layers=1)),
        tie_word_embeddings=text_config["tie_word_embeddings"],
        vision_config=dict(model_type=config.model_type.replace("_text", "_vision"), depth=1),
    )
    if is_gemma:
        outer["vision_config"] |= dict(
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            head_dim=16,
            position_embedding_size=16,
        )
        outer["vision_config"].pop("depth")
        # Ids that no text has.
        outer |= {f"{kind}_token_id": 125 + i for i, kind in enumerate(["image", "video", "audio"])}
        outer |= dict(audio_config=None)
    (out / "config.json").write_text(json.dumps(outer, indent=2, sort_keys=True) + "\n")


def make(name, config, out):
    """Writes one model, and checks that what is on disk gives the logits that are written beside it."""
    for seed in range(100):
        # As published, so that transformers, which dequantises to bfloat16, rounds nothing.
        dtype = torch.bfloat16 if name in IN_MXFP4 else torch.float16
        model = random_model(config, seed, dtype)
        quantized = quantize_experts(model) if name in IN_MXFP4 else {}
        generator = torch.Generator().manual_seed(seed)
        # The last tokens of one that takes images stand for these.
        vocab_size = getattr(config, "boi_token_index", None) or config.vocab_size
        vocab_size -= 3 if name == "gemma4-e" else 0
        tokens = torch.randint(3, vocab_size, (NUM_TOKENS,), generator=generator)
        prompt = torch.randint(3, vocab_size, (PROMPT_LEN,), generator=generator)
        continuation, margin = greedy(model, prompt)
        want = logits(model, tokens)
        has_experts = any(config.to_dict().get(key) for key in EXPERTS)
        is_decided = choice_margin(model, torch.cat([prompt, continuation])) > MIN_CHOICE_MARGIN
        is_safe = is_decided and (not has_experts or is_stable(model, tokens, want))
        is_safe = is_safe and (name not in AMPLIFIES or is_stable(model, tokens, want, slack=2))
        if is_safe and has_experts and hasattr(config, "linear_num_value_heads"):
            # A state keeps what a turned choice has made.
            whole = torch.cat([prompt, continuation])
            is_safe = is_stable(model, whole, logits(model, whole))
        if margin > MIN_MARGIN and is_safe:
            break
    else:
        raise SystemExit(f"{name}: no seed has a greedy margin over {MIN_MARGIN}")

    out.mkdir(parents=True, exist_ok=True)
    save(name, model, dtype, quantized, out)
    if name in OLD_SPELLING:
        old_spelling(out / "config.json")
    if name in BY_KIND:
        by_kind(out / "config.json")
    if name in OF_IMAGES:
        of_images(config, out)
    loaded = AutoModelForCausalLM.from_pretrained(
        out, dtype=torch.float32, attn_implementation="eager"
    )
    # Float already, but for MXFP4.
    difference = (logits(loaded.eval().float(), tokens) - want).norm() / want.norm()
    assert difference < 1e-6, f"{name}: reloaded, it is off by {difference}"
    expected = dict(
        input_ids=tokens.int(),
        logits=want,
        greedy_prompt=prompt.int(),
        greedy_tokens=continuation.int(),
    )
    save_file(expected, out / "expected.safetensors")
    num_bytes = sum(file.stat().st_size for file in out.iterdir())
    print(f"{name}: seed {seed}, smallest greedy margin {margin:.3f}, {num_bytes} bytes")


def restate(name, out):
    """Writes what transformers computes in float32, frequencies of RoPE included, for a model that was given."""
    given = load_file(out / "given.safetensors")
    model = AutoModelForCausalLM.from_pretrained(
        out, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    want = logits(model, given["input_ids"].long())
    continuation, margin = greedy(model, given["greedy_prompt"].long())
    assert torch.equal(continuation.int(), given["greedy_tokens"]), name
    save_file(given | dict(logits=want), out / "expected.safetensors")
    difference = (given["logits"] - want).norm() / want.norm()
    print(f"{name}: given logits differ by {difference:.2e}, smallest greedy margin {margin:.3f}")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these models")
    args = parser.parse_args()
    for name in args.names or [*MODELS, *GIVEN]:
        if name in GIVEN:
            restate(name, args.out / name)
        else:
            make(name, MODELS[name], args.out / name)


if __name__ == "__main__":
    main()
