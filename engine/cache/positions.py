"""Arrays with one entry for every position of every slot, and how a step is written into them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from engine.cache.shape import StepShape


@dataclass(frozen=True, slots=True)
class ArrayKind:
    """An array without its leading axes.

    Args:
        shape: [heads, width] of one position, or the whole shape of one slot's state.
    """

    shape: tuple[int, ...]
    dtype: mx.Dtype

    @property
    def num_bytes(self) -> int:
        """Bytes of one entry."""
        return math.prod(self.shape) * self.dtype.size


class Positions:
    """Arrays of one layer, each [slots, heads, capacity, width]; left-aligned.

    Args:
        kinds: one a array, of shape [heads, width].
    """

    def __init__(self, kinds: Sequence[ArrayKind]) -> None:
        self._kinds = tuple(kinds)
        self._arrays = [mx.zeros(_full(kind, 0, 0), kind.dtype) for kind in kinds]

    @property
    def arrays(self) -> tuple[mx.array, ...]:
        """The arrays themselves."""
        return tuple(self._arrays)

    @property
    def num_bytes(self) -> int:
        """Bytes held by all arrays."""
        return sum(array.nbytes for array in self._arrays)

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one position of one slot."""
        return sum(kind.num_bytes for kind in self._kinds)

    def resize(self, num_slots: int, capacity: int) -> None:
        """Copy what fits into arrays of another size, so that the old ones can be freed."""
        self._arrays = [
            resized(old, _full(kind, num_slots, capacity))
            for kind, old in zip(self._kinds, self._arrays, strict=True)
        ]

    def move(self, source: int, destination: int) -> None:
        """Copy one slot over another."""
        for array in self._arrays:
            array[destination] = array[source]

    def read(self, slot: int, start: int, end: int) -> tuple[mx.array, ...]:
        """Return copies [heads, end - start, width] that hold on to nothing else."""
        return tuple(mx.contiguous(array[slot, :, start:end]) for array in self._arrays)

    def write(self, slot: int, start: int, arrays: Sequence[mx.array]) -> None:
        """Put [heads, length, width] arrays into a slot from position `start`."""
        for held, new in zip(self._arrays, arrays, strict=True):
            held[slot, :, start : start + new.shape[1]] = new

    def put(self, shape: StepShape, new: Sequence[mx.array]) -> tuple[mx.array, ...]:
        """Write a step behind each row's length.

        Args:
            new: [rows, heads, width, ...] arrays.

        Returns:
            All positions of the step's rows up to its extent, [rows, heads, extent, ...].
        """
        self._arrays = [_put(held, shape, n) for held, n in zip(self._arrays, new, strict=True)]
        return tuple(held[shape.slots, :, : shape.extent] for held in self._arrays)


def resized(old: mx.array, shape: tuple[int, ...]) -> mx.array:
    """Return an array of another shape: what both have is copied, the rest is zero."""
    both = tuple(slice(0, min(sizes)) for sizes in zip(old.shape, shape, strict=True))
    kept = old[both]
    if not kept.size:
        return mx.zeros(shape, old.dtype)
    if kept.shape == shape:
        return mx.contiguous(kept)  # an assignment to all of an array would keep the old one alive
    new = mx.zeros(shape, old.dtype)
    new[both] = kept
    return new


def _full(kind: ArrayKind, num_slots: int, capacity: int) -> tuple[int, ...]:
    heads, width = kind.shape
    return (num_slots, heads, capacity, width)


def _put(held: mx.array, shape: StepShape, new: mx.array) -> mx.array:
    if shape.is_uniform:
        held[shape.slots, :, shape.starts[0] : shape.end] = new
        return held
    new = new.astype(held.dtype)
    if shape.rows == held.shape[0]:
        index = mx.broadcast_to(shape.positions[:, None, :, None], new.shape)
        return mx.put_along_axis(held, index, new, axis=2)
    # put_along_axis on a part of the slots would copy that part, and not write in place
    rows = mx.arange(shape.slots.start, shape.slots.stop)[:, None]
    held[rows, :, shape.positions] = new.swapaxes(1, 2)
    return held
