"""What a GGUF calls a model's parts, and the config and names MLX-LM gives the same parts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.errors import ModelError
from engine.models.gguf import INSTEAD, REMEDY, GgufFile
from engine.models.gguf_rope import ROPE_FACTORS, rope_scaling

LAYER = re.compile(r"blk\.(\d+)\.(.+)")

ATTENTION = {
    "attn_norm.weight": ("input_layernorm.weight", ("hidden",)),
    "attn_q.weight": ("self_attn.q_proj.weight", ("query", "hidden")),
    "attn_k.weight": ("self_attn.k_proj.weight", ("key", "hidden")),
    "attn_v.weight": ("self_attn.v_proj.weight", ("key", "hidden")),
    "attn_output.weight": ("self_attn.o_proj.weight", ("hidden", "query")),
}
FEED_FORWARD = {
    "ffn_norm.weight": ("post_attention_layernorm.weight", ("hidden",)),
    "ffn_gate.weight": ("mlp.gate_proj.weight", ("inner", "hidden")),
    "ffn_up.weight": ("mlp.up_proj.weight", ("inner", "hidden")),
    "ffn_down.weight": ("mlp.down_proj.weight", ("hidden", "inner")),
}
ATTENTION_BIASES = {
    "attn_q.bias": ("self_attn.q_proj.bias", ("query",)),
    "attn_k.bias": ("self_attn.k_proj.bias", ("key",)),
    "attn_v.bias": ("self_attn.v_proj.bias", ("key",)),
}
HEAD_NORMS = {
    "attn_q_norm.weight": ("self_attn.q_norm.weight", ("head",)),
    "attn_k_norm.weight": ("self_attn.k_norm.weight", ("head",)),
}


@dataclass(frozen=True, slots=True)
class Architecture:
    """One `general.architecture`.

    Args:
        model_type: MLX-LM's name for it.
        layer: GGUF name in a layer -> (MLX-LM name in a layer, axes by name).
        has_permuted_rope: llama.cpp stores q and k rows in interleaved rotary order.
    """

    model_type: str
    layer: Mapping[str, tuple[str, tuple[str, ...]]]
    has_permuted_rope: bool = False


ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture("llama", ATTENTION | FEED_FORWARD, has_permuted_rope=True),
    "qwen2": Architecture("qwen2", ATTENTION | ATTENTION_BIASES | FEED_FORWARD),
    "qwen3": Architecture("qwen3", ATTENTION | HEAD_NORMS | FEED_FORWARD),
}


@dataclass(frozen=True, slots=True)
class Part:
    """One array of the model: its name in the GGUF, its name in MLX-LM, and its shape."""

    source: str
    target: str
    shape: tuple[int, ...]
    rotary_heads: int = 0


def architecture(file: GgufFile) -> Architecture:
    """Return the file's architecture; an unknown one raises ModelError with those that exist."""
    name = file.value("general.architecture", str)
    if name not in ARCHITECTURES:
        raise ModelError(
            f"{file.path}: GGUF architecture {name!r} is not supported "
            f"(known: {', '.join(ARCHITECTURES)}); {INSTEAD}"
        )
    return ARCHITECTURES[name]


