"""Grammar overhead: the same ids decoded again, each forced, with masks and without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.loop import Engine
from engine.request import Request

REPLAY_TOKENS = 32
"""Tokens of one reply that are decoded again; its prompt has to be read again each time."""

ORDERS = ((True, False, False, True), (False, True, True, False))
"""Whether masks are on in each pass; even and odd blocks, so that drift cancels twice over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """Decode steps of the same ids with masks and without; equal numbers of both.

    Args:
        tokens: tokens decoded with masks, and as many without.
        mask_s: host time spent filling masks within `masked_s`.
    """

    tokens: int
    plain_s: float
    masked_s: float
    mask_s: float


def measure_overhead(
    engine: Engine, request: Request, token_ids: Sequence[int], block: int
) -> Overhead:
    """Decode the beginning of a recorded reply twice with masks and twice without.

    Args:
        request: with its constraint.
        token_ids: what the reply emitted, at least two.
    """
    forced = list(token_ids[:REPLAY_TOKENS])
    free = replace(request, constraint=None)
    tokens, plain_s, masked_s, mask_s = 0, 0.0, 0.0, 0.0
    for is_masked in ORDERS[block % len(ORDERS)]:
        report = engine.replay(request if is_masked else free, forced)
        if is_masked:
            masked_s += report.seconds
            mask_s += report.mask_s
            tokens += report.steps
        else:
            plain_s += report.seconds
    return Overhead(tokens=tokens, plain_s=plain_s, masked_s=masked_s, mask_s=mask_s)
