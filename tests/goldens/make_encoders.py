#!/usr/bin/env python3
"""Makes the goldens of encoders: tiny models with random weights, and what transformers makes of texts with them in
float32.

    python make_encoders.py [--out DIR] [NAME ..]        (torch, transformers 5.24, gguf)

Writes DIR/encoders/NAME/{config.json, model.safetensors, expected.safetensors} and the files that sentence-transformers
has beside them, and DIR/encoders/NAME.gguf for some. The weights are rounded to float16, as they are saved. `expected.safetensors` holds the `lengths` of
texts of token ids, the ids one after the other, where the second text of each begins (its length: it is one text), and
the `outputs`: embeddings of unit length, or the logits of a classifier.
"""

import argparse
import json
import pathlib

import gguf
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    Gemma3TextConfig,
    Gemma3TextModel,
    ModernBertConfig,
    ModernBertForSequenceClassification,
    ModernBertModel,
    PreTrainedTokenizerFast,
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
    XLMRobertaModel,
)

# Of one token and two, within a window and beyond it, at the end of a page of 64 positions and past it.
LENGTHS = [1, 2, 7, 33, 64, 65, 100]

SIZES = dict(vocab_size=128, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2)
BERT = dict(**SIZES, max_position_embeddings=128, type_vocab_size=2, pad_token_id=0)
XLM_ROBERTA = dict(
    **SIZES | dict(hidden_size=128), max_position_embeddings=130, type_vocab_size=1, pad_token_id=1,
    layer_norm_eps=1e-5,
)
# Layers 0 and 3 see all, the others eight tokens to each side.
MODERNBERT = dict(
    **SIZES | dict(num_hidden_layers=4), max_position_embeddings=128, local_attention=16, pad_token_id=0,
    bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2,
)
GEMMA = dict(
    **SIZES | dict(num_hidden_layers=3), num_key_value_heads=1, head_dim=32, max_position_embeddings=128,
    sliding_window=16, sliding_window_pattern=3, query_pre_attn_scalar=24, use_bidirectional_attention=True,
    pad_token_id=0, bos_token_id=1, eos_token_id=2,
)

# Name: config, model, pooling, widths of linear layers after it.
MODELS = {
    "bert": (BertConfig(**BERT), BertModel, "mean", []),
    "bert-cross": (BertConfig(**BERT, num_labels=1), BertForSequenceClassification, None, []),
    "xlm-roberta": (XLMRobertaConfig(**XLM_ROBERTA), XLMRobertaModel, "cls", [48]),
    "xlm-roberta-cross": (
        XLMRobertaConfig(**XLM_ROBERTA, num_labels=1), XLMRobertaForSequenceClassification, None, [],
    ),
    "modernbert": (ModernBertConfig(**MODERNBERT), ModernBertModel, "mean", []),
    "modernbert-cross": (
        ModernBertConfig(**MODERNBERT, num_labels=1, classifier_pooling="mean", classifier_bias=True),
        ModernBertForSequenceClassification, None, [],
    ),
    "embedding-gemma": (Gemma3TextConfig(**GEMMA), Gemma3TextModel, "mean", [96, 48]),
}


def randomise(model, generator):
    """Weights that matter: activations keep their size, norms are no identities."""
    for name, parameter in model.named_parameters():
        draw = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() > 1:
            # Scores of attention that differ.
            factor = 2.0 if any(part in name for part in ("query", "key", "q_proj", "k_proj", "Wqkv")) else 1.0
            draw *= factor * (0.2 if "embed" in name else parameter.shape[-1] ** -0.5)
        elif name.endswith("weight"):
            # Gemma adds 1.
            draw = 0.2 * draw + (0.0 if "Gemma" in type(model).__name__ else 1.0)
        else:
            draw *= 0.2
        parameter.data = draw.half().float()


