"""How far a row's drafts have been agreed with lately, by position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul

from engine.config import MAX_DRAFT_TOKENS

FORGETTING = 0.9
"""Weight of what was seen at a position after each newer observation there."""

PRIOR = 0.6
"""Acceptance assumed of a first draft; it counts for one observation."""


@dataclass(slots=True)
class RowAcceptance:
    """Drafts judged at each position of a row, and those agreed with; older ones count less.

    A position that was never judged is expected to do as well as the one before it.
    """

    judged: list[float] = field(default_factory=lambda: [0.0] * MAX_DRAFT_TOKENS)
    agreed: list[float] = field(default_factory=lambda: [0.0] * MAX_DRAFT_TOKENS)

    def add(self, verified: int, accepted: int) -> None:
        """Take one verified draft; what lies behind the first disagreement was not judged."""
        for position in range(min(accepted + 1, verified)):
            self.judged[position] = FORGETTING * self.judged[position] + 1
            self.agreed[position] = FORGETTING * self.agreed[position] + (position < accepted)

    def survival(self, length: int) -> tuple[float, ...]:
        """Return the chance that a draft of this length is agreed with up to each position."""
        rates: list[float] = []
        for judged, agreed in zip(self.judged[:length], self.agreed[:length], strict=True):
            expected = rates[-1] if rates else PRIOR
            rates.append((agreed + expected) / (judged + 1))
        return tuple(accumulate(rates, mul))


def expected_tokens(survival: Sequence[float], width: int) -> float:
    """Return the tokens a row is expected to commit in a step of this width."""
    return 1 + sum(survival[: width - 1])
