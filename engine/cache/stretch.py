"""A stretch of one slot outside of it: what all layers keep for some positions, as arrays.

MLX arrays are values: no later write to the slot changes a stretch. A mere slice would still keep
the whole cache alive and make the next write copy all of it, so stretches are real copies.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

import mlx.core as mx

from engine.arrays import launch

LayerArrays: TypeAlias = tuple[mx.array, ...]
"""What one layer keeps, each array [heads, tokens, width]: quantised keys are three of them."""

SlotArrays: TypeAlias = tuple[LayerArrays, ...]
"""One entry a layer."""


class SlotStorage(Protocol):
    """Slots whose state belongs to positions (engine.cache.slots.SlotCache)."""

    def read(self, slot: int, start: int, end: int) -> SlotArrays:
        """Return copies of positions `start .. end`, not yet computed."""
        ...

    def write(self, slot: int, start: int, arrays: SlotArrays) -> None:
        """Put a stretch at `start`; there has to be room."""
        ...


def num_bytes(arrays: SlotArrays) -> int:
    """Return the bytes of a stretch."""
    return sum(array.nbytes for layer in arrays for array in layer)


def cut(arrays: SlotArrays, num_tokens: int) -> SlotArrays:
    """Return the first `num_tokens` positions, as views."""
    return tuple(tuple(array[..., :num_tokens, :] for array in layer) for layer in arrays)


def launch_copies(arrays: SlotArrays) -> None:
    """Start copying, in the order in which the next step writes; does not wait.

    A write is in place only where no copy is still queued that reads the array. Launched all at
    once, MLX copies the first layers last, and the next step then copies their whole cache.
    """
    for layer in arrays:
        launch(*layer)
