"""Exponentials from additions and multiplications, for MLX's CPU backend on Linux.

That backend vectorises arithmetic and computes exponentials one by one. Here 2^y is split into
2^n * 2^f, |f| <= 1/2: the first is an exponent field, the second a polynomial. Arrays are worked on
in pieces that stay in the cache. docs/decisions/blas.md has the figures.
"""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx
from mlx_lm.models import activations, base

FEWEST = 8_192
"""With fewer elements the single operations cost more than the exponentials they replace."""

PIECE = 1 << 18
"""Elements worked on at a time: 1 MB, and the next piece overwrites it in the cache."""

LOG2_E = math.log2(math.e)
ROUNDING = 1.5 * 2.0**23
"""Added to a float32 below 2^22, it leaves the nearest whole number in the lowest bits."""

LOWEST = -127.0
"""The exponent field of 2^-127 is zero, and so is what is computed there."""

HIGHEST = 127.0

POLYNOMIAL = (
    1.0,
    0.6931470036506653,
    0.24022230505943298,
    0.05550612136721611,
    0.009672049432992935,
    0.0013309012867647640,
)
"""2^f on [-1/2, 1/2], constant term first: a Chebyshev fit of (2^f - 1) / f, exact at 0.

Its relative error is 1.2e-7.
"""

HIDDEN = -1e30
"""Score of a position that may not be looked at; finite, so that differences are numbers."""


def exp(x: mx.array) -> mx.array:
    """Return e^x of a float32 array, with a relative error of 4e-6; 0 below e^-88."""
    y = mx.clip(x * LOG2_E, LOWEST, HIGHEST)
    shifted = y + ROUNDING
    f = y - (shifted - ROUNDING)
    power = f * POLYNOMIAL[-1] + POLYNOMIAL[-2]
    for coefficient in POLYNOMIAL[-3::-1]:
        power = power * f + coefficient
    exponent = shifted.view(mx.int32) << 23
    return (power.view(mx.int32) + exponent).view(mx.float32)


def swiglu(gate: mx.array, x: mx.array) -> mx.array:
    """Return silu(gate) * x, element by element, as mlx-lm's function of this name does."""
    if gate.size < FEWEST or gate.dtype != mx.float32:
        theirs: mx.array = activations.swiglu(gate, x)
        return theirs
    gates, inputs = gate.reshape(-1, gate.shape[-1]), x.reshape(-1, x.shape[-1])
    parts = [
        gates[piece] * inputs[piece] / (exp(-gates[piece]) + 1.0) for piece in _pieces(*gates.shape)
    ]
    return _joined(parts, axis=0).reshape(gate.shape)


def attention(
    queries: mx.array,
    keys: Any,
    values: Any,
    cache: Any,
    scale: float,
    mask: Any,
    sinks: mx.array | None = None,
) -> mx.array:
    """Return softmax(scale * queries @ keys.T, under the mask) @ values.

    As mlx-lm's scaled_dot_product_attention, which is called for what is not done here: sinks,
    masks by head or of axes to be stretched, quantised keys, other dtypes and little work.

    Args:
        queries: [rows, heads, width, features].
        keys, values: [rows, kv_heads, extent, features]; heads is a multiple of kv_heads.
        mask: true where a query may look, or what is added to the scores, [width, extent] behind
            up to two axes of size 1 or rows and 1; "causal"; None looks everywhere.

    Returns:
        [rows, heads, width, features].
    """
    is_plain = sinks is None and not hasattr(cache, "bits") and queries.dtype == mx.float32
    rows, heads, width, _ = queries.shape
    size = heads * keys.shape[2] if is_plain else 0
    if rows * width * size < FEWEST or not _is_shared(mask, width, keys.shape[2]):
        return base.scaled_dot_product_attention(queries, keys, values, cache, scale, mask, sinks)
    bias = _bias(mask, width, keys.shape[2])
    parts = [
        _joined(
            [
                _attend(
                    queries[row, :, query] * scale,
                    keys[row],
                    values[row],
                    None if bias is None else bias[row if len(bias) > 1 else slice(None), :, query],
                )
                for query in _pieces(width, size)
            ],
            axis=2,
        )
        for row in _pieces(rows, size * width)
    ]
    return _joined(parts, axis=0)


def _is_shared(mask: mx.array | str | None, width: int, extent: int) -> bool:
    """Return whether a mask is given for every position, and is the same for all heads."""
    if not isinstance(mask, mx.array):
        return True
    return mask.shape[-2:] == (width, extent) and (mask.ndim == 2 or mask.shape[-3] == 1)


def _attend(queries: mx.array, keys: mx.array, values: mx.array, bias: mx.array | None) -> mx.array:
    """Attend with all queries that share keys in one product."""
    rows, heads, width, _ = queries.shape
    kv_heads, extent, features = values.shape[1:]
    grouped = queries.reshape(rows, kv_heads, -1, queries.shape[-1])
    scores = grouped @ keys.swapaxes(-1, -2)
    if bias is not None:
        scores = scores.reshape(rows, kv_heads, -1, width, extent) + bias[:, :, None]
        scores = scores.reshape(rows, kv_heads, -1, extent)
    weights = exp(scores - scores.max(axis=-1, keepdims=True))
    looked = (weights @ values) / weights.sum(axis=-1, keepdims=True)
    return looked.reshape(rows, heads, width, features)


def _bias(mask: mx.array | str | None, width: int, extent: int) -> mx.array | None:
    """Return what is added to the scores, [rows or 1, 1, width, extent]."""
    if mask is None:
        return None
    if isinstance(mask, str):
        mask = mx.arange(extent)[None] <= mx.arange(extent - width, extent)[:, None]
    added = mx.where(mask, 0.0, HIDDEN) if mask.dtype == mx.bool_ else mx.maximum(mask, HIDDEN)
    return added.reshape((1,) * (4 - added.ndim) + added.shape)


def _pieces(count: int, size: int) -> list[slice]:
    """Cut `count` things of `size` elements into pieces of at most PIECE elements, or of one."""
    each = max(1, PIECE // size)
    return [slice(start, start + each) for start in range(0, count, each)]


def _joined(parts: list[mx.array], axis: int) -> mx.array:
    return parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=axis)
