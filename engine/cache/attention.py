"""Attention layers, full or windowed: keys and values of every position under the step's mask.

A row forgets rejected drafts by not counting them. Windowed layers keep all positions too and read
them under a windowed mask. How keys and values are held is a Packing: as they come, or quantised.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import mlx.core as mx

from engine.cache.positions import ArrayKind, Positions
from engine.cache.shape import StepShape
from engine.cache.store import States

Held = mx.array | tuple[mx.array, ...]
"""Keys or values: an array, or (packed, scales, biases)."""


class Packing(Protocol):
    """How keys and values become arrays of positions."""

    def kinds(self, kind: ArrayKind) -> tuple[ArrayKind, ...]:
        """Return the arrays that hold keys (or values) of `kind`."""
        ...

    def pack(self, new: mx.array) -> tuple[mx.array, ...]:
        """Return the arrays of some keys (or values)."""
        ...

    def unpack(self, arrays: tuple[mx.array, ...]) -> Held:
        """Return keys (or values) as the model's attention takes them."""
        ...

    def view(self, view: AttentionView) -> Any:
        """Return the view that tells the model what it is given."""
        ...


class Plain:
    """Keys and values as they come."""

    def kinds(self, kind: ArrayKind) -> tuple[ArrayKind, ...]:
        """Return the one array."""
        return (kind,)

    def pack(self, new: mx.array) -> tuple[mx.array, ...]:
        """Return the one array."""
        return (new,)

    def unpack(self, arrays: tuple[mx.array, ...]) -> mx.array:
        """Return the one array."""
        return arrays[0]

    def view(self, view: AttentionView) -> AttentionView:
        """Return the view itself."""
        return view


class AttentionView:
    """One attention layer's cache as an mlx-lm model file sees it during one forward.

    Args:
        grouped: see AttentionStore.
    """

    def __init__(self, store: AttentionStore, shape: StepShape, grouped: bool) -> None:
        self._store = store
        self._shape = shape
        self._grouped = grouped
        self._held: tuple[Held, Held] | None = None

    @property
    def offset(self) -> int | mx.array:
        """Position of the step's first token, [rows] or one number for all."""
        return self._shape.offset

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Held, Held]:
        """Write [rows, kv_heads, width, head_dim]; return all positions up to the extent."""
        self._held = self._store.put(self._shape, keys, values)
        return self._held

    def keys_and_values(self) -> tuple[Held, Held]:
        """Return what the layer that owns this cache has fetched, for layers that share it."""
        assert self._held is not None, "a layer read shared keys before their owner wrote them"
        return self._held

    def make_mask(
        self, width: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array | str | None:
        """Return the attention mask in the cheapest form that says the same."""
        shape = self._shape
        fits = window_size is None or shape.end <= window_size
        if fits and shape.is_uniform and shape.extent == shape.end and not return_array:
            return None if width == 1 else "causal"
        mask = shape.mask(None if fits else window_size)
        return mask[:, None] if self._grouped else mask


class AttentionStore:
    """Keys and values of one layer.

    Args:
        keys: kind of the keys, shape [kv_heads, head_dim].
        values: kind of the values.
        grouped: the layer computes its own scores, [rows, kv_heads, repeats, width, extent], so a
            mask array needs one axis more.
    """

    def __init__(
        self, keys: ArrayKind, values: ArrayKind, packing: Packing, grouped: bool = False
    ) -> None:
        kinds = packing.kinds(keys)
        self._num_key_arrays = len(kinds)
        self._positions = Positions((*kinds, *packing.kinds(values)))
        self._packing = packing
        self._grouped = grouped

    @property
    def num_bytes(self) -> int:
        """Bytes of keys and values."""
        return self._positions.num_bytes

    @property
    def arrays(self) -> tuple[mx.array, ...]:
        """Keys and values themselves, [slots, kv_heads, capacity, ...] each."""
        return self._positions.arrays

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one position."""
        return self._positions.bytes_per_token

    @property
    def bytes_per_row(self) -> int:
        """Nothing here that does not grow."""
        return 0

    def view(self, shape: StepShape) -> Any:
        """Return what the layer is given for one forward."""
        return self._packing.view(AttentionView(self, shape, self._grouped))

    def put(self, shape: StepShape, keys: mx.array, values: mx.array) -> tuple[Held, Held]:
        """Put a step's keys and values behind each row's length; see AttentionView."""
        new = (*self._packing.pack(keys), *self._packing.pack(values))
        held, cut = self._positions.put(shape, new), self._num_key_arrays
        return self._packing.unpack(held[:cut]), self._packing.unpack(held[cut:])

    def resize(self, num_slots: int, capacity: int) -> None:
        """Take room; what fits is kept."""
        self._positions.resize(num_slots, capacity)

    def move(self, source: int, destination: int) -> None:
        """Copy one slot over another."""
        self._positions.move(source, destination)

    def read(self, slot: int, start: int, end: int) -> tuple[mx.array, ...]:
        """Return copies of positions, [kv_heads, end - start, width]."""
        return self._positions.read(slot, start, end)

    def write(self, slot: int, start: int, arrays: tuple[mx.array, ...]) -> None:
        """Put positions that were read."""
        self._positions.write(slot, start, arrays)

    def states(self) -> tuple[()]:
        """Nothing is replaced."""
        return ()

    def restore(self, states: States, slots: slice, rows: Sequence[bool]) -> None:
        """Nothing to do: what is not counted is forgotten."""
