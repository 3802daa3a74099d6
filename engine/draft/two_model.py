"""Draft with a smaller model of the same vocabulary.

The drafter keeps its own slots. A proposal feeds it what it has not seen, then chains its own
choices on the device and reads them once. It draws with the row's own parameters, and
keeps off end tokens as long as the row must. Under `match` it shares the row's noise, so a drafter
equal to its target agrees with it at any temperature; under `rejection` its noise is its own, and
the law of each draft stays on the device. Penalties see the row's tokens and not the drafts before
them, which the host has not read.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Rows
from dataclasses import dataclass, replace

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from engine import arrays
from engine.backend import shape_block
from engine.draft.source import DraftRequest, Proposal
from engine.errors import ModelError
from engine.grammar.mask import apply_mask, bar_tokens, bits_of
from engine.kv_budget import KvCosts, Rectangle
from engine.models.load import LoadedModel, check_same_vocabulary
from engine.plan import RowRange
from engine.profile import profile_steps
from engine.rejection import Stream, law, stream_seeds
from engine.row_params import Draws, RowParams
from engine.rows import SlotTable
from engine.runner import Runner
from engine.sampler import Adjustment, adjust, choose, gumbel_noise
from engine.sequence import Sequence
from engine.shapes import prefill_width, row_bucket, step_width

MOST_UNSEEN = 2
"""Tokens of a row that a chain may begin with: its newest, and a draft that was accepted unfed."""


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


@dataclass(frozen=True, slots=True)
class Drawn:
    """One draft of every row.

    Args:
        ids: [rows].
        scores: their laws, [rows, vocab]; None when nobody asks for them.
    """

    ids: mx.array
    scores: mx.array | None = None


def _as_the_target(scores: mx.array, draws: Draws) -> Drawn:
    """Draw with the target's own noise."""
    return Drawn(choose(scores, draws))


def _independently(scores: mx.array, draws: Draws) -> Drawn:
    """Draw with noise that the target does not see, and keep the law."""
    records = draws.records.copy()
    records["seed"] = stream_seeds(records["seed"], Stream.DRAFT)
    own = replace(draws, records=records)
    scores = law(scores, own)
    noisy = scores + gumbel_noise(own, scores.shape[-1])
    return Drawn(mx.argmax(noisy, axis=-1).astype(mx.int32), scores)


DRAWING: dict[str, Callable[[mx.array, Draws], Drawn]] = {
    "match": _as_the_target,
    "rejection": _independently,
}


