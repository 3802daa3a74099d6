"""Draft by looking back: what followed the longest recent match of the row's last tokens.

No weights and no device work. A row's tokens are indexed as they arrive, so a proposal costs a few
dictionary look-ups. Long matches are trusted at once; a short match length has to earn it: it
drafts while the acceptance it has shown in this row pays for the wider verify step.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass, field

from engine.draft.source import DraftRequest
from engine.models.load import LoadedModel
from engine.sequence import Sequence

MAX_MATCH = 4
"""Longest suffix looked up; longer ones agree with it almost always."""

PAYING_RATE = 0.25
"""Accepted drafts a step below which a match length stops drafting: a verify step of 2 to 8
positions costs about a quarter more than a plain one (SmolLM2-135M, float32, 2 CPU cores)."""

RATE_MEMORY = 0.8
"""Weight of the past in a match length's running acceptance."""


@dataclass(slots=True)
class RowIndex:
    """Where each short run of tokens of a row last ended, and what drafting by it has paid.

    Attributes:
        ends: for each length n - 1, n-gram -> index just behind its latest occurrence that has a
            successor.
        rates: for each length n - 1, running mean of accepted drafts a step; optimistic at first.
        last_match: length that made the last proposal, 0 for none.
    """

    ends: list[dict[tuple[int, ...], int]] = field(
        default_factory=lambda: [{} for _ in range(MAX_MATCH)]
    )
    rates: list[float] = field(default_factory=lambda: [0.3, 1.0, 2.0, 2.0])
    indexed: int = 0
    last_match: int = 0

    def extend(self, ids: list[int]) -> None:
        """Index every n-gram that ends before the last token of `ids`."""
        for end in range(max(self.indexed, 1), len(ids)):
            for length in range(1, min(MAX_MATCH, end) + 1):
                self.ends[length - 1][tuple(ids[end - length : end])] = end
        self.indexed = len(ids)

    def look_up(self, ids: list[int], budget: int) -> list[int]:
        """Return what followed the longest match of the end of `ids`, at most `budget` tokens."""
        self.last_match = 0
        for length in range(min(MAX_MATCH, len(ids)), 0, -1):
            end = self.ends[length - 1].get(tuple(ids[len(ids) - length :]))
            if end is None:
                continue
            if self.rates[length - 1] < PAYING_RATE:
                # Forgive slowly, so that a row whose text changes gets another try.
                self.rates[length - 1] += 0.01
                return []
            self.last_match = length
            return ids[end : end + budget]
        return []


class NgramDrafter:
    """Prompt look-up drafting."""

    def __init__(self) -> None:
        self._rows: dict[int, RowIndex] = {}

    def open(self, target: LoadedModel) -> None:
        """Nothing to bind: ids are ids."""

    def propose(self, requests: Rows[DraftRequest]) -> list[list[int]]:
        """Return up to `budget` ids for each row."""
        return [self._propose(request) for request in requests]

    def _propose(self, request: DraftRequest) -> list[int]:
        ids = request.sequence.ids
        index = self._rows.setdefault(id(request.sequence), RowIndex())
        index.extend(ids)
        return index.look_up(ids, request.budget)

    def commit(self, sequence: Sequence, num_accepted: int) -> None:
        """Update the acceptance of the match length that drafted."""
        index = self._rows[id(sequence)]
        if index.last_match:
            rate = index.rates[index.last_match - 1]
            index.rates[index.last_match - 1] = (
                RATE_MEMORY * rate + (1 - RATE_MEMORY) * num_accepted
            )

    def close(self, sequence: Sequence) -> None:
        """Forget a row."""
        self._rows.pop(id(sequence), None)
