"""Plans become arrays here: one forward of one model over a range of slots.

The runner owns the model and its cache. It never waits for the device, except when it is built and
warmed up.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import mlx.core as mx

from engine import arrays
from engine.backend import prefers_fused_steps
from engine.cache.layout import build_stores
from engine.cache.probe import probe_steps
from engine.cache.slots import SlotCache
from engine.errors import ModelError
from engine.fused.step import FusedStep, fused_step
from engine.fused.variants import Shape
from engine.kv_budget import KvCosts, Rectangle
from engine.models.head import split_head
from engine.models.load import LoadedModel
from engine.models.lora import AdapterSet
from engine.plan import RowRange
from engine.shapes import CAPACITY_BLOCK, ROW_BUCKETS, STEP_WIDTHS, row_bucket, step_width
from engine.switches import allows


class Runner:
    """Forwards of one model with slots.

    Args:
        model: the model to run.
        read_block: see engine.cache.shape.StepShape.
        kv_bits: bits of a key's or value's number, 8 or 4; None leaves them as they come.
        adapters: LoRA adapters of `model` that rows may ask for.

    Raises:
        ModelError: a layer keeps something that does not fit a slot, or the model file does not
            compute right with slots.
    """

    def __init__(
        self,
        model: LoadedModel,
        read_block: int = 1,
        kv_bits: int | None = None,
        adapters: AdapterSet | None = None,
    ) -> None:
        stores = build_stores(model.name, model.model, kv_bits)
        self._support = probe_steps(model.name, model.model, kv_bits)
        self._model, self._kv_bits = model, kv_bits
        self._adapters = adapters or AdapterSet(model)
        self._backbone, self._head = split_head(self._adapters.model.model)
        self._fused = self._fused_step()
        self.cache = SlotCache(stores, read_block)

    def on_empty_cache(self) -> Runner:
        """Return a runner of the same model whose cache is a new one with the same settings."""
        other = copy(self)
        stores = build_stores(self._model.name, self._model.model, self._kv_bits)
        other.cache = SlotCache(stores, self.cache.read_block)
        return other

    def check_batch(self) -> None:
        """Raise ModelError when rows of different lengths cannot share a step."""
        if self._support.ragged_fault:
            raise ModelError(
                f"{self._model.name} cannot compute rows of different lengths together "
                f"({self._support.ragged_fault}); set max_rows to 1"
            )

    @property
    def kv_costs(self) -> KvCosts:
        """What a slot of the cache costs."""
        return KvCosts(per_token=self.cache.bytes_per_token, per_slot=self.cache.bytes_per_row)

    @property
    def room(self) -> Rectangle:
        """The size of the cache."""
        return Rectangle(self.cache.num_slots, self.cache.capacity)

    def make_room(self, room: Rectangle) -> None:
        """Take exactly this much cache; what fits is kept."""
        self.cache.resize(room.num_slots, room.capacity)

    def warm_up(self, max_rows: int, widest: int) -> None:
        """Compile what decode steps up to this many rows and columns need, before a request waits.

        Fused kernels are compiled at first use, seconds each; without them there is nothing to do.
        Waits for the device, and leaves the cache as it is.
        """
        if self._fused is None:
            return
        rows = ROW_BUCKETS[: ROW_BUCKETS.index(row_bucket(max_rows)) + 1]
        widths = STEP_WIDTHS[: STEP_WIDTHS.index(step_width(widest)) + 1]
        for shape in self._fused.covering(Shape(r, w) for r in rows for w in widths):
            scratch = self.on_empty_cache()
            scratch.make_room(Rectangle(shape.rows, CAPACITY_BLOCK))
            ids = mx.zeros((shape.rows, shape.width), mx.int32)
            nothing = (0,) * shape.rows
            where = RowRange(0, nothing, (shape.width,) * shape.rows, adapters=nothing)
            arrays.read(mx.argmax(scratch.forward(ids, where), axis=-1))

    def prefill(self, ids: mx.array, rows: RowRange) -> mx.array:
        """Feed prompt tokens.

        Args:
            ids: token ids, [rows, width], padded on the right.

        Returns:
            Hidden states after each row's last token, [rows, hidden]; apply `head` to score.
            That of an idle row means nothing.
        """
        hidden = self._feed(ids, rows)
        if min(rows.counts) == ids.shape[1]:
            return hidden[:, -1]
        last = mx.array([max(count - 1, 0) for count in rows.counts])
        return mx.take_along_axis(hidden, last[:, None, None], axis=1)[:, 0]

    def forward(self, ids: mx.array, rows: RowRange) -> mx.array:
        """Feed a burst of each row.

        Args:
            ids: token ids, [rows, width], padded on the right.

        Returns:
            Logits after each token, [rows, width, vocab].
        """
        if self._fused is None:
            return self._head(self._feed(ids, rows))
        slots = mx.arange(rows.first, rows.first + len(rows.starts), dtype=mx.int32)
        starts = mx.array(rows.starts, dtype=mx.int32)
        keys, values = zip(*self.cache.arrays(), strict=True)
        return self._fused(ids, slots, starts, keys, values)

    def head(self, hidden: mx.array) -> mx.array:
        """Return the logits of hidden states, [..., hidden] -> [..., vocab]."""
        return self._head(hidden)

    def settle(self, first: int, kept: Sequence[int]) -> tuple[int, ...]:
        """Forget what the last forward fed beyond `kept` tokens a row; see SlotCache.settle."""
        held = self.cache.settle(first, kept)
        self._launch_states()
        return held

    def launch(self, output: mx.array) -> None:
        """Start computing what a forward gave and what it leaves in the cache; does not wait."""
        arrays.launch(output)
        self._launch_states()

    def _launch_states(self) -> None:
        """Start the newest states of recurrent layers, on which no output hangs."""
        if not self.cache.is_rewindable:
            self.cache.launch()

    def _fused_step(self) -> FusedStep | None:
        """Return the step as kernels where the backend, the model and its rows allow it."""
        is_plain = self._kv_bits is None and not self._adapters.names
        if not (is_plain and prefers_fused_steps() and allows("FM_FUSED")):
            return None
        return fused_step(self._model.model)

    def _feed(self, ids: mx.array, rows: RowRange) -> mx.array:
        self._adapters.select(rows.adapters)
        views = self.cache.views(rows.first, rows.starts, rows.counts, ids.shape[1])
        return self._backbone(ids, views)
