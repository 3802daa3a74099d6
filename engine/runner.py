"""Plans become arrays here: one forward of one model over a range of slots.

The runner owns the model and its cache. It never waits for the device, except when it is built.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from engine.arrays import ids_array
from engine.cache.layout import build_stores
from engine.cache.probe import probe_steps
from engine.cache.slots import SlotCache
from engine.errors import ModelError
from engine.models.head import split_head
from engine.models.load import LoadedModel


class Runner:
    """Forwards of one model with slots.

    Args:
        model: the model to run.
        read_block: see engine.cache.shape.StepShape.
        kv_bits: bits of a key's or value's number, 8 or 4; None leaves them as they come.

    Raises:
        ModelError: a layer keeps something that does not fit a slot, or the model file does not
            compute right with slots.
    """

    def __init__(self, model: LoadedModel, read_block: int = 1, kv_bits: int | None = None) -> None:
        stores = build_stores(model.name, model.model, kv_bits)
        self._support = probe_steps(model.name, model.model, kv_bits)
        self._name = model.name
        self._backbone, self._head = split_head(model.model)
        self.cache = SlotCache(stores, read_block)

    def check_batch(self) -> None:
        """Raise ModelError when rows of different lengths cannot share a step."""
        if self._support.ragged_fault:
            raise ModelError(
                f"{self._name} cannot compute rows of different lengths together "
                f"({self._support.ragged_fault}); set max_rows to 1"
            )

    def prefill(
        self, first: int, starts: Sequence[int], rows: Sequence[Sequence[int]], width: int
    ) -> mx.array:
        """Feed known tokens to each of a range of rows.

        Args:
            first: slot of the first row.
            starts: cache length of each row, [rows].
            rows: ids written at each row's start, at most `width`; none for an idle row.
            width: positions every row writes, padding on the right included.

        Returns:
            Hidden states after each row's last token, [rows, hidden]; apply `head` to score.
            That of an idle row means nothing.
        """
        counts = [len(tokens) for tokens in rows]
        views = self.cache.views(first, starts, counts, width)
        hidden = self._backbone(ids_array(rows, width), views)
        if min(counts) == width:
            return hidden[:, -1]
        last = mx.array([max(count - 1, 0) for count in counts])
        return mx.take_along_axis(hidden, last[:, None, None], axis=1)[:, 0]

    def forward(
        self, ids: mx.array, first: int, starts: Sequence[int], counts: Sequence[int]
    ) -> mx.array:
        """Feed `width` tokens of each of a range of rows.

        Args:
            ids: token ids, [rows, width].
            first: slot of the first row.
            starts: cache length of each row, [rows].
            counts: real tokens of each row, [rows]; 0 for an idle row.

        Returns:
            Logits after each token, [rows, width, vocab].
        """
        views = self.cache.views(first, starts, counts, ids.shape[1])
        return self._head(self._backbone(ids, views))

    def head(self, hidden: mx.array) -> mx.array:
        """Return the logits of hidden states, [..., hidden] -> [..., vocab]."""
        return self._head(hidden)

    def settle(self, first: int, kept: Sequence[int]) -> tuple[int, ...]:
        """Forget what the last forward fed beyond `kept` tokens a row; see SlotCache.settle."""
        return self.cache.settle(first, kept)
