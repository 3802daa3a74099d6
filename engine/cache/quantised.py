"""Keys and values held in 8 or 4 bits, in the form that mlx-lm's quantised attention reads.

A position is quantised by itself when it is written, so neighbours, drafts and chunks reach it only
through float rounding; but where that tips a number over to the next step, a key or value changes
by a whole step (1/255 or 1/15 of its group's range).
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from engine.cache.attention import AttentionView, Held
from engine.cache.positions import ArrayKind
from engine.errors import ModelError

GROUP_SIZES = (64, 32)
"""Values that share a scale and a bias, the preferred size first."""

BITS_PER_WORD = 32


@dataclass(frozen=True, slots=True)
class Quantised:
    """Keys and values in groups with a scale and a bias each (mx.quantize, affine).

    Args:
        bits: 8 or 4.
        group_size: one of GROUP_SIZES.
    """

    bits: int
    group_size: int

    def kinds(self, kind: ArrayKind) -> tuple[ArrayKind, ...]:
        """Return packed words, scales and biases."""
        heads, dim = kind.shape
        packed = ArrayKind((heads, dim * self.bits // BITS_PER_WORD), mx.uint32)
        scales = ArrayKind((heads, dim // self.group_size), kind.dtype)
        return (packed, scales, scales)

    def pack(self, new: mx.array) -> tuple[mx.array, ...]:
        """Return packed words, scales and biases of [rows, heads, width, dim]."""
        packed, scales, biases = mx.quantize(new, group_size=self.group_size, bits=self.bits)
        return packed, scales, biases

    def unpack(self, arrays: tuple[mx.array, ...]) -> tuple[mx.array, ...]:
        """Return the triple: the attention reads it as it is."""
        return arrays

    def view(self, view: AttentionView) -> QuantisedView:
        """Return a view that says how its keys and values are packed."""
        return QuantisedView(view, self.bits, self.group_size)


class QuantisedView:
    """An AttentionView whose `bits` sends mlx-lm to its quantised attention."""

    def __init__(self, view: AttentionView, bits: int, group_size: int) -> None:
        self._view = view
        self.bits = bits
        self.group_size = group_size

    @property
    def offset(self) -> int | mx.array:
        """See AttentionView."""
        return self._view.offset

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Held, Held]:
        """Write [rows, kv_heads, width, head_dim]; return (packed, scales, biases) of both."""
        return self._view.update_and_fetch(keys, values)

    def keys_and_values(self) -> tuple[Held, Held]:
        """See AttentionView."""
        return self._view.keys_and_values()

    def make_mask(
        self, width: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array | str | None:
        """See AttentionView."""
        return self._view.make_mask(width, return_array, window_size)


def quantised(bits: int, model_name: str, *head_dims: int) -> Quantised:
    """Return the packing for heads of these dimensions.

    Raises:
        ModelError: no group size divides them all.
    """
    for group_size in GROUP_SIZES:
        if all(dim % group_size == 0 for dim in head_dims):
            return Quantised(bits, group_size)
    dims = " and ".join(str(dim) for dim in sorted(set(head_dims)))
    raise ModelError(
        f"{model_name} has heads of dimension {dims}; quantised keys and values need a multiple "
        f"of {GROUP_SIZES[-1]}, leave kv_bits unset for this model"
    )