def write_json(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n")


def modules(out, pooling, dense, width):
    """The files of sentence-transformers."""
    kinds = ["Transformer", "Pooling", *["Dense"] * len(dense), "Normalize"]
    write_json(out / "modules.json", [
        dict(idx=i, name=str(i), path=f"{i}_{kind}" if i else "", type=f"sentence_transformers.models.{kind}")
        for i, kind in enumerate(kinds)
    ])
    modes = dict(cls="cls_token", mean="mean_tokens", last="lasttoken")
    flags = {f"pooling_mode_{mode}": mode == modes[pooling] for mode in [*modes.values(), "max_tokens"]}
    write_json(out / "1_Pooling/config.json", dict(word_embedding_dimension=width) | flags)


QUERY = "Where do cats sleep?"
DOCUMENTS = ["Cats sleep on sofas, and do not work.", "The bank is in the town.", "Paris", "a dog and a cat " * 8]
WORDS = "the a and of to in is do not on cat cats dog dogs sleep sleeps where bank work town para sofa sofas house day".split()


def with_texts(model, pooling, out):
    """A tokenizer of WordPiece, and what comes of texts by it."""
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{x}" for x in letters), *".,?!'", *WORDS]
    assert len(vocab) <= SIZES["vocab_size"]
    tokenizer = Tokenizer(models.WordPiece({piece: id for id, piece in enumerate(vocab)}, unk_token="[UNK]"))
    tokenizer.add_special_tokens(vocab[:5])
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(out / "tokenizer.json"))
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]", unk_token="[UNK]"
    )
    fast.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]

    def outputs(texts, **options):
        # One at a time: nothing is padded.
        inputs = [fast(*([text] if isinstance(text, str) else text), return_tensors="pt", **options) for text in texts]
        with torch.no_grad():
            return [model(**one) for one in inputs]

    if pooling is None:
        pairs = [(QUERY, document) for document in DOCUMENTS]
        score = lambda answer: torch.sigmoid(answer.logits[0, 0]).item()
        expected = dict(query=QUERY, documents=DOCUMENTS, scores=[score(answer) for answer in outputs(pairs)])
        cut = outputs(pairs, truncation="longest_first", max_length=20)
        expected["truncated_to_20"] = [score(answer) for answer in cut]
    else:
        means = [answer.last_hidden_state[0].mean(0) for answer in outputs(DOCUMENTS)]
        cut = [answer.last_hidden_state[0].mean(0) for answer in outputs(DOCUMENTS, truncation=True, max_length=8)]
        unit = lambda vectors: [(vector / vector.norm()).tolist() for vector in vectors]
        expected = dict(texts=DOCUMENTS, embeddings=unit(means), truncated_to_8=unit(cut))
    write_json(out / "texts.json", expected)


