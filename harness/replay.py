"""Grammar overhead: the same ids decoded again, each forced, with masks and without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.loop import Engine
from engine.request import Request
from engine.telemetry import ReplayReport

REPLAY_TOKENS = 16
"""Tokens of one reply that are decoded again in each pass."""

PROMPT_TOKENS = 32
"""End of the prompt that is read before them: reading all of a 250-token prompt in every pass took
a fifth of a run (SmolLM2-135M, 2 cores), and neither masks nor forced ids depend on it."""

PASSES = (True, False, False, True, True, False, False, True)
"""Whether masks are on in each pass; odd blocks run the mirror image, so that drift cancels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """The fastest pass of each kind over the same ids.

    Passes do the same work, so what makes one slower than another is something else on the machine:
    sums of all passes were off by a factor of two on a busy one, the fastest by 3 %.

    Args:
        tokens: tokens decoded in a pass.
        mask_s: host time spent filling masks within `masked_s`.
    """

    tokens: int
    plain_s: float
    masked_s: float
    mask_s: float


def measure_overhead(
    engine: Engine, request: Request, token_ids: Sequence[int], block: int
) -> Overhead:
    """Decode the beginning of a recorded reply several times with masks and without.

    Args:
        request: with its constraint.
        token_ids: what the reply emitted, at least two.
    """
    forced = list(token_ids[:REPLAY_TOKENS])
    masked = replace(request, prompt_ids=request.prompt_ids[-PROMPT_TOKENS:])
    requests = {True: masked, False: replace(masked, constraint=None)}
    reports: dict[bool, list[ReplayReport]] = {True: [], False: []}
    for passed in PASSES:
        is_masked = passed != bool(block % 2)
        reports[is_masked].append(engine.replay(requests[is_masked], forced))
    with_masks, without = (min(reports[kind], key=_seconds) for kind in (True, False))
    return Overhead(
        tokens=with_masks.steps,
        plain_s=without.seconds,
        masked_s=with_masks.seconds,
        mask_s=with_masks.mask_s,
    )


def _seconds(report: ReplayReport) -> float:
    return report.seconds
