"""Ways to build a decode step on a GPU, which gpu_step.py measures against each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import engine  # noqa: F401  # before mlx

# isort: split
import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import llama
from mlx_lm.models.cache import KVCache

from engine.cache.layout import build_stores
from engine.cache.slots import SlotCache
from engine.fused import reference
from engine.fused.parts import Parts, take_parts
from engine.fused.step import fused_step
from engine.models.head import split_head
from engine.shapes import CAPACITY_BLOCK, round_up

BLOCK = 256
MOST_STEPS = 768

SHAPES: dict[str, dict[str, Any]] = {
    "smollm2": {
        "hidden_size": 576,
        "num_hidden_layers": 30,
        "intermediate_size": 1536,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
    },
    "3b": {
        "hidden_size": 3072,
        "num_hidden_layers": 28,
        "intermediate_size": 8192,
        "num_attention_heads": 24,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    },
    "8b": {
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "tie_word_embeddings": False,
    },
}

Advance = Callable[[mx.array, list[int]], mx.array]
"""(ids [rows, width], cache length of each row) -> logits [rows, width, vocab]."""


def random_model(shape: str) -> Any:
    """Return a bfloat16 model of seeded random weights."""
    model: Any = llama.Model(
        llama.ModelArgs(model_type="llama", rms_norm_eps=1e-5, **SHAPES[shape])
    )
    mx.random.seed(0)
    for _, module in model.named_modules():
        if "weight" in module and module.weight.ndim == 2:
            size = module.weight.shape
            module.weight = mx.random.normal(size, mx.bfloat16, scale=size[-1] ** -0.5)
            mx.eval(module.weight)
    model.set_dtype(mx.bfloat16)
    mx.eval(model.parameters())
    return model


def weight_bytes(parts: Parts) -> int:
    """Bytes of weights a step reads: all but an embedding that is not the head too."""
    layers = sum(
        projection.weight.nbytes
        for layer in parts.layers
        for projection in (layer.qkv, layer.out, layer.gate_up, layer.down)
    )
    return layers + parts.head.weight.nbytes


# -- ways to build a step ------------------------------------------------------------------------


def slots_of(model: Any, rows: int, length: int, read_block: int = 1) -> SlotCache:
    """Return slots with room for `length` tokens a row and the steps measured behind them."""
    cache = SlotCache(build_stores("benchmark", model), read_block)
    cache.resize(rows, round_up(length + MOST_STEPS, CAPACITY_BLOCK))
    return cache


def layers_of(cache: SlotCache) -> tuple[list[mx.array], list[mx.array]]:
    """Return keys and values of every layer."""
    keys, values = zip(*cache.arrays(), strict=True)
    return list(keys), list(values)


def fill(cache: SlotCache, model: Any, rows: int, length: int) -> None:
    """Let every slot hold `length` random keys and values."""
    heads, dim = model.args.num_key_value_heads, model.layers[0].self_attn.head_dim
    for view in cache.views(0, [0] * rows, [length] * rows, length):
        pair = (mx.random.normal((rows, heads, length, dim), mx.bfloat16) for _ in range(2))
        mx.eval(view.update_and_fetch(*pair))


def slots_way(model: Any, rows: int, length: int, read_block: int) -> Advance:
    """mlx-lm's layers over our slots, as the engine runs what it has no kernels for."""
    backbone, head = split_head(model)
    cache = slots_of(model, rows, length, read_block)
    fill(cache, model, rows, length)

    def advance(ids: mx.array, starts: list[int]) -> mx.array:
        counts = [ids.shape[1]] * len(starts)
        return head(backbone(ids, cache.views(0, starts, counts, ids.shape[1])))

    return advance


def mlx_lm_way(model: Any, rows: int, length: int) -> Advance:
    """mlx-lm's layers over its own growing cache; rows of equal length."""
    heads, dim = model.args.num_key_value_heads, model.layers[0].self_attn.head_dim
    caches = [KVCache() for _ in model.layers]
    for cache in caches:
        pair = (mx.random.normal((rows, heads, length, dim), mx.bfloat16) for _ in range(2))
        mx.eval(cache.update_and_fetch(*pair))

    def advance(ids: mx.array, starts: list[int]) -> mx.array:
        for cache in caches:
            cache.offset = starts[0]
        return model(ids, cache=caches)

    return advance


def fused_way(model: Any, rows: int, length: int) -> Advance:
    """The engine's way: five kernels a layer, compiled."""
    step = fused_step(model)
    assert step is not None
    cache = slots_of(model, rows, length)
    fill(cache, model, rows, length)
    slots = mx.arange(rows, dtype=mx.int32)

    def advance(ids: mx.array, starts: list[int]) -> mx.array:
        return step(ids, slots, mx.array(starts, dtype=mx.int32), *layers_of(cache))

    return advance


