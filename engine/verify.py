"""Drafts to accepted tokens: pure functions on ids.

`match` acceptance: the target chooses its own token at every position, greedily or with the
position's own noise, and a draft is accepted while it is that token. The emitted ids are those of
not speculating, at any temperature.

Under `rejection` (engine.rejection) the choice at a position is the draft itself with min(1, p/q)
and another token otherwise, so that the same walk reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verify step emits.

    Args:
        tokens: the agreed drafts, then one token of the target's own.
        num_accepted: how many of `tokens` were drafts.
    """

    tokens: tuple[int, ...]
    num_accepted: int


def accept_match(chosen: Sequence[int], draft: Sequence[int]) -> Verdict:
    """Return the tokens the target itself would have produced.

    Args:
        chosen: the target's choice after the last token and after each draft, [draft + 1]; longer
            rows (padding) are allowed and ignored.
        draft: the drafted ids; empty means plain decoding.
    """
    accepted = 0
    while accepted < len(draft) and chosen[accepted] == draft[accepted]:
        accepted += 1
    return Verdict(tuple(chosen[: accepted + 1]), accepted)
