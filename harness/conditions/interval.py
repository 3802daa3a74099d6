"""From two readings to the row of what lay between them: pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from harness.conditions.processes import heaviest
from harness.conditions.reading import Reading, Standing
from harness.store.rows import ConditionRow

MIN_WINDOW_S = 1.0
"""Processor time comes in ticks of 10 ms; in less time they are too much of a share."""

NAMED = 3
CREDIBLE_SHARE = 0.5
COUNTED_CORES = 0.1
"""What is used of a core has to be seen by a system that counts in hundredths of a second; less may
fall between two of its ticks."""

BUSY_CORES = 0.5
"""With less to do the processor may lower its clock, which then says nothing."""


def row_between(first: Reading, second: Reading) -> ConditionRow:
    """Return what the machine did between two readings, of no run and no phase yet."""
    levels, window_s = level_row(second), second.at_s - first.at_s
    if window_s < MIN_WINDOW_S:
        return levels
    ours_cores = max(0.0, second.ours_s - first.ours_s) / window_s
    # Some sandboxes show a /proc/stat of zeros: a machine that never was busy.
    busy_s = _rise(first.busy_s, second.busy_s) if second.busy_s else None
    stolen_s = _rise(first.stolen_s, second.stolen_s)
    waited_s = _rise(first.memory_wait_s, second.memory_wait_s)
    swapped = _rise(first.swapped_bytes, second.swapped_bytes)
    is_busy = second.self_s - first.self_s > BUSY_CORES * window_s
    return replace(
        levels,
        window_s=window_s,
        ours_cores=ours_cores,
        others_cores=_others_cores(busy_s, ours_cores, window_s),
        heaviest=_named(first, second, window_s),
        stolen_share=None if stolen_s is None else stolen_s / window_s / second.cpus,
        throttled_share=_throttled_share(first, second),
        memory_wait_share=None if waited_s is None else waited_s / window_s,
        swapped_bytes=None if swapped is None else int(swapped),
        frequency_mhz=second.frequency_mhz if is_busy else None,
    )


def level_row(reading: Reading) -> ConditionRow:
    """Return what one reading tells by itself."""
    return ConditionRow(
        run_id="",
        sampled_at=reading.at,
        phase="",
        cores=reading.cpus,
        load_1m=reading.load_1m,
        memory_available_bytes=reading.memory_available_bytes,
        swap_used_bytes=reading.swap_used_bytes,
        process_rss_bytes=reading.process_rss_bytes,
    )


def with_standing(row: ConditionRow, standing: Standing, before: Standing | None) -> ConditionRow:
    """Return the row with what changes seldom, and how often heat struck since `before`."""
    heat = None if before is None else _rise(before.heat_events, standing.heat_events)
    return replace(
        row,
        on_battery=standing.on_battery,
        temperature_c=standing.temperature_c,
        heat_events=None if heat is None else int(heat),
        standing=standing.as_dict(),
    )


def _others_cores(busy_s: float | None, ours_cores: float, window_s: float) -> float | None:
    """Return what others used; None where all used much less than we did, which is no count."""
    if busy_s is None:
        return None
    busy_cores = busy_s / window_s
    if ours_cores >= COUNTED_CORES and busy_cores < CREDIBLE_SHARE * ours_cores:
        return None
    return max(0.0, busy_cores - ours_cores)


def _named(first: Reading, second: Reading, window_s: float) -> tuple[Mapping[str, Any], ...]:
    shares = heaviest(first.table, second.table, second.ours | first.ours, window_s)
    return tuple(
        {"pid": share.pid, "name": share.name, "cores": round(share.cores, 3)}
        for share in shares[:NAMED]
    )


def _throttled_share(first: Reading, second: Reading) -> float | None:
    periods = _rise(first.periods, second.periods)
    throttled = _rise(first.throttled_periods, second.throttled_periods)
    return throttled / periods if periods and throttled is not None else None


def _rise(before: float | None, after: float | None) -> float | None:
    """Return how much a counter rose; a counter never falls but by starting anew."""
    return None if before is None or after is None else max(0.0, after - before)