@dataclass(frozen=True)
class Plain:
    """A step of plain operations on joined weights: how to write the cache and how to attend."""

    parts: Parts
    rope: nn.RoPE
    write: str
    attention: str

    def __call__(
        self, ids: mx.array, starts: mx.array, keys: list[mx.array], values: list[mx.array]
    ) -> tuple[mx.array, list[mx.array], list[mx.array]]:
        """Return logits and the written cache."""
        rows, width = ids.shape
        positions = starts[:, None] + mx.arange(width)[None]
        seen = mx.arange(keys[0].shape[2])[None, None, None] <= positions[:, None, :, None]
        x = self.parts.embed(ids)
        keys, values = list(keys), list(values)
        for index, layer in enumerate(self.parts.layers):
            heads = layer.heads
            qkv = reference.project(layer.qkv, x).reshape(rows, width, -1, heads.dim)
            turned = self.rope(qkv.swapaxes(1, 2), offset=starts)
            ends = [heads.queries, heads.queries + heads.keys]
            query, key, _ = mx.split(turned, ends, axis=1)
            value = qkv[:, :, ends[1] :].swapaxes(1, 2)
            keys[index] = self._written(keys[index], key, starts, positions)
            values[index] = self._written(values[index], value, starts, positions)
            answer = self._attend(query, keys[index], values[index], heads.scale, seen)
            x = reference.project(layer.out, answer.swapaxes(1, 2).reshape(rows, width, -1), x)
            x = reference.project(layer.down, reference.project(layer.gate_up, x), x)
        return reference.project(self.parts.head, x), keys, values

    def _written(
        self, held: mx.array, new: mx.array, starts: mx.array, positions: mx.array
    ) -> mx.array:
        if self.write == "slice":
            return mx.slice_update(held, new, starts[:1], axes=(2,))
        index = positions[:, None, :, None]
        if self.write == "along":
            return mx.put_along_axis(held, mx.broadcast_to(index, new.shape), new, axis=2)
        rows, heads = mx.arange(new.shape[0]), mx.arange(new.shape[1])
        at = (rows[:, None, None], heads[None, :, None], positions[:, None])
        held[at] = new
        return held

    def _attend(
        self, query: mx.array, keys: mx.array, values: mx.array, scale: float, seen: mx.array
    ) -> mx.array:
        if self.attention == "sdpa":
            return mx.fast.scaled_dot_product_attention(query, keys, values, scale=scale, mask=seen)
        rows, heads, width, dim = query.shape
        grouped = query.reshape(rows, keys.shape[1], -1, width, dim) * scale
        scores = grouped @ keys[:, :, None].swapaxes(-1, -2)
        scores = mx.where(seen[:, :, None], scores, mx.finfo(scores.dtype).min)
        answer = mx.softmax(scores, axis=-1, precise=True) @ values[:, :, None]
        return answer.reshape(rows, heads, width, dim)


def plain_way(
    model: Any, rows: int, length: int, write: str, attention: str, compiled: bool
) -> Advance:
    """Joined weights, a fixed read extent, and the cache as input and output."""
    parts = take_parts(model)
    assert parts is not None
    step: Any = Plain(parts, model.layers[0].self_attn.rope, write, attention)
    if compiled:
        step = mx.compile(step)
    cache = slots_of(model, rows, length)
    fill(cache, model, rows, length)
    keys, values = layers_of(cache)
    del cache
    state = [keys, values]

    def advance(ids: mx.array, starts: list[int]) -> mx.array:
        held, state[:] = list(state), []
        logits, *state[:] = step(ids, mx.array(starts, dtype=mx.int32), *held)
        return logits

    return advance


Way = Callable[[Any, int, int], Advance]
UNIFORM = "uniform"
RAGGED = "ragged"

WAYS: dict[str, tuple[Way, tuple[str, ...]]] = {
    "mlx-lm": (mlx_lm_way, (UNIFORM,)),
    "slots, trimmed": (partial(slots_way, read_block=1), (UNIFORM,)),
    "slots, block 256": (partial(slots_way, read_block=BLOCK), (UNIFORM, RAGGED)),
    "joined, slice, sdpa": (
        partial(plain_way, write="slice", attention="sdpa", compiled=False),
        (UNIFORM,),
    ),
    "compiled, slice, sdpa": (
        partial(plain_way, write="slice", attention="sdpa", compiled=True),
        (UNIFORM,),
    ),
    "compiled, along, sdpa": (
        partial(plain_way, write="along", attention="sdpa", compiled=True),
        (RAGGED,),
    ),
    "compiled, along, softmax": (
        partial(plain_way, write="along", attention="softmax", compiled=True),
        (RAGGED,),
    ),
    "compiled, scatter, softmax": (
        partial(plain_way, write="scatter", attention="softmax", compiled=True),
        (RAGGED,),
    ),
    "fused": (fused_way, (UNIFORM, RAGGED)),
}
