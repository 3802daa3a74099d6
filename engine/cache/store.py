"""What one layer keeps, behind one interface; and layers that keep several things at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import mlx.core as mx

from engine.cache.shape import StepShape

States = tuple[Any, ...]
"""What a step replaces in one layer, whole; empty where steps only add."""


class LayerStore(Protocol):
    """What one layer keeps for every slot. Arrays are built lazily; nothing waits."""

    @property
    def num_bytes(self) -> int:
        """Bytes held now, with what steps may have to restore."""
        ...

    @property
    def arrays(self) -> tuple[mx.array, ...]:
        """The arrays themselves, [slots, ...] each, as many as `read` returns and `write` takes."""
        ...

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one position of one slot."""
        ...

    @property
    def bytes_per_row(self) -> int:
        """Bytes of one slot that do not grow with its positions."""
        ...

    def view(self, shape: StepShape) -> Any:
        """Return what the model's layer is given as its cache for one forward."""
        ...

    def resize(self, num_slots: int, capacity: int) -> None:
        """Take room for `num_slots` slots of `capacity` positions; what fits is kept."""
        ...

    def move(self, source: int, destination: int) -> None:
        """Copy one slot over another."""
        ...

    def read(self, slot: int, start: int, end: int) -> tuple[mx.array, ...]:
        """Return a copy of positions `start` to `end`; a state is returned as it is now."""
        ...

    def write(self, slot: int, start: int, arrays: tuple[mx.array, ...]) -> None:
        """Put what `read` returned into a slot, from position `start`."""
        ...

    def states(self) -> States:
        """Return what a step replaces, as it is now; later steps and moves do not change it."""
        ...

    def restore(self, states: States, slots: slice, rows: Sequence[bool]) -> None:
        """Give the marked rows of some slots the states they had.

        Nothing has to be done where forgetting is not counting.
        """
        ...


class GroupStore:
    """Several stores of one layer, which sees them as a tuple (mlx-lm's CacheList)."""

    def __init__(self, parts: Sequence[LayerStore]) -> None:
        self._parts = tuple(parts)

    @property
    def num_bytes(self) -> int:
        """Sum over the parts."""
        return sum(part.num_bytes for part in self._parts)

    @property
    def arrays(self) -> tuple[mx.array, ...]:
        """The parts' arrays, one after another."""
        return tuple(array for part in self._parts for array in part.arrays)

    @property
    def bytes_per_token(self) -> int:
        """Sum over the parts."""
        return sum(part.bytes_per_token for part in self._parts)

    @property
    def bytes_per_row(self) -> int:
        """Sum over the parts."""
        return sum(part.bytes_per_row for part in self._parts)

    def view(self, shape: StepShape) -> tuple[Any, ...]:
        """Return the parts' views."""
        return tuple(part.view(shape) for part in self._parts)

    def resize(self, num_slots: int, capacity: int) -> None:
        """Resize every part."""
        for part in self._parts:
            part.resize(num_slots, capacity)

    def move(self, source: int, destination: int) -> None:
        """Copy one slot over another in every part."""
        for part in self._parts:
            part.move(source, destination)

    def read(self, slot: int, start: int, end: int) -> tuple[mx.array, ...]:
        """Return the parts' arrays, one after another."""
        return tuple(array for part in self._parts for array in part.read(slot, start, end))

    def write(self, slot: int, start: int, arrays: tuple[mx.array, ...]) -> None:
        """Give each part its own arrays, in order."""
        taken = 0
        for part in self._parts:
            count = len(part.arrays)
            part.write(slot, start, arrays[taken : taken + count])
            taken += count

    def states(self) -> States:
        """Return the states of every part."""
        return tuple(part.states() for part in self._parts)

    def restore(self, states: States, slots: slice, rows: Sequence[bool]) -> None:
        """Restore every part."""
        for part, held in zip(self._parts, states, strict=True):
            part.restore(held, slots, rows)
