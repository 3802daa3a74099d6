"""Grammar overhead: the same ids decoded again, each forced, with masks and without."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from engine.loop import Engine
from engine.request import Request
from engine.telemetry import ReplayReport

REPLAY_TOKENS = 16
"""Tokens of one reply that are decoded again in each pass."""

PROMPT_TOKENS = 32
"""End of the prompt that is read before them: reading all of a 250-token prompt in every pass took
a fifth of a run (SmolLM2-135M, 2 cores), and neither masks nor forced ids depend on it."""

PASSES = (True, False, False, True, True, False, False, True)
"""Whether masks are on in each pass; odd blocks run the mirror image, so that drift cancels. Its
halves are mirrors of each other as well."""

LONG_S = 4.0
"""Half of the passes are enough once they took this long, s: where a step takes 80 ms, all eight of
every grammar trial were a fifth of a run (SmolLM2-135M, 2 cores)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """The same steps with masks and without, each at its fastest.

    All passes do the same work at a step, so what makes one slower than another is something else
    on the machine. Taken step by step, the fastest of four passes is undisturbed nearly always, and
    the fastest of two, which is all that a slow machine has time for, mostly.

    Args:
        tokens: decode steps compared.
        mask_s: median host time spent filling masks at each step, summed.
    """

    tokens: int
    plain_s: float
    masked_s: float
    mask_s: float


def measure_overhead(
    engine: Engine,
    request: Request,
    token_ids: Sequence[int],
    block: int,
    clock: Callable[[], float] = time.perf_counter,
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
    began = clock()
    for number, passed in enumerate(PASSES):
        if number == len(PASSES) // 2 and clock() - began > LONG_S:
            break
        is_masked = passed != bool(block % 2)
        reports[is_masked].append(engine.replay(requests[is_masked], forced))
    masks = zip(*(report.mask_s for report in reports[True]), strict=True)
    return Overhead(
        tokens=len(reports[True][0].step_s),
        plain_s=_fastest(reports[False]),
        masked_s=_fastest(reports[True]),
        mask_s=sum(median(step) for step in masks),
    )


def _fastest(reports: Sequence[ReplayReport]) -> float:
    """Return the sum over the steps of each step's shortest time in any pass."""
    steps = zip(*(report.step_s for report in reports), strict=True)
    return math.fsum(min(step) for step in steps)
