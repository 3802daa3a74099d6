"""Whether a machine was clean before a run and throughout it: from stored samples, pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

from harness.conditions.findings import PREFLIGHT, Finding, findings, tells
from harness.store.rows import ConditionRow, RunRow

MAX_DIRTY_SHARE = 0.2
"""More dirty samples than this were no passing disturbance: the run is like one that began so."""

MIN_DIRTY = 2
MIN_CLOCKS = 5
MAX_CLOCK_DROP = 0.15
"""What a clock may fall below its own highest reading; turbo steps are smaller."""

GPU_AT_WORK_PCT = 50.0


def preflight_reasons(rows: Sequence[ConditionRow]) -> tuple[str, ...]:
    """Return what was wrong before the first trial, or before going on, each once."""
    texts = (item.text for row in rows if row.phase == PREFLIGHT for item in findings(row))
    return tuple(dict.fromkeys(texts))


def machine_refusals(run: RunRow, rows: Sequence[ConditionRow]) -> tuple[str, ...]:
    """Return why timing on this machine deserves no verdict.

    That is what was wrong before the run, and what was wrong for much of it. A passing disturbance
    is met by the method, which shuffles blocks, and only keeps the run from being quoted.
    """
    lasting = (
        _told(kind, found, total)
        for kind, found, total in _disturbances(rows)
        if len(found) >= MIN_DIRTY and len(found) > MAX_DIRTY_SHARE * total
    )
    return tuple(dict.fromkeys([*run.machine_refusals, *preflight_reasons(rows), *lasting]))


def blemishes(run: RunRow, rows: Sequence[ConditionRow]) -> tuple[str, ...]:
    """Return every reason of the machine's against quoting a run: clean throughout has none."""
    passing = (_told(*disturbance) for disturbance in _disturbances(rows))
    reasons = [*machine_refusals(run, rows), *passing, *_changes(rows), *_unwatched(rows)]
    return tuple(dict.fromkeys(reasons))


Disturbance = tuple[str, list[Finding], int]
"""A kind, its findings, and how many samples could have had it."""


def _disturbances(rows: Sequence[ConditionRow]) -> Iterator[Disturbance]:
    during = [row for row in rows if row.phase != PREFLIGHT]
    kinds: dict[str, list[Finding]] = {}
    for row in during:
        for item in findings(row):
            kinds.setdefault(item.kind, []).append(item)
    for kind, found in kinds.items():
        telling = sum(tells(row, kind) for row in during)
        yield kind, found, telling


def _told(_kind: str, found: Sequence[Finding], total: int) -> str:
    worst = max(found, key=lambda item: item.amount)
    times = f"in {len(found)} of {total} sample{'s' * (total > 1)}"
    return f"during the run {worst.text} ({times}{', the worst of them' * (len(found) > 1)})"


def _unwatched(rows: Sequence[ConditionRow]) -> Iterator[str]:
    """Yield that a run begun under a watch has no sample of it: nothing seen is not clean."""
    began = [row for row in rows if row.phase == PREFLIGHT and row.window_s is not None]
    if began and all(row.phase == PREFLIGHT for row in rows):
        yield "the machine was not watched during the run"


def _changes(rows: Sequence[ConditionRow]) -> Iterator[str]:
    """Yield what did not stay the same from the first sample to the last."""
    yield from _change("the machine", rows, lambda row: row.standing.get("machine"))
    yield from _change("fm's own code", rows, lambda row: row.standing.get("commit"))
    yield from _change("the power supply", rows, _supply)
    yield from _change("the power mode", rows, lambda row: row.standing.get("power_mode"))
    yield from _change("the CPU governor", rows, lambda row: row.standing.get("governor"))
    yield from _drop("the processor's clock", [row.frequency_mhz for row in rows])
    yield from _drop("the GPU's clock", [_gpu_clock(row.standing.get("gpu")) for row in rows])


def _change(
    what: str, rows: Sequence[ConditionRow], value: Callable[[ConditionRow], Hashable]
) -> Iterator[str]:
    told = dict.fromkeys(value(row) for row in rows)
    seen = [str(item) for item in told if item is not None]
    if len(seen) > 1:
        yield f"{what} changed during the run: {', then '.join(seen)}"


def _supply(row: ConditionRow) -> str | None:
    return None if row.on_battery is None else "battery" if row.on_battery else "mains"


def _drop(what: str, clocks: Sequence[float | None]) -> Iterator[str]:
    seen = [clock for clock in clocks if clock]
    if len(seen) >= MIN_CLOCKS and min(seen) < (1 - MAX_CLOCK_DROP) * max(seen):
        yield f"{what} fell from {max(seen):.0f} to {min(seen):.0f} MHz during the run"


def _gpu_clock(gpu: Mapping[str, Any] | None) -> float | None:
    """Return the clock of a GPU at work; one that waits sleeps."""
    if not gpu or (gpu.get("busy_pct") or 0.0) < GPU_AT_WORK_PCT:
        return None
    clock: float | None = gpu.get("clock_mhz")
    return clock