class TwoModelDrafter:
    """Speculation with a draft model.

    Args:
        model: the draft model.
        prefill_chunk: most prompt tokens fed at once.
        acceptance: how its drafts will be judged, a name in DRAWING.
    """

    def __init__(self, model: LoadedModel, prefill_chunk: int, acceptance: str = "match") -> None:
        self._model = model
        self._draw = DRAWING[acceptance]
        self._vocab_size = model.vocab_size
        self._prefill_chunk = prefill_chunk
        self._runner = Runner(model, shape_block())
        self._table: SlotTable[DraftRow] = SlotTable()
        self._by_sequence: dict[int, DraftRow] = {}
        self._params = RowParams()
        self._end_bits = bits_of((), model.vocab_size)

    def warm_up(self, max_rows: int) -> None:
        """Compile what a chain over up to `max_rows` rows needs; waits for the device."""
        self._runner.warm_up(max_rows, widest=MOST_UNSEEN)

    def open(self, target: LoadedModel) -> None:
        """Check that both models speak the same tokens; raises ModelError."""
        check_same_vocabulary(target, self._model)
        if not self._runner.cache.is_rewindable:
            raise ModelError(
                f"{self._model.name} has recurrent layers, which cannot take a chain of drafts "
                "back; choose a draft model of attention layers only, or drafter ngram"
            )
        self._vocab_size = target.vocab_size
        self._end_bits = bits_of(target.eos_ids, target.vocab_size)

    @property
    def kv_costs(self) -> KvCosts:
        """What a slot costs in the drafter's cache."""
        return self._runner.kv_costs

    def make_room(self, room: Rectangle) -> None:
        """Size the drafter's cache as the target's; its rows are among the target's."""
        moves = self._table.compact()
        for source, destination in moves:
            self._runner.cache.move(source, destination)
        if moves or room != self._runner.room:
            self._runner.make_room(room)
            self._runner.cache.launch()  # its next forward may come in another step

    def propose(self, requests: Rows[DraftRequest]) -> list[Proposal]:
        """Return exactly `budget` ids for each row; waits for the device once."""
        rows = [self._row(request.sequence) for request in requests]
        for row in rows:
            self._prefill(row)
        budgets = {id(row): request.budget for row, request in zip(rows, requests, strict=True)}
        drawn = self._chain(max(budgets.values()))
        chosen = arrays.read_tokens(mx.stack([draft.ids for draft in drawn], axis=1))
        for row in rows:
            row.num_drafted = budgets[id(row)]
        laws = [draft.scores for draft in drawn if draft.scores is not None]
        return [_proposal(self._table.index(row), budgets[id(row)], chosen, laws) for row in rows]

    def commit(self, sequence: Sequence, num_accepted: int) -> None:
        """Keep the accepted drafts that are in the cache; the last one never is."""
        row = self._by_sequence[id(sequence)]
        row.num_cached += min(num_accepted, row.num_drafted - 1)

    def close(self, sequence: Sequence) -> None:
        """Free the row's slot."""
        row = self._by_sequence.get(id(sequence))
        if row is None:
            return
        if row in self._table:
            self._table.leave(row)
        self._params.leave(sequence)
        del self._by_sequence[id(sequence)]

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
        """Feed what the drafter has not seen until MOST_UNSEEN tokens are left for the chain."""
        slot, ids = self._table.index(row), row.sequence.ids
        while len(ids) - row.num_cached > MOST_UNSEEN:
            end = min(row.num_cached + self._prefill_chunk, len(ids) - 1)
            chunk = ids[row.num_cached : end]
            # late in a row's life, the cache may end before the padding of a declared width does
            width = min(prefill_width(len(chunk)), self._runner.room.capacity - row.num_cached)
            padded = arrays.ids_array([chunk], width)
            rows = RowRange(slot, (row.num_cached,), (len(chunk),), adapters=(0,))
            arrays.launch(self._runner.prefill(padded, rows))
            row.num_cached = end

    def _chain(self, num_tokens: int) -> list[Drawn]:
        """Return `num_tokens` chained choices of every slot in use.

        Rows that asked for fewer, or for none, and holes are computed too: the range of slots is
        contiguous, and what they write is forgotten by not being counted.
        """
        rows = [self._table.at(slot) for slot in range(row_bucket(self._table.num_slots))]
        self._params.seat((slot, row.sequence) for slot, row in self._table.items())
        unseen = [
            [0] if row is None else row.sequence.ids[row.num_cached :][:MOST_UNSEEN] for row in rows
        ]
        width = step_width(max(map(len, unseen)))
        counts = [len(tokens) for tokens in unseen]
        logits = self._runner.forward(arrays.ids_array(unseen, width), _range(rows, 0, counts))
        last = mx.array([len(tokens) - 1 for tokens in unseen])
        scores = mx.take_along_axis(logits, last[:, None, None], axis=1)[:, 0]
        drawn = [self._choose(scores, rows, 0)]
        for row, seen in zip(rows, unseen, strict=True):
            if row is not None:
                row.num_cached += len(seen)
        for offset in range(1, num_tokens):
            where = _range(rows, offset - 1, [1] * len(rows))
            scores = self._runner.forward(drawn[-1].ids[:, None], where)[:, 0]
            drawn.append(self._choose(scores, rows, offset))
        return drawn

    def _choose(self, scores: mx.array, rows: list[DraftRow | None], offset: int) -> Drawn:
        """Return the choice of every row after `offset` drafts."""
        records = self._params.records(0, len(rows))
        positions = np.array([row.sequence.num_emitted + offset if row else 0 for row in rows])
        touched = [
            _adjustment(index, row.sequence)
            for index, row in enumerate(rows)
            if row is not None and not records["is_plain"][index]
        ]
        scores = adjust(_fit(scores, self._vocab_size), touched)
        scores = self._bar_ends(scores, np.flatnonzero(positions < records["min_tokens"]))
        return self._draw(scores, Draws(records, positions))

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


def _proposal(slot: int, budget: int, chosen: list[list[int]], laws: list[mx.array]) -> Proposal:
    own = mx.stack([scores[slot] for scores in laws[:budget]]) if laws else None
    return Proposal(chosen[slot][:budget], own)


def _fit(scores: mx.array, vocab_size: int) -> mx.array:
    """Return scores [rows, vocab_size] of a drafter whose logits are padded to another width."""
    missing = vocab_size - scores.shape[-1]
    if missing <= 0:
        return scores[:, :vocab_size]
    return mx.pad(scores, [(0, 0), (0, missing)], constant_values=-mx.inf)
