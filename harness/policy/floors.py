"""Floors: what a cell of the run itself has to reach, whatever the base does."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from harness.cells.name import side_of
from harness.policy.judgement import NOISY, NOWHERE, Finding, Status
from harness.policy.measures import METRICS, beside, by_block
from harness.policy.policy_file import Floor
from harness.stats import (
    MAX_CV,
    MIN_BLOCKS_VERDICT,
    Interval,
    coefficient_of_variation,
    estimate,
    log_ratios,
)
from harness.store.index import Place, RunIndex


def floor_findings(
    index: RunIndex, floors: Sequence[Floor], machine: Sequence[str], noisy: frozenset[Place]
) -> Iterator[Finding]:
    """Yield a finding for each floor and place; a floor that no cell meets with is incomplete.

    Args:
        machine: why the machine's times deserve no verdict.
        noisy: models and workloads whose baseline differs from its own repeat.
    """
    for floor in floors:
        if floor.mode == "off":
            continue
        places = [place for place in index.places() if _applies(floor, place)]
        if not places:
            yield Finding(
                kind="floor",
                name=floor.metric,
                place=NOWHERE,
                status="incomplete",
                is_hard=floor.mode == "hard",
                detail=f"no cell {floor.cell} ran where its floor applies",
            )
        for place in places:
            is_noisy = place.other("") in noisy
            yield _finding(index, floor, place, machine, is_noisy=is_noisy)


def _applies(floor: Floor, place: Place) -> bool:
    named = floor.model in ("", place.model) and floor.workload in ("", place.workload)
    return named and floor.cell == place.cell and not side_of(place.cell)


def _finding(
    index: RunIndex, floor: Floor, place: Place, machine: Sequence[str], *, is_noisy: bool
) -> Finding:
    logs = _logs(index, floor, place)
    status, detail = _judged(logs, floor)
    if status != "incomplete" and machine and floor.mode == "hard":
        status, detail = "refused", machine[0]
    elif status != "incomplete" and is_noisy:
        status, detail = "inconclusive", NOISY
    return Finding(
        kind="floor",
        name=floor.metric,
        place=place,
        status=status,
        is_hard=floor.mode == "hard",
        detail=detail,
        n=len(logs),
    )


def _logs(index: RunIndex, floor: Floor, place: Place) -> Sequence[float]:
    """Return the logarithm of what is held to the floor, a value a block."""
    if floor.metric == "tok_s":
        speeds = by_block(index, place, METRICS["tok_s"])
        return [math.log(value) for _, value in sorted(speeds.items())]
    baseline = index.cell(place).baseline
    if baseline is None:
        return []
    return log_ratios(*beside(index, place, place.other(baseline), METRICS["tok_s"]))


def _judged(logs: Sequence[float], floor: Floor) -> tuple[Status, str]:
    if not logs:
        return "incomplete", f"nothing was measured for its {floor.metric}"
    own = estimate(logs)
    told = _told(own, floor)
    if len(logs) < MIN_BLOCKS_VERDICT or own.low is None or own.high is None:
        return "inconclusive", f"{told}; a verdict needs {MIN_BLOCKS_VERDICT} blocks"
    least = math.log(floor.at_least) if floor.at_least > 0 else -math.inf
    if own.high < least:
        return "fail", told
    spread = coefficient_of_variation([math.exp(value) for value in logs])
    if spread is not None and spread > MAX_CV:
        return "inconclusive", f"{told}; it varies by {100 * spread:.3g} % between blocks"
    return ("pass" if own.low >= least else "inconclusive"), told


def _told(own: Interval, floor: Floor) -> str:
    ends = (
        ""
        if own.low is None or own.high is None
        else (f" [{math.exp(own.low):.3g}, {math.exp(own.high):.3g}]")
    )
    return f"{floor.metric} {math.exp(own.estimate):.3g}{ends}, at least {floor.at_least:g}"
