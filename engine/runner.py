"""Plans become arrays here: one forward of one model over a range of slots.

The runner owns the model and its cache. It never waits for the device.
"""

from __future__ import annotations

import mlx.core as mx
from mlx_lm.models.cache import KVCache, RotatingKVCache, make_prompt_cache

from engine.cache.slots import SlotCache
from engine.errors import ModelError
from engine.kv_budget import KvCosts, Rectangle
from engine.models.head import split_head
from engine.models.load import LoadedModel
from engine.models.lora import AdapterSet
from engine.plan import RowRange


class Runner:
    """Forwards of one model with slots.

    Args:
        model: the model to run.
        read_block: see engine.cache.slots.StepShape.
        adapters: LoRA adapters of `model` that rows may ask for.

    Raises:
        ModelError: a layer keeps something else than keys and values.
    """

    def __init__(
        self, model: LoadedModel, read_block: int = 1, adapters: AdapterSet | None = None
    ) -> None:
        check_caches(model)
        self._adapters = adapters or AdapterSet(model)
        self._backbone, self._head = split_head(self._adapters.model.model)
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

    def prefill(self, ids: mx.array, rows: RowRange) -> mx.array:
        """Feed prompt tokens.

        Args:
            ids: token ids, [rows, width], padded on the right.

        Returns:
            Hidden states after each row's last token, [rows, hidden]; apply `head` to score.
        """
        last = mx.array([max(count - 1, 0) for count in rows.counts])[:, None, None]
        return mx.take_along_axis(self._feed(ids, rows), last, axis=1)[:, 0]

    def forward(self, ids: mx.array, rows: RowRange) -> mx.array:
        """Feed a burst of each row.

        Args:
            ids: token ids, [rows, width], padded on the right.

        Returns:
            Logits after each token, [rows, width, vocab].
        """
        return self._head(self._feed(ids, rows))

    def _feed(self, ids: mx.array, rows: RowRange) -> mx.array:
        self._adapters.select(rows.adapters)
        return self._backbone(ids, self.cache.views(rows.first, rows.starts, ids.shape[1]))

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