def make(name, out):
    config, kind, pooling, widths = MODELS[name]
    generator = torch.Generator().manual_seed(len(name))
    sliding_window = config.sliding_window if name == "embedding-gemma" else None
    model = kind(config).eval()
    randomise(model, generator)
    dense = []
    for cols, rows in zip([config.hidden_size, *widths], widths):
        weight = (torch.randn(rows, cols, generator=generator) * cols**-0.5).half().float()
        # EmbeddingGemma's have no bias and no tanh.
        is_plain = name == "embedding-gemma"
        bias = None if is_plain else (0.2 * torch.randn(rows, generator=generator)).half().float()
        dense.append((weight, bias))
    model.set_attn_implementation("eager")

    ids, seconds, outputs = [], [], []
    for length in LENGTHS:
        tokens = torch.randint(3, config.vocab_size, (length,), generator=generator)
        second = length * 2 // 5 if pooling is None else length
        inputs = dict(input_ids=tokens[None])
        if name == "bert-cross":
            inputs["token_type_ids"] = (torch.arange(length) >= second).long()[None]
        with torch.no_grad():
            answer = model(**inputs)
        if pooling is None:
            output = answer.logits[0]
        else:
            hidden = answer.last_hidden_state[0]
            output = hidden.mean(0) if pooling == "mean" else hidden[0]
            for weight, bias in dense:
                output = output @ weight.T
                output = output if bias is None else torch.tanh(output + bias)
            output = output / output.norm()
        ids.append(tokens.int())
        seconds.append(second)
        outputs.append(output)

    out.mkdir(parents=True, exist_ok=True)
    save_file({key: tensor.half().contiguous() for key, tensor in model.state_dict().items()}, out / "model.safetensors")
    stated = config.to_dict() | dict(architectures=[kind.__name__], dtype="float16")
    stated = {key: value for key, value in stated.items() if not key.startswith("_")}
    if sliding_window:
        # The class halves it when it reads it.
        stated["sliding_window"] = GEMMA["sliding_window"]
    write_json(out / "config.json", stated)
    if pooling is not None:
        modules(out, pooling, dense, config.hidden_size)
    for i, (weight, bias) in enumerate(dense, 2):
        folder = out / f"{i}_Dense"
        activation = "linear.Identity" if bias is None else "activation.Tanh"
        write_json(folder / "config.json", dict(
            in_features=weight.shape[1], out_features=weight.shape[0], bias=bias is not None,
            activation_function=f"torch.nn.modules.{activation}",
        ))
        tensors = {"linear.weight": weight.half()} | ({} if bias is None else {"linear.bias": bias.half()})
        save_file(tensors, folder / "model.safetensors")
    if config.model_type == "bert":
        with_texts(model, pooling, out)
    save_file(dict(
        lengths=torch.tensor(LENGTHS, dtype=torch.int32), input_ids=torch.cat(ids),
        seconds=torch.tensor(seconds, dtype=torch.int32), outputs=torch.stack(outputs).float(),
    ), out / "expected.safetensors")
    loaded = kind.from_pretrained(out, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        key = "logits" if pooling is None else "last_hidden_state"
        inputs = dict(input_ids=ids[-1].long()[None])
        difference = (getattr(loaded(**inputs), key) - getattr(model(**inputs), key)).norm()
    assert difference < 1e-4, f"{name}: reloaded, it is off by {difference}"
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    spread = torch.stack(outputs).std(0).mean()
    print(f"{name}: {size} bytes, outputs differ by {spread:.3f}")


GGUF_KINDS = {
    "bert": gguf.MODEL_ARCH.BERT,
    "xlm-roberta-cross": gguf.MODEL_ARCH.BERT,
    "modernbert": gguf.MODEL_ARCH.MODERN_BERT,
    "embedding-gemma": gguf.MODEL_ARCH.GEMMA_EMBEDDING,
}


def make_gguf(name, out):
    """The golden as llama.cpp's conversion writes it, written with gguf-py."""
    config, _, pooling, _ = MODELS[name]
    arch = GGUF_KINDS[name]
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    path = out.parent / f"{name}.gguf"
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    is_roberta = name.startswith("xlm")
    first = config.pad_token_id + 1 if is_roberta else 0
    writer.add_context_length(config.max_position_embeddings - first)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_causal_attention(False)
    types = gguf.PoolingType
    writer.add_pooling_type(types.RANK if pooling is None else types.CLS if pooling == "cls" else types.MEAN)
    match config.model_type:
        case "gemma3_text":
            writer.add_head_count_kv(config.num_key_value_heads)
            writer.add_key_length(config.head_dim)
            writer.add_value_length(config.head_dim)
            writer.add_layer_norm_rms_eps(config.rms_norm_eps)
            writer.add_sliding_window(GEMMA["sliding_window"])
            writer.add_sliding_window_pattern(GEMMA["sliding_window_pattern"])
            writer.add_rope_freq_base(1e6)
            writer.add_rope_freq_base_swa(1e4)
            # What converts it here writes it: llama.cpp knows it by the architecture.
            writer.add_attention_scale(config.query_pre_attn_scalar**-0.5)
        case "modernbert":
            writer.add_layer_norm_eps(config.norm_eps)
            writer.add_sliding_window(config.local_attention)
            writer.add_sliding_window_pattern(3)
            writer.add_rope_freq_base(160000.0)
        case _:
            writer.add_layer_norm_eps(config.layer_norm_eps)
    writer.add_tokenizer_model("no_vocab")
    tensors = load_file(out / "model.safetensors")
    for i, folder in enumerate(sorted(out.glob("*_Dense")), 2):
        dense = load_file(folder / "model.safetensors")
        tensors[f"dense_{i}.weight"] = dense["linear.weight"]
    for key, tensor in tensors.items():
        key = key.removeprefix("roberta.").removeprefix("bert.")
        key = key.removeprefix("model.") if config.model_type == "modernbert" else key
        if key.startswith("pooler."):
            continue
        if key == "embeddings.position_embeddings.weight":
            tensor = tensor[first:]
        if config.model_type == "gemma3_text":
            key = f"model.{key}" if not key.startswith("dense") else key
            tensor = tensor.float() + 1 if key.endswith("norm.weight") else tensor
        stem, suffix = key.rsplit(".", 1)
        found = stem if stem.startswith("dense_") else names.get_name(stem)
        assert found, key
        writer.add_tensor(f"{found}.{suffix}", (tensor.float() if tensor.dim() == 1 else tensor).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(f"{path.name}: {path.stat().st_size} bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these models")
    args = parser.parse_args()
    for name in args.names or MODELS:
        make(name, args.out / "encoders" / name)
        if name in GGUF_KINDS:
            make_gguf(name, args.out / "encoders" / name)


if __name__ == "__main__":
    main()
