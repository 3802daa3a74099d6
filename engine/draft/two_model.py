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

from engine import arrays
from engine.backend import shape_block
from engine.draft.source import DraftRequest
from engine.models.load import LoadedModel, check_same_vocabulary
from engine.plan import step_width
from engine.profile import profile_steps
from engine.rows import RowTable
from engine.runner import Runner
from engine.sampler import Draw, adjust, choose
from engine.sequence import Sequence


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
        self._table: RowTable[DraftRow] = RowTable()
        self._by_sequence: dict[int, DraftRow] = {}

    def open(self, target: LoadedModel) -> None:
        """Check that both models speak the same tokens; raises ModelError."""
        check_same_vocabulary(target, self._model)

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
        if row is None:
            return
        move = self._table.leave(row)
        if move is not None:
            self._runner.cache.move(*move)

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
            arrays.launch(self._runner.prefill(slot, row.num_cached, chunk))
            row.num_cached = end

    def _chain(self, num_tokens: int) -> mx.array:
        """Return `num_tokens` chained choices of every row in the table, [rows, num_tokens].

        Rows that asked for fewer, or for none, are computed too: the range of slots is contiguous,
        and what they write is forgotten by not being counted.
        """
        rows = list(self._table)
        unseen = [row.sequence.ids[row.num_cached :][:2] for row in rows]
        width = step_width(max(len(tokens) for tokens in unseen))
        logits = self._runner.forward(
            arrays.ids_array(unseen, width), 0, [row.num_cached for row in rows]
        )
        last = mx.array([len(tokens) - 1 for tokens in unseen])
        scores = mx.take_along_axis(logits, last[:, None, None], axis=1)[:, 0]
        tokens = [self._choose(scores, rows, 0)]
        for row, seen in zip(rows, unseen, strict=True):
            row.num_cached += len(seen)
        for offset in range(1, num_tokens):
            starts = [row.num_cached + offset - 1 for row in rows]
            scores = self._runner.forward(tokens[-1][:, None], 0, starts)[:, 0]
            tokens.append(self._choose(scores, rows, offset))
        return mx.stack(tokens, axis=1)

    def _choose(self, scores: mx.array, rows: list[DraftRow], offset: int) -> mx.array:
        draws = [
            Draw(
                row.sequence.request.sampling,
                row.sequence.seed,
                row.sequence.num_emitted + offset,
                row.sequence.ids,
                row.sequence.num_prompt,
            )
            for row in rows
        ]
        return choose(adjust(scores, draws), draws)
