"""The seam between the loop and whatever proposes tokens.

A drafter can be wrong, slow or broken; the output does not change, because every draft is verified.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx

from engine.kv_budget import KvCosts, Rectangle
from engine.models.load import LoadedModel
from engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """A row that may be drafted for.

    Args:
        budget: most tokens wanted; at least 1.
    """

    sequence: Sequence
    budget: int


@dataclass(frozen=True, slots=True)
class Proposal:
    """Drafts for one row.

    Args:
        ids: the drafted tokens, in order; empty means plain decoding.
        scores: the laws they were drawn from, log-probabilities up to a constant over the target's
            vocabulary, [len(ids), vocab], still on the device. Under `rejection` the draws must be
            independent of the target's. None: ids that follow from the row alone (a one-hot law).
    """

    ids: list[int]
    scores: mx.array | None = None


class DraftSource(Protocol):
    """Proposes tokens; holds its own per-row state, keyed by the sequence."""

    def open(self, target: LoadedModel) -> None:
        """Bind to a target once; raises ModelError when the pair does not fit."""
        ...

    @property
    def kv_costs(self) -> KvCosts:
        """What a slot costs in the drafter's own cache; nothing when it has none."""
        ...

    def make_room(self, room: Rectangle) -> None:
        """Size the cache it keeps, if any; called before every step, rows keep what they hold."""
        ...

    def propose(self, requests: Rows[DraftRequest]) -> list[Proposal]:
        """Return up to `budget` ids for each row."""
        ...

    def commit(self, sequence: Sequence, num_accepted: int) -> None:
        """Learn how many of the last proposal's ids were accepted."""
        ...

    def close(self, sequence: Sequence) -> None:
        """Forget a row; unknown rows are ignored."""
        ...

    def token_s(self, rows: int) -> float:
        """Return the seconds one more drafted token takes for each of `rows` rows; may measure."""
        ...
