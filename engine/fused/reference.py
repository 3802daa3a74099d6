"""The two operations of a decode step in plain MLX: what the kernels are compared with."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from engine.fused.parts import Heads, Projection


def project(parts: Projection, x: mx.array, residual: mx.array | None = None) -> mx.array:
    """Return gate(norm(x) @ weight.T + bias) + residual.

    Args:
        parts: weights, and what is done besides the product.
        x: [tokens, inputs].
        residual: [tokens, outputs].

    Returns:
        [tokens, outputs].
    """
    if parts.gain is not None:
        x = mx.fast.rms_norm(x, parts.gain, parts.eps)
    product = x @ parts.weight.T
    if parts.bias is not None:
        product = product + parts.bias
    if parts.gated:
        gate, up = mx.split(product, 2, axis=-1)
        product = nn.silu(gate) * up
    return product if residual is None else residual + product


def attend(
    heads: Heads,
    qkv: mx.array,
    angles: tuple[mx.array, mx.array],
    slots: mx.array,
    starts: mx.array,
    keys: mx.array,
    values: mx.array,
) -> mx.array:
    """Append the keys and values of a step to the cache and return what its queries see.

    Args:
        heads: the layer's shape.
        qkv: queries, keys and values of every token, [rows * width, heads * dim], not yet rotated.
        angles: cosines and sines of every token, [rows * width, dim / 2] float32.
        slots: cache slot of each row, [rows] int32.
        starts: cache length of each row, [rows] int32; the new tokens go behind it.
        keys, values: the layer's cache, [slots, kv_heads, capacity, dim]; changed in place.

    Returns:
        [rows * width, query heads * dim].
    """
    rows = slots.shape[0]
    width = qkv.shape[0] // rows
    split = qkv.reshape(rows, width, -1, heads.dim)
    query, key, value = mx.split(split, [heads.queries, heads.queries + heads.keys], axis=2)
    query = _rotated(_normed(query, heads.query_gain, heads.eps), angles)
    key = _rotated(_normed(key, heads.key_gain, heads.eps), angles)
    positions = starts[:, None] + mx.arange(width)[None]
    keys[slots[:, None], :, positions] = key
    values[slots[:, None], :, positions] = value
    seen = mx.arange(keys.shape[2])[None, None, None] <= positions[:, None, :, None]
    answer = mx.fast.scaled_dot_product_attention(
        query.swapaxes(1, 2), keys[slots], values[slots], scale=heads.scale, mask=seen
    )
    return answer.swapaxes(1, 2).reshape(rows * width, -1)


def _normed(x: mx.array, gain: mx.array | None, eps: float) -> mx.array:
    return x if gain is None else mx.fast.rms_norm(x, gain, eps)


def _rotated(x: mx.array, angles: tuple[mx.array, mx.array]) -> mx.array:
    """Rotate [rows, width, heads, dim]; computes in float32, returns x's dtype."""
    rows, width, _, dim = x.shape
    cosines, sines = (angle.reshape(rows, width, 1, dim // 2) for angle in angles)
    low, high = mx.split(x.astype(mx.float32), 2, axis=-1)
    turned = [low * cosines - high * sines, high * cosines + low * sines]
    return mx.concatenate(turned, axis=-1).astype(x.dtype)
