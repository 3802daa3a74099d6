"""Plans become arrays here: one forward of one model over a range of slots.

The runner owns the model and its cache. It never waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
from mlx_lm.models.cache import KVCache, RotatingKVCache, make_prompt_cache

from engine.cache.slots import SlotCache
from engine.errors import ModelError
from engine.kv_budget import KvCosts, Rectangle
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
        self.cache = SlotCache(model.num_layers, read_block)
        scratch = SlotCache(model.num_layers)
        self._backbone(mx.array([[0]]), scratch.views(0, (0,), 1))
        self._token_bytes = scratch.num_bytes // scratch.capacity

    @property
    def kv_costs(self) -> KvCosts:
        """What a slot of the cache costs."""
        return KvCosts(per_token=self._token_bytes)

    def make_room(self, room: Rectangle) -> None:
        """Size the cache."""
        if room != self.room:
            self.cache.resize(room.num_slots, room.capacity)

    @property
    def room(self) -> Rectangle:
        """The size of the cache."""
        return Rectangle(self.cache.num_slots, self.cache.capacity)

    def prefill(
        self, ids: mx.array, first: int, starts: Sequence[int], counts: Sequence[int]
    ) -> mx.array:
        """Feed prompt tokens of a range of rows.

        Args:
            ids: token ids, [rows, width], padded on the right.
            first: slot of the first row.
            starts: cache length of each row, [rows].
            counts: tokens of each row, at least one, [rows].

        Returns:
            Hidden states after each row's last token, [rows, hidden]; apply `head` to score.
        """
        hidden = self._backbone(ids, self.cache.views(first, starts, ids.shape[1]))
        last = mx.array(list(counts))[:, None, None] - 1
        return mx.take_along_axis(hidden, last, axis=1)[:, 0]

    def forward(self, ids: mx.array, first: int, starts: Sequence[int]) -> mx.array:
        """Feed `width` tokens of each of a range of rows.

        Args:
            ids: token ids, [rows, width].
            first: slot of the first row.
            starts: cache length of each row, [rows].

        Returns:
            Logits after each token, [rows, width, vocab].
        """
        return self._head(self._backbone(ids, self.cache.views(first, starts, ids.shape[1])))

    def head(self, hidden: mx.array) -> mx.array:
        """Return the logits of hidden states, [..., hidden] -> [..., vocab]."""
        return self._head(hidden)


def check_caches(model: LoadedModel) -> None:
    """Raise ModelError unless every layer's state fits a slot: full or windowed attention."""
    kinds = {type(cache) for cache in make_prompt_cache(model.model)}
    others = sorted(kind.__name__ for kind in kinds - {KVCache, RotatingKVCache})
    if others:
        raise ModelError(
            f"{model.name} keeps {', '.join(others)} in some layers; fm runs models whose layers "
            "all are full or windowed attention, choose one of those"
        )
