"""Plans become arrays here: one forward of one model over a range of slots.

The runner owns the model and its cache. It never waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
from mlx_lm.models.cache import KVCache, RotatingKVCache, make_prompt_cache

from engine.arrays import ids_array
from engine.backend import prefers_fused_steps
from engine.cache.slots import SlotCache
from engine.errors import ModelError
from engine.fused.step import fused_step
from engine.models.head import split_head
from engine.models.load import LoadedModel


class Runner:
    """Forwards of one model with slots.

    Args:
        model: the model to run.
        read_block: see engine.cache.slots.StepShape.

    Raises:
        ModelError: a layer keeps something else than keys and values.
    """

    def __init__(self, model: LoadedModel, read_block: int = 1) -> None:
        check_caches(model)
        self._backbone, self._head = split_head(model.model)
        self._fused = fused_step(model.model) if prefers_fused_steps() else None
        self._pads = read_block > 1
        self.cache = SlotCache(model.num_layers, read_block)

    def prefill(self, slot: int, start: int, tokens: Sequence[int]) -> mx.array:
        """Feed prompt tokens of one row.

        Args:
            tokens: ids written at `start` of the slot.

        Returns:
            Hidden states after each token, [1, len(tokens), hidden]; apply `head` to score.
        """
        width = padded_width(len(tokens)) if self._pads else len(tokens)
        ids = ids_array([tokens], width)
        hidden = self._backbone(ids, self.cache.views(slot, (start,), width))
        return hidden[:, : len(tokens)]

    def forward(self, ids: mx.array, first: int, starts: Sequence[int]) -> mx.array:
        """Feed `width` tokens of each of a range of rows.

        Args:
            ids: token ids, [rows, width].
            first: slot of the first row.
            starts: cache length of each row, [rows].

        Returns:
            Logits after each token, [rows, width, vocab].
        """
        width = ids.shape[1]
        if self._fused is None:
            return self._head(self._backbone(ids, self.cache.views(first, starts, width)))
        end = first + len(starts)
        keys, values = self.cache.arrays(end, max(starts) + width)
        slots = mx.arange(first, end, dtype=mx.int32)
        return self._fused(ids, slots, mx.array(list(starts), dtype=mx.int32), keys, values)

    def head(self, hidden: mx.array) -> mx.array:
        """Return the logits of hidden states, [..., hidden] -> [..., vocab]."""
        return self._head(hidden)


def padded_width(num_tokens: int) -> int:
    """Return the prompt width that is computed for so many tokens: a power of two from 16 on."""
    return max(16, 1 << (num_tokens - 1).bit_length())


def check_caches(model: LoadedModel) -> None:
    """Raise ModelError unless every layer's state fits a slot: full or windowed attention."""
    kinds = {type(cache) for cache in make_prompt_cache(model.model)}
    others = sorted(kind.__name__ for kind in kinds - {KVCache, RotatingKVCache})
    if others:
        raise ModelError(
            f"{model.name} keeps {', '.join(others)} in some layers; fm runs models whose layers "
            "all are full or windowed attention, choose one of those"
        )
