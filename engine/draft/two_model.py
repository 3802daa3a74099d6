"""Draft with a smaller model of the same vocabulary.

The drafter keeps its own slots. A proposal feeds it what it has not seen, then chains its own
choices on the device and reads them once. It draws with the row's own parameters and noise, so a
drafter equal to its target agrees with it at any temperature. Penalties see the row's tokens and
not the drafts before them, which the host has not read.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from engine import arrays
from engine.backend import shape_block
from engine.draft.source import DraftRequest
from engine.errors import ModelError
from engine.grammar.mask import apply_mask, bar_tokens, bits_of
from engine.kv_budget import KvCosts, Rectangle
from engine.models.load import LoadedModel, check_same_vocabulary
from engine.plan import RowRange
from engine.profile import profile_steps
from engine.row_params import Draws, RowParams
from engine.rows import SlotTable
from engine.runner import Runner
from engine.sampler import Adjustment, adjust, choose
from engine.sequence import Sequence
from engine.shapes import prefill_width, row_bucket, step_width


@dataclass(slots=True, eq=False)
class DraftRow:
    """A row in the drafter's cache.

    Attributes:
        num_cached: leading ids of the sequence that the drafter's slot holds.
        num_drafted: drafts of the last proposal.
    """

    sequence: Sequence
    num_cached: int = 0
    num_drafted: int = 0


class TwoModelDrafter:
    """Speculation with a draft model.

    Args:
        model: the draft model.
        prefill_chunk: most prompt tokens fed at once.
    """

    def __init__(self, model: LoadedModel, prefill_chunk: int) -> None:
        self._model = model
        self._prefill_chunk = prefill_chunk
        self._runner = Runner(model, shape_block())
        self._table: SlotTable[DraftRow] = SlotTable()
        self._by_sequence: dict[int, DraftRow] = {}
        self._params = RowParams()
        self._end_bits = bits_of((), model.vocab_size)

    def open(self, target: LoadedModel) -> None:
        """Check that both models speak the same tokens; raises ModelError."""
        check_same_vocabulary(target, self._model)
        if not self._runner.cache.is_rewindable:
            raise ModelError(
                f"{self._model.name} has recurrent layers, which cannot take a chain of drafts "
                "back; choose a draft model of attention layers only, or drafter ngram"
            )
        self._end_bits = bits_of(target.eos_ids, self._model.vocab_size)

    @property
    def kv_costs(self) -> KvCosts:
        """What a slot costs in the drafter's cache."""
        return self._runner.kv_costs

    def make_room(self, room: Rectangle) -> None:
        """Size the drafter's cache as the target's; its rows are among the target's."""
        for source, destination in self._table.compact():
            self._runner.cache.move(source, destination)
        self._runner.make_room(room)

    def propose(self, requests: Rows[DraftRequest]) -> list[list[int]]:
        """Return exactly `budget` ids for each row; waits for the device once."""
        rows = [self._row(request.sequence) for request in requests]
        for row in rows:
            self._prefill(row)
        budgets = {id(row): request.budget for row, request in zip(rows, requests, strict=True)}
        chosen = arrays.read_tokens(self._chain(max(budgets.values())))
        for row in rows:
            row.num_drafted = budgets[id(row)]
        return [chosen[self._table.index(row)][: budgets[id(row)]] for row in rows]

    def commit(self, sequence: Sequence, num_accepted: int) -> None:
        """Keep the accepted drafts that are in the cache; the last one never is."""
        row = self._by_sequence[id(sequence)]
        row.num_cached += min(num_accepted, row.num_drafted - 1)

    def close(self, sequence: Sequence) -> None:
        """Free the row's slot."""
        row = self._by_sequence.pop(id(sequence), None)
        if row is not None:
            self._table.leave(row)
            self._params.leave(sequence)

    def token_s(self, rows: int) -> float:
        """Return the time of one forward of the drafter; waits for the device."""
        return profile_steps(self._runner, rows, widest=1).forward(rows, 1)

    def _row(self, sequence: Sequence) -> DraftRow:
        if id(sequence) not in self._by_sequence:
            row = DraftRow(sequence)
            self._table.join(row)
            self._by_sequence[id(sequence)] = row
        return self._by_sequence[id(sequence)]

    def _prefill(self, row: DraftRow) -> None:
        """Feed what the drafter has not seen until one or two tokens are left for the chain."""
        slot, ids = self._table.index(row), row.sequence.ids
        while len(ids) - row.num_cached > 2:
            end = min(row.num_cached + self._prefill_chunk, len(ids) - 1)
            chunk = ids[row.num_cached : end]
            padded = arrays.ids_array([chunk], prefill_width(len(chunk)))
            rows = RowRange(slot, (row.num_cached,), (len(chunk),), adapters=(0,))
            arrays.launch(self._runner.prefill(padded, rows))
            row.num_cached = end

    def _chain(self, num_tokens: int) -> mx.array:
        """Return `num_tokens` chained choices of every slot in use, [slots, num_tokens].

        Rows that asked for fewer, or for none, and holes are computed too: the range of slots is
        contiguous, and what they write is forgotten by not being counted.
        """
        rows = [self._table.at(slot) for slot in range(row_bucket(self._table.num_slots))]
        self._params.seat((slot, row.sequence) for slot, row in self._table.items())
        unseen = [[0] if row is None else row.sequence.ids[row.num_cached :][:2] for row in rows]
        width = step_width(max(map(len, unseen)))
        counts = [len(tokens) for tokens in unseen]
        logits = self._runner.forward(arrays.ids_array(unseen, width), _range(rows, 0, counts))
        last = mx.array([len(tokens) - 1 for tokens in unseen])
        scores = mx.take_along_axis(logits, last[:, None, None], axis=1)[:, 0]
        tokens = [self._choose(scores, rows, 0)]
        for row, seen in zip(rows, unseen, strict=True):
            if row is not None:
                row.num_cached += len(seen)
        for offset in range(1, num_tokens):
            where = _range(rows, offset - 1, [1] * len(rows))
            scores = self._runner.forward(tokens[-1][:, None], where)[:, 0]
            tokens.append(self._choose(scores, rows, offset))
        return mx.stack(tokens, axis=1)

    def _choose(self, scores: mx.array, rows: list[DraftRow | None], offset: int) -> mx.array:
        """Return the choice of every row after `offset` drafts, [rows] int32."""
        records = self._params.records(0, len(rows))
        positions = np.array([row.sequence.num_emitted + offset if row else 0 for row in rows])
        touched = [
            _adjustment(index, row.sequence)
            for index, row in enumerate(rows)
            if row is not None and not records["is_plain"][index]
        ]
        scores = adjust(scores, touched)
        scores = self._bar_ends(scores, np.flatnonzero(positions < records["min_tokens"]))
        return choose(scores, Draws(records, positions))

    def _bar_ends(self, scores: mx.array, barred: NDArray[np.int64]) -> mx.array:
        if not len(barred):
            return scores
        bitmask = np.full((scores.shape[0], len(self._end_bits)), -1, dtype=np.int32)
        bar_tokens(bitmask, barred, self._end_bits)
        return apply_mask(scores, mx.array(bitmask))


def _range(rows: list[DraftRow | None], offset: int, counts: list[int]) -> RowRange:
    """Return where rows are fed, `offset` tokens behind what they hold."""
    starts = tuple(0 if row is None else row.num_cached + offset for row in rows)
    return RowRange(0, starts, tuple(counts), adapters=(0,) * len(rows))


def _adjustment(index: int, sequence: Sequence) -> Adjustment:
    params = sequence.request.sampling
    return Adjustment(index, params, sequence.ids, sequence.num_prompt)
