"""Rotary positions computed once a step instead of twice a layer.

On a CPU mx.fast.rope works out its sines and cosines anew at every call, 60 times a step on
SmolLM2-135M. All layers of a step rotate by the same angles, so they share them here;
docs/decisions/blas.md has the figures.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn

Offset = int | mx.array


@dataclass
class Rotation(threading.local):
    """Sines and cosines of the positions asked for last, by each thread for itself.

    A thread cannot compute what another has built, and two that use one model ask for positions of
    their own.

    Args:
        dims: features that are rotated.
        base, scale: angle of feature pair i at position p: p * scale * base ** (-2 i / dims).
    """

    dims: int
    base: float
    scale: float
    offset: Offset | None = None
    length: int = 0
    angles: tuple[mx.array, mx.array] | None = None

    def at(self, offset: Offset, length: int) -> tuple[mx.array, mx.array]:
        """Return cosines and sines, [1 or rows, 1, length, dims / 2].

        Args:
            offset: position of the first token; [rows] when rows differ. The same array object
                means the same positions.
        """
        if self.angles is None or not self._holds(offset, length):
            self.offset, self.length = offset, length
            self.angles = self._compute(offset, length)
        return self.angles

    def _holds(self, offset: Offset, length: int) -> bool:
        if length != self.length:
            return False
        if isinstance(offset, mx.array) or isinstance(self.offset, mx.array):
            return offset is self.offset
        return offset == self.offset

    def _compute(self, offset: Offset, length: int) -> tuple[mx.array, mx.array]:
        half = self.dims // 2
        first = mx.array(offset).reshape(-1, 1).astype(mx.float32)
        positions = (first + mx.arange(length, dtype=mx.float32)) * self.scale
        rates = mx.exp(mx.arange(half, dtype=mx.float32) * (-math.log(self.base) / half))
        angles = positions[:, None, :, None] * rates
        return mx.cos(angles), mx.sin(angles)


class SharedRoPE(nn.RoPE):
    """Half-split rotary positions whose angles come from a shared Rotation."""

    def __call__(self, x: mx.array, offset: Offset = 0) -> mx.array:
        """Return `x` rotated.

        Args:
            x: [rows, heads, length, features].
            offset: position of the first token, one number or [rows].
        """
        cos, sin = self._rotation.at(offset, x.shape[-2])
        half = self.dims // 2
        low, high = x[..., :half], x[..., half : self.dims]
        parts = [low * cos - high * sin, low * sin + high * cos]
        if x.shape[-1] > self.dims:
            parts.append(x[..., self.dims :])
        return mx.concatenate(parts, axis=-1)


def share_rotations(model: nn.Module) -> None:
    """Let all plain half-split rotary layers of a float32 model share their angles."""
    rotations: dict[tuple[int, float, float], Rotation] = {}
    walk: Any = model.named_modules  # has no annotations
    for _, module in walk():
        if type(module) is nn.RoPE and not module.traditional:
            key = (module.dims, module.base, module.scale)
            module._rotation = rotations.setdefault(key, Rotation(*key))
            module.__class__ = SharedRoPE
