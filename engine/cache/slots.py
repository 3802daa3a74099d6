"""The slot cache: one slot a row, left-aligned, with the length kept by whoever plans the step.

Every layer has a store. A step writes its tokens behind the row's length and reads under the mask
`position <= length + i`, so a row joins by taking a slot, leaves by giving it up, and forgets
rejected drafts by not counting them; recurrent layers get their snapshot back (`settle`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from engine.arrays import launch
from engine.cache.shape import StepShape
from engine.cache.store import LayerStore, States
from engine.cache.stretch import SlotArrays


class SlotCache:
    """What all layers keep for `num_slots` rows of up to `capacity` positions.

    Args:
        stores: one a layer, empty.
        read_block: see StepShape.
    """

    def __init__(self, stores: Sequence[LayerStore], read_block: int = 1) -> None:
        self._stores = tuple(stores)
        self.read_block = read_block
        self._undo: list[tuple[StepShape, list[States]]] = []
        self.num_slots = 0
        self.capacity = 0

    @property
    def num_bytes(self) -> int:
        """Bytes held by all layers."""
        return sum(store.num_bytes for store in self._stores)

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one position of one slot, all layers."""
        return sum(store.bytes_per_token for store in self._stores)

    @property
    def bytes_per_row(self) -> int:
        """Bytes of one slot that do not grow with its positions: recurrent states."""
        return sum(store.bytes_per_row for store in self._stores)

    @property
    def is_rewindable(self) -> bool:
        """True when rejecting tokens costs nothing: no layer is recurrent."""
        return self.bytes_per_row == 0

    def resize(self, num_slots: int, capacity: int) -> None:
        """Take exactly this room; slots and positions beyond it are lost, the others kept."""
        if (num_slots, capacity) == (self.num_slots, self.capacity):
            return
        for store in self._stores:
            store.resize(num_slots, capacity)
        self.num_slots, self.capacity, self._undo = num_slots, capacity, []

    def views(
        self, first: int, starts: Sequence[int], counts: Sequence[int], width: int
    ) -> list[Any]:
        """Return what a model needs for one forward over `len(starts)` slots from `first`.

        Args:
            starts: cache length of each row.
            counts: real tokens of each row; see StepShape for the rest of the width.
            width: positions every row writes; all of them need room.
        """
        shape = StepShape(first, tuple(starts), tuple(counts), width, self.read_block)
        assert shape.slots.stop <= self.num_slots, (shape, self.num_slots)
        assert shape.extent <= self.capacity, (shape, self.capacity)
        if not self.is_rewindable:
            self._undo.append((shape, [store.states() for store in self._stores]))
        return [store.view(shape) for store in self._stores]

    def arrays(self) -> list[tuple[mx.array, ...]]:
        """Return the arrays of every layer themselves, for steps that write into them."""
        return [store.arrays for store in self._stores]

    def settle(self, first: int, kept: Sequence[int]) -> tuple[int, ...]:
        """Keep the first tokens of what the last step fed to each row, and forget the others.

        A row with a recurrent layer that keeps fewer tokens than it was fed goes back to where the
        step began: the caller feeds it again what it keeps.

        Args:
            first: first slot of the step.
            kept: tokens to keep of each row, at most its count; 0 for idle rows.

        Returns:
            How many of the fed tokens each row holds now.
        """
        if self.is_rewindable:
            return tuple(kept)
        assert self._undo, "a step is settled once, before slots move or change size"
        shape, states = self._undo.pop()
        assert (first, len(kept)) == (shape.first, shape.rows), (first, kept, shape)
        undone = [keep < count for keep, count in zip(kept, shape.counts, strict=True)]
        if not any(undone):
            return tuple(kept)
        self._restore(states, shape.slots, undone)
        return tuple(0 if undo else keep for undo, keep in zip(undone, kept, strict=True))

    def landed(self, num_ahead: int) -> None:
        """Take all steps as done, except the last `num_ahead`: nothing goes back behind them."""
        del self._undo[: len(self._undo) - num_ahead]

    def launch(self) -> None:
        """Start computing what is held; does not wait.

        What a thread leaves unstarted no other thread can compute.
        """
        launch(*(array for layer in self.arrays() for array in layer))

    def clear(self) -> None:
        """Hold nothing, and let go of what was computed, or failed to be."""
        self.resize(0, 0)

    def _restore(self, states: list[States], slots: slice, rows: Sequence[bool]) -> None:
        for store, held in zip(self._stores, states, strict=True):
            store.restore(held, slots, rows)

    def move(self, source: int, destination: int) -> None:
        """Copy one slot over another, in all layers."""
        self._undo = []
        if source < self.num_slots:  # a row that left before it was fed has written nothing
            for store in self._stores:
                store.move(source, destination)

    def read(self, slot: int, start: int, end: int) -> SlotArrays:
        """Return copies of positions `start` to `end` of a slot, not yet computed.

        A recurrent layer gives its state as it is, so `end` has to be the row's length then.
        """
        return tuple(store.read(slot, start, end) for store in self._stores)

    def write(self, slot: int, start: int, arrays: SlotArrays) -> None:
        """Put what `read` returned into a slot, from position `start`."""
        for store, layer in zip(self._stores, arrays, strict=True):
            store.write(slot, start, layer)
