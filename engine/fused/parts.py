"""What a decode step needs of a model: joined weights and head shapes, without its modules.

Weights that share an input are joined, so that one product serves queries, keys and values, and one
serves gate and up. The model's own layers keep working: their weights become views of the joined.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.models import llama, qwen2, qwen3
from mlx_lm.models.cache import KVCache, make_prompt_cache
from mlx_lm.models.rope_utils import Llama3RoPE

MODELS: frozenset[type[nn.Module]] = frozenset({llama.Model, qwen2.Model, qwen3.Model})
"""Architectures whose layers are exactly what engine.fused.step computes."""

HEAD_DIMS = frozenset({64, 128})

LIGHT_BYTES = 1 << 30
"""Weights of a model up to which equal bits in steps of more tokens cost little time."""

FEW_TOKENS, MANY_TOKENS = 16, 32
"""Tokens of a step up to which a token has the same bits whatever is computed beside it: in any
model that the kernels take, and in a light one."""


@dataclass(frozen=True, slots=True)
class Projection:
    """A matrix product and what happens around it: gate(norm(x) @ weight.T + bias) + residual.

    Args:
        weight: [outputs, inputs]; with `gated` the gate's rows, then as many rows of up.
        bias: [rows of weight].
        gain: [inputs], the weight of an RMS norm of the input.
        eps: of that norm; where there is none, the model's, so that one kernel serves all.
        gated: the result is silu(gate) * up.
        most_tokens: up to so many a kernel of ours computes it; beyond them cuBLAS does, which is
            faster there and rounds otherwise.
    """

    weight: mx.array
    bias: mx.array | None = None
    gain: mx.array | None = None
    eps: float = 0.0
    gated: bool = False
    most_tokens: int = MANY_TOKENS


@dataclass(frozen=True, slots=True)
class Heads:
    """The shape of an attention layer.

    Args:
        queries, keys: heads of each kind; a key head serves `queries // keys` query heads.
        dim: features of a head.
        query_gain, key_gain: [dim], RMS norms of single heads before they are rotated.
    """

    queries: int
    keys: int
    dim: int
    scale: float
    query_gain: mx.array | None = None
    key_gain: mx.array | None = None
    eps: float = 0.0


@dataclass(frozen=True, slots=True)
class Layer:
    """One transformer block."""

    heads: Heads
    qkv: Projection
    out: Projection
    gate_up: Projection
    down: Projection


@dataclass(frozen=True, slots=True)
class Parts:
    """A model's decode step.

    Args:
        embed: ids [tokens] -> [tokens, hidden].
        rates: radians a position turns each pair of features, [dim / 2] float32.
        head: the last norm and the output head.
    """

    embed: Callable[[mx.array], mx.array]
    rates: mx.array
    layers: tuple[Layer, ...]
    head: Projection


def take_parts(model: Any) -> Parts | None:
    """Return the parts of a model, None when it computes anything else than a Parts can say.

    The weights of the model's own layers are replaced by views. Waits for the device.
    """
    if type(model) not in MODELS or not _is_plain(model):
        return None
    rates = _rates(model.layers[0].self_attn.rope)
    if rates is None:
        return None
    most = MANY_TOKENS if _weight_bytes(model) <= LIGHT_BYTES else FEW_TOKENS
    layers = tuple(_layer(layer, most) for layer in model.layers)
    body = model.model
    head = model.lm_head if "lm_head" in model else body.embed_tokens
    last = Projection(head.weight, gain=body.norm.weight, eps=body.norm.eps, most_tokens=most)
    return Parts(body.embed_tokens, rates, layers, last)


def _weight_bytes(model: Any) -> int:
    """Return the bytes of all weights; keeps none of them: each is freed once it is joined."""
    named: dict[str, mx.array] = dict(tree_flatten(model.parameters()))
    return sum(array.nbytes for array in named.values())


def _is_plain(model: Any) -> bool:
    """Return whether caches, weights and heads are of the kinds the kernels know."""
    linear = [module for _, module in model.named_modules() if hasattr(module, "weight")]
    kinds = {type(module) for module in linear}
    attention = model.layers[0].self_attn
    return (
        {type(cache) for cache in make_prompt_cache(model)} == {KVCache}
        and kinds <= {nn.Linear, nn.Embedding, nn.RMSNorm}
        and attention.q_proj.weight.shape[0] // attention.n_heads in HEAD_DIMS
        and all(module.weight.shape[-1] % 32 == 0 for module in linear)
    )


def _rates(rope: Any) -> mx.array | None:
    if rope.traditional:
        return None
    if isinstance(rope, Llama3RoPE):
        return 1.0 / rope._freqs.astype(mx.float32)
    if not isinstance(rope, nn.RoPE):
        return None
    half = rope.dims // 2
    steps = mx.arange(half, dtype=mx.float32) * (-math.log(rope.base) / half)
    return rope.scale * mx.exp(steps)


def _layer(layer: Any, most: int) -> Layer:
    attention, mlp = layer.self_attn, layer.mlp
    before, after = layer.input_layernorm, layer.post_attention_layernorm
    qkv = _join(attention.q_proj, attention.k_proj, attention.v_proj)
    gate_up = _join(mlp.gate_proj, mlp.up_proj)
    common = {"eps": before.eps, "most_tokens": most}
    return Layer(
        heads=_heads(attention),
        qkv=Projection(*qkv, gain=before.weight, **common),
        out=Projection(attention.o_proj.weight, attention.o_proj.get("bias"), **common),
        gate_up=Projection(*gate_up, after.weight, after.eps, gated=True, most_tokens=most),
        down=Projection(mlp.down_proj.weight, mlp.down_proj.get("bias"), **common),
    )


def _heads(attention: Any) -> Heads:
    dim = attention.q_proj.weight.shape[0] // attention.n_heads
    shape = (attention.n_heads, attention.n_kv_heads, dim, attention.scale)
    if "q_norm" not in attention:
        return Heads(*shape)
    query, key = attention.q_norm, attention.k_norm
    return Heads(*shape, query_gain=query.weight, key_gain=key.weight, eps=query.eps)


def _join(*layers: Any) -> tuple[mx.array, mx.array | None]:
    """Stack the weights and biases of layers; each layer's own become views of the stack."""
    weight = _stacked(layers, "weight")
    return weight, _stacked(layers, "bias") if "bias" in layers[0] else None


def _stacked(layers: tuple[Any, ...], name: str) -> mx.array:
    joined = mx.concatenate([layer[name] for layer in layers])
    mx.eval(joined)
    end = 0
    for layer in layers:
        start, end = end, end + layer[name].shape[0]
        layer[name] = joined[start:end]
        mx.eval(layer[name])
    return joined
