"""Recurrent layers: a state of fixed size for every slot, which a step replaces.

A state cannot forget by not counting. What it was before a step is kept until the step has landed,
and a row whose drafts were rejected gets that back and is fed its tokens again.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from engine.cache.positions import ArrayKind, resized
from engine.cache.shape import StepShape
from engine.cache.store import States

COPIES = 3
"""A state, and what it was before each of two steps: one computes, one is launched behind it."""


class RecurrentView:
    """One recurrent layer's cache as an mlx-lm model file sees it during one forward.

    It stands for mlx-lm's ArraysCache: the layer reads and writes it by index, takes the mask of
    real tokens from it, and cuts its convolution state at `lengths`.
    """

    left_padding = None

    def __init__(self, store: RecurrentStore, shape: StepShape) -> None:
        self._store = store
        self._shape = shape

    @property
    def lengths(self) -> mx.array | None:
        """Real tokens of each row, [rows]; None when no row has padding."""
        return None if self._shape.is_full else self._shape.lengths

    def __getitem__(self, index: int) -> mx.array:
        return self._store.state(self._shape, index)

    def __setitem__(self, index: int, value: mx.array) -> None:
        self._store.put(self._shape, index, value)

    def make_mask(self, width: int) -> mx.array | None:
        """Return [rows, width], true at real tokens; None when no row has padding."""
        return None if self._shape.is_full else self._shape.is_token

    def advance(self, width: int) -> None:
        """Nothing to do: a view lives for one forward."""


class RecurrentStore:
    """The state arrays of one layer, each [slots, ...]. A row that starts at 0 starts from zeros.

    Args:
        kinds: one an array, of the shape of one slot's state.
    """

    def __init__(self, kinds: Sequence[ArrayKind]) -> None:
        self._kinds = tuple(kinds)
        self._states = [mx.zeros((0, *kind.shape), kind.dtype) for kind in kinds]

    @property
    def num_bytes(self) -> int:
        """Bytes of all states and of their snapshots."""
        return COPIES * sum(state.nbytes for state in self._states)

    @property
    def arrays(self) -> tuple[mx.array, ...]:
        """The states themselves."""
        return tuple(self._states)

    @property
    def bytes_per_token(self) -> int:
        """A state does not grow."""
        return 0

    @property
    def bytes_per_row(self) -> int:
        """Bytes of one slot's state and of its snapshots."""
        return COPIES * sum(kind.num_bytes for kind in self._kinds)

    def view(self, shape: StepShape) -> RecurrentView:
        """Zero the rows that start, and return what the layer is given."""
        fresh = [start == 0 and count > 0 for start, count in _pairs(shape)]
        for index, state in enumerate(self._states):
            rows = state[shape.slots]
            if any(fresh):
                rows = mx.where(_column(fresh, rows), mx.zeros_like(rows), rows)
                self._assign(index, shape.slots, rows)
        return RecurrentView(self, shape)

    def state(self, shape: StepShape, index: int) -> mx.array:
        """Return one state of the step's rows, [rows, ...]."""
        return self._states[index][shape.slots]

    def put(self, shape: StepShape, index: int, value: mx.array) -> None:
        """Take a step's new state; idle rows keep theirs, whatever the layer made of padding."""
        idle = [count == 0 for count in shape.counts]
        value = value.astype(self._kinds[index].dtype)
        if any(idle):
            value = mx.where(_column(idle, value), self.state(shape, index), value)
        self._assign(index, shape.slots, value)

    def states(self) -> tuple[mx.array, ...]:
        """Return all states as they are now, in arrays of their own that share the memory."""
        return tuple(state[:] for state in self._states)

    def restore(self, states: States, slots: slice, rows: Sequence[bool]) -> None:
        """Give the marked rows of some slots the states they had."""
        for index, before in enumerate(states):
            now = self._states[index][slots]
            self._assign(index, slots, mx.where(_column(rows, now), before[slots], now))

    def resize(self, num_slots: int, capacity: int) -> None:
        """Take room for slots; a state has no positions."""
        self._states = [
            resized(old, (num_slots, *kind.shape))
            for kind, old in zip(self._kinds, self._states, strict=True)
        ]

    def move(self, source: int, destination: int) -> None:
        """Copy one slot over another."""
        for state in self._states:
            state[destination] = state[source]

    def read(self, slot: int, start: int, end: int) -> tuple[mx.array, ...]:
        """Return a copy of the state as it is now: of `end` tokens, if the row holds that many."""
        return tuple(mx.contiguous(state[slot]) for state in self._states)

    def write(self, slot: int, start: int, arrays: tuple[mx.array, ...]) -> None:
        """Put a state that was read."""
        for state, new in zip(self._states, arrays, strict=True):
            state[slot] = new

    def _assign(self, index: int, slots: slice, value: mx.array) -> None:
        """Replace the state of some slots; all of them need no copy of the rest."""
        if value.shape[0] == self._states[index].shape[0]:
            self._states[index] = value
        else:
            self._states[index][slots] = value


def _pairs(shape: StepShape) -> Sequence[tuple[int, int]]:
    return list(zip(shape.starts, shape.counts, strict=True))


def _column(rows: Sequence[bool], like: mx.array) -> mx.array:
    """Return [rows, 1, ...] to choose whole rows of `like`."""
    return mx.array(list(rows)).reshape(-1, *[1] * (like.ndim - 1))
