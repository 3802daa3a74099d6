"""The KV cache: one slot a row, left-aligned, with the length kept by whoever plans the step.

A layer holds `[slots, kv_heads, capacity, head_dim]`. A step writes its tokens behind the row's
length and reads under the mask `position <= length + i`, so a row joins by taking a slot, leaves by
giving it up, and forgets rejected drafts by not counting them.

mlx-lm's model files see a LayerView: they call `offset`, `update_and_fetch` and `make_mask`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import mlx.core as mx

from engine.config import CAPACITY_BLOCK


def round_up(number: int, block: int) -> int:
    """Return the smallest multiple of `block` that is at least `number`."""
    return -(-number // block) * block


@dataclass(frozen=True)
class StepShape:
    """Where one forward reads and writes; shared by all layers of the step.

    Args:
        first: first slot.
        starts: cache length of each row, [rows].
        width: positions written per row; short rows write padding behind their last token, which
            the next step overwrites.
        read_block: the read extent is rounded up to a multiple of this, for stable shapes.
    """

    first: int
    starts: tuple[int, ...]
    width: int
    read_block: int = 1

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.starts)

    @property
    def end(self) -> int:
        """Positions the cache must have room for."""
        return max(self.starts) + self.width

    @property
    def extent(self) -> int:
        """Positions the step reads; of a new row, just those it writes."""
        return round_up(self.end, self.read_block) if max(self.starts) else self.end

    @property
    def is_uniform(self) -> bool:
        """True when every row has the same length: plain slices do."""
        return min(self.starts) == max(self.starts)

    @cached_property
    def offset(self) -> int | mx.array:
        """Position of the first written token: a number, or [rows] when they differ."""
        return self.starts[0] if self.is_uniform else mx.array(self.starts, dtype=mx.int32)

    @cached_property
    def positions(self) -> mx.array:
        """Absolute position of every written token, [rows, width]."""
        return mx.array(self.starts, dtype=mx.int32)[:, None] + mx.arange(self.width)[None]

    def mask(self, window: int | None) -> mx.array:
        """Return [rows, 1, width, extent], true where a query may look; rows=1 when uniform."""
        positions = self.positions[:1] if self.is_uniform else self.positions
        query = positions[:, None, :, None]
        key = mx.arange(self.extent)[None, None, None]
        seen = key <= query
        return seen if window is None else seen & (key > query - window)


class LayerView:
    """One layer's cache as an mlx-lm model file sees it during one forward."""

    def __init__(self, cache: SlotCache, layer: int, shape: StepShape) -> None:
        self._cache = cache
        self._layer = layer
        self._shape = shape

    @property
    def offset(self) -> int | mx.array:
        """Position of the step's first token, [rows] or one number for all."""
        return self._shape.offset

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Write [rows, kv_heads, width, head_dim]; return all positions up to the extent."""
        return self._cache.write(self._layer, self._shape, keys, values)

    def make_mask(
        self, width: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array | str | None:
        """Return the attention mask in the cheapest form that says the same."""
        shape = self._shape
        fits = window_size is None or shape.end <= window_size
        if fits and shape.is_uniform and shape.extent == shape.end and not return_array:
            return None if width == 1 else "causal"
        return self._cache.mask(shape, None if fits else window_size)


class SlotCache:
    """Keys and values of all layers for up to `max_slots` rows.

    Args:
        num_layers: attention layers.
        read_block: see StepShape.
    """

    def __init__(self, num_layers: int, read_block: int = 1) -> None:
        self._keys: list[mx.array | None] = [None] * num_layers
        self._values: list[mx.array | None] = [None] * num_layers
        self._read_block = read_block
        self._masks: dict[int | None, mx.array] = {}
        self._mask_shape: StepShape | None = None
        self.num_slots = 0
        self.capacity = 0

    @property
    def num_bytes(self) -> int:
        """Bytes held by keys and values."""
        held = [array for array in (*self._keys, *self._values) if array is not None]
        return sum(array.nbytes for array in held)

    def views(self, first: int, starts: Sequence[int], width: int) -> list[LayerView]:
        """Return what a model needs for one forward over `len(starts)` slots from `first`."""
        shape = StepShape(first, tuple(starts), width, self._read_block)
        self.num_slots = max(self.num_slots, first + shape.rows)
        self.capacity = max(self.capacity, round_up(shape.end, CAPACITY_BLOCK))
        return [LayerView(self, layer, shape) for layer in range(len(self._keys))]

    def arrays(self, num_slots: int, end: int) -> tuple[list[mx.array], list[mx.array]]:
        """Return keys and values of every layer, with room for `num_slots` rows of `end` positions.

        For steps that write into them: [slots, kv_heads, capacity, head_dim] each. Some row must
        have been written through `views` before.
        """
        self.num_slots = max(self.num_slots, num_slots)
        self.capacity = max(self.capacity, round_up(end, CAPACITY_BLOCK))
        for held in (self._keys, self._values):
            held[:] = [self._grown(array, array) for array in held if array is not None]
        return self._keys, self._values  # type: ignore[return-value]  # none is None any more

    def move(self, source: int, destination: int) -> None:
        """Copy one slot over another, in all layers."""
        for arrays in (self._keys, self._values):
            for array in arrays:
                if array is not None and source < array.shape[0]:
                    array[destination] = array[source]

    def mask(self, shape: StepShape, window: int | None) -> mx.array:
        """Return the mask of a step, built once for all layers."""
        if self._mask_shape is not shape:
            self._mask_shape, self._masks = shape, {}
        if window not in self._masks:
            self._masks[window] = shape.mask(window)
        return self._masks[window]

    def write(
        self, layer: int, shape: StepShape, keys: mx.array, values: mx.array
    ) -> tuple[mx.array, mx.array]:
        """Put a step's keys and values behind each row's length; see LayerView."""
        self._keys[layer] = held_keys = self._put(self._keys[layer], shape, keys)
        self._values[layer] = held_values = self._put(self._values[layer], shape, values)
        rows = slice(shape.first, shape.first + shape.rows)
        return held_keys[rows, :, : shape.extent], held_values[rows, :, : shape.extent]

    def _put(self, held: mx.array | None, shape: StepShape, new: mx.array) -> mx.array:
        held = self._grown(held, new)
        first, last = shape.first, shape.first + shape.rows
        if shape.is_uniform:
            held[first:last, :, shape.starts[0] : shape.end] = new
            return held
        index = mx.broadcast_to(shape.positions[:, None, :, None], new.shape)
        if shape.rows == held.shape[0]:
            return mx.put_along_axis(held, index, new, axis=2)
        held[first:last] = mx.put_along_axis(held[first:last], index, new, axis=2)
        return held

    def _grown(self, held: mx.array | None, new: mx.array) -> mx.array:
        """Return `held` with room for `num_slots` rows of `capacity` positions."""
        _, heads, _, dim = new.shape
        full = (self.num_slots, heads, self.capacity, dim)
        if held is None:
            return mx.zeros(full, new.dtype)
        if held.shape == full:
            return held
        grown = mx.zeros(full, new.dtype)
        slots, _, capacity, _ = held.shape
        grown[:slots, :, :capacity] = held
        return grown
