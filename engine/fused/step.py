"""The decode step as one function of arrays, compiled where kernels are.

Cache lengths are an input like any other, so a shape is compiled once, not once a length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import mlx.core as mx

from engine.fused import kernels
from engine.fused.parts import Parts, take_parts
from engine.fused.variants import Shape, covering

Step = Callable[[mx.array, mx.array, mx.array, Sequence[mx.array], Sequence[mx.array]], mx.array]


def decode(
    parts: Parts,
    operations: ModuleType,
    ids: mx.array,
    slots: mx.array,
    starts: mx.array,
    keys: Sequence[mx.array],
    values: Sequence[mx.array],
) -> mx.array:
    """Feed `width` tokens of each of some rows.

    Args:
        parts: the model.
        operations: engine.fused.kernels or engine.fused.reference.
        ids: [rows, width].
        slots, starts: cache slot and length of each row, [rows] int32.
        keys, values: one array a layer, [slots, kv_heads, capacity, dim], with room behind every
            row's length; the new tokens' keys and values are written into them.

    Returns:
        Logits after each token, [rows, width, vocab].
    """
    rows, width = ids.shape
    angles = _angles(parts.rates, starts, width)
    x = parts.embed(ids.reshape(-1))
    for layer, layer_keys, layer_values in zip(parts.layers, keys, values, strict=True):
        qkv = operations.project(layer.qkv, x)
        seen = operations.attend(layer.heads, qkv, angles, slots, starts, layer_keys, layer_values)
        x = operations.project(layer.out, seen, x)
        x = operations.project(layer.down, operations.project(layer.gate_up, x), x)
    logits: mx.array = operations.project(parts.head, x)
    return logits.reshape(rows, width, -1)


@dataclass(frozen=True, slots=True)
class FusedStep:
    """A model's step on kernels, traced once a shape; called as `decode` without its first two."""

    parts: Parts
    run: Step

    def __call__(
        self,
        ids: mx.array,
        slots: mx.array,
        starts: mx.array,
        keys: Sequence[mx.array],
        values: Sequence[mx.array],
    ) -> mx.array:
        """See `decode`."""
        return self.run(ids, slots, starts, keys, values)

    def covering(self, shapes: Iterable[Shape]) -> list[Shape]:
        """Return few of `shapes` that together use every kernel that any of them uses."""
        return covering(self.parts, shapes)


def fused_step(model: Any) -> FusedStep | None:
    """Return a model's step on kernels; None when the model is not one for them.

    Waits for the device.
    """
    parts = take_parts(model)
    if parts is None or parts.head.weight.dtype not in kernels.DTYPES:
        return None
    compile_function: Any = mx.compile  # has no annotations
    return FusedStep(parts, compile_function(partial(decode, parts, kernels)))


def _angles(rates: mx.array, starts: mx.array, width: int) -> tuple[mx.array, mx.array]:
    """Return cosines and sines of every token, [rows * width, dim / 2] float32."""
    positions = (starts[:, None] + mx.arange(width)[None]).reshape(-1, 1).astype(mx.float32)
    turned = positions * rates
    return mx.cos(turned), mx.sin(turned)
