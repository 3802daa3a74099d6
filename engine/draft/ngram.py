"""Draft by looking back: what followed the longest recent match of the row's last tokens.

No weights and no device work. A row's tokens are indexed as they arrive, so a proposal costs a few
dictionary look-ups. How far a match is trusted grows with its length: one token of agreement
drafts one, two draft three, three draft seven, which are the declared step widths less one.
docs/decisions/ngram.md compares the rule with others.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass, field

from engine.draft.source import DraftRequest, Proposal
from engine.kv_budget import KvCosts, Rectangle
from engine.models.load import LoadedModel
from engine.sequence import Sequence

DRAFTS_BY_MATCH = (1, 3, 7)
"""Most tokens drafted on a match of one, two and three tokens; longer ones are not looked up."""

MAX_MATCH = len(DRAFTS_BY_MATCH)


@dataclass(slots=True)
class RowIndex:
    """Where each short run of tokens of a row last ended.

    Attributes:
        ends: for each length n - 1, n-gram -> index just behind its latest occurrence that has a
            successor.
        num_indexed: tokens of the row seen so far.
    """

    ends: list[dict[tuple[int, ...], int]] = field(
        default_factory=lambda: [{} for _ in range(MAX_MATCH)]
    )
    num_indexed: int = 0

    def extend(self, ids: list[int]) -> None:
        """Index every n-gram that ends before the last token of `ids`."""
        for end in range(max(self.num_indexed, 1), len(ids)):
            for length in range(1, min(MAX_MATCH, end) + 1):
                self.ends[length - 1][tuple(ids[end - length : end])] = end
        self.num_indexed = len(ids)

    def look_up(self, ids: list[int], budget: int) -> list[int]:
        """Return what followed the longest match of the end of `ids`, at most `budget` tokens."""
        for length in range(min(MAX_MATCH, len(ids)), 0, -1):
            end = self.ends[length - 1].get(tuple(ids[len(ids) - length :]))
            if end is not None:
                return ids[end : end + min(budget, DRAFTS_BY_MATCH[length - 1])]
        return []


class NgramDrafter:
    """Prompt look-up drafting."""

    def __init__(self) -> None:
        self._rows: dict[int, RowIndex] = {}

    def open(self, target: LoadedModel) -> None:
        """Nothing to bind: ids are ids."""

    @property
    def kv_costs(self) -> KvCosts:
        """It keeps no cache."""
        return KvCosts(per_token=0)

    def make_room(self, room: Rectangle) -> None:
        """It keeps no cache."""

    def propose(self, requests: Rows[DraftRequest]) -> list[Proposal]:
        """Return up to `budget` ids for each row."""
        return [Proposal(self._propose(request)) for request in requests]

    def _propose(self, request: DraftRequest) -> list[int]:
        ids = request.sequence.ids
        index = self._rows.setdefault(id(request.sequence), RowIndex())
        index.extend(ids)
        return index.look_up(ids, request.budget)

    def commit(self, sequence: Sequence, num_accepted: int) -> None:
        """Nothing to learn: the next proposal reads the row itself."""

    def close(self, sequence: Sequence) -> None:
        """Forget a row."""
        self._rows.pop(id(sequence), None)

    def token_s(self, rows: int) -> float:
        """A look-up costs nothing worth counting."""
        return 0.0