def model_config(file: GgufFile) -> dict[str, Any]:
    """Return the config.json contents that describe the file's model to MLX-LM."""
    prefix = file.value("general.architecture", str)
    kind = architecture(file)

    def number(key: str, default: int | None = None) -> int:
        value: int = file.value(f"{prefix}.{key}", int, default)
        if value < 1:
            raise ModelError(f"{file.path}: GGUF metadata {prefix}.{key} is {value}; {REMEDY}")
        return value

    if file.metadata.get(f"{prefix}.expert_count"):
        raise ModelError(f"{file.path}: mixture-of-experts GGUF files are not supported; {INSTEAD}")
    heads = number("attention.head_count")
    hidden = number("embedding_length")
    head_dim = number("attention.key_length", hidden // heads or 1)
    rotary = number("rope.dimension_count", head_dim)
    if rotary != head_dim:
        raise ModelError(
            f"{file.path}: {rotary} of {head_dim} rotary dimensions are not supported; {INSTEAD}"
        )
    theta = file.value(f"{prefix}.rope.freq_base", float, 10000.0)
    return {
        "model_type": kind.model_type,
        "hidden_size": hidden,
        "num_hidden_layers": number("block_count"),
        "intermediate_size": number("feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": number("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "rms_norm_eps": file.value(f"{prefix}.attention.layer_norm_rms_epsilon", float),
        "rope_theta": theta,
        "rope_scaling": rope_scaling(file, head_dim, theta),
        "max_position_embeddings": number("context_length"),
        "vocab_size": _embedding_rows(file),
        "tie_word_embeddings": "output.weight" not in file.tensors,
    }


def parts(file: GgufFile, config: Mapping[str, Any]) -> list[Part]:
    """List the arrays the model is made of, in layer order, each checked against the header.

    Raises:
        ModelError: a tensor is missing, not expected, or of another shape.
    """
    found = _expected(file, config)
    for part in found:
        if part.source not in file.tensors:
            raise ModelError(f"{file.path}: tensor {part.source!r} is missing; {REMEDY}")
        shape = file.tensors[part.source].shape
        if shape != part.shape:
            raise ModelError(
                f"{file.path}: tensor {part.source!r} has the shape {shape}, "
                f"its metadata says {part.shape}; {REMEDY}"
            )
    unknown = set(file.tensors) - {part.source for part in found} - {ROPE_FACTORS}
    if unknown:
        raise ModelError(
            f"{file.path}: tensor {min(unknown)!r} is not part of a {config['model_type']} model; "
            f"{INSTEAD}"
        )
    return found


def _expected(file: GgufFile, config: Mapping[str, Any]) -> list[Part]:
    kind = architecture(file)
    axes = _axes(config)
    num_layers = config["num_hidden_layers"]
    _check_layers(file, num_layers)
    rotary = {"attn_q.weight": config["num_attention_heads"]} if kind.has_permuted_rope else {}
    if kind.has_permuted_rope:
        rotary["attn_k.weight"] = config["num_key_value_heads"]
    embedding = (axes["vocab"], axes["hidden"])
    found = [Part("token_embd.weight", "model.embed_tokens.weight", embedding)]
    found.append(Part("output_norm.weight", "model.norm.weight", (axes["hidden"],)))
    if not config["tie_word_embeddings"]:
        found.append(Part("output.weight", "lm_head.weight", embedding))
    for layer in range(num_layers):
        for source, (target, names) in kind.layer.items():
            found.append(
                Part(
                    f"blk.{layer}.{source}",
                    f"model.layers.{layer}.{target}",
                    tuple(axes[name] for name in names),
                    rotary.get(source, 0),
                )
            )
    return found


def _axes(config: Mapping[str, Any]) -> dict[str, int]:
    head = config["head_dim"]
    return {
        "vocab": config["vocab_size"],
        "hidden": config["hidden_size"],
        "inner": config["intermediate_size"],
        "query": config["num_attention_heads"] * head,
        "key": config["num_key_value_heads"] * head,
        "head": head,
    }


def _check_layers(file: GgufFile, num_layers: int) -> None:
    """A damaged layer count must not become a loop over four billion layers."""
    found = {int(match[1]) for match in map(LAYER.fullmatch, file.tensors) if match}
    if len(found) != num_layers or max(found) != num_layers - 1:
        raise ModelError(
            f"{file.path}: {num_layers} layers announced, {len(found)} found; {REMEDY}"
        )


def _embedding_rows(file: GgufFile) -> int:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelError(f"{file.path}: tensor 'token_embd.weight' is missing; {REMEDY}")
    return embedding.shape[0]
