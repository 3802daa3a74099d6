"""Whether timing on this machine means something now: what `fm run` asks first, for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from harness.conditions.findings import GIB, MIB, findings, named
from harness.conditions.watch import Watch
from harness.machine import GitState, blas_problem, git_state
from harness.store.rows import ConditionRow

UNKNOWN = "unknown here"


@dataclass(frozen=True, slots=True)
class Line:
    """One line: what was looked at, and what is wrong with it.

    Args:
        problem: what is missing and how to get it, one line; empty when all is well.
    """

    label: str
    value: str
    problem: str = ""


def timing_now() -> tuple[Line, ...]:
    """Watch the machine for a second and return what speaks for and against timing on it."""
    with Watch() as watch:
        row = watch.preflight()
    return timing_lines(row, blas_problem(), git_state())


def timing_lines(row: ConditionRow, blas: tuple[str, ...], git: GitState) -> tuple[Line, ...]:
    """Return the lines of one sample, in a fixed order."""
    wrong = findings(row)
    lines = [
        Line(label, value(row) or UNKNOWN, "; ".join(f.text for f in wrong if f.kind in kinds))
        for label, value, kinds in LINES
    ]
    if row.standing.get("gpu"):
        texts = [item.text for item in wrong if item.kind.startswith("GPU")]
        lines.append(Line("gpu", _gpu(row.standing["gpu"]), "; ".join(texts)))
    lines.append(Line("products", "optimised" if not blas else "slow", "; ".join(blas)))
    dirty = "commit them, so that what is measured can be found again" * git.is_dirty
    tree = "uncommitted changes" if git.is_dirty else "clean" if git.sha else "no checkout"
    return (*lines, Line("tree", tree, dirty))


def _processor(row: ConditionRow) -> str:
    if row.others_cores is None:
        return "" if row.load_1m is None else f"load {row.load_1m:.2f} on {row.cores} cores"
    heaviest = named(row.heaviest[:1])
    who = f", heaviest {heaviest} of a core" if heaviest else ""
    load = "" if row.load_1m is None else f"; load {row.load_1m:.2f}"
    return f"others use {row.others_cores:.2f} of {row.cores} cores{who}{load}"


def _sharing(row: ConditionRow) -> str:
    shares = {"steal": row.stolen_share, "quota used up": row.throttled_share}
    told = [f"{name} {100 * share:.1f} %" for name, share in shares.items() if share is not None]
    return ", ".join(told)


def _memory(row: ConditionRow) -> str:
    parts = []
    if row.memory_available_bytes is not None:
        parts.append(f"{row.memory_available_bytes / GIB:.1f} GiB free")
    if row.memory_wait_share is not None:
        parts.append(f"tasks waited {100 * row.memory_wait_share:.1f} % of the time")
    if row.standing.get("memory_free_pct") is not None:
        parts.append(f"{row.standing['memory_free_pct']} % free to the system")
    return ", ".join(parts)


def _swap(row: ConditionRow) -> str:
    parts = []
    if row.swap_used_bytes is not None:
        parts.append(f"{row.swap_used_bytes / GIB:.1f} GiB used")
    if row.swapped_bytes is not None and row.window_s:
        parts.append(f"{row.swapped_bytes / MIB / row.window_s:.1f} MiB/s in and out")
    return ", ".join(parts)


def _heat(row: ConditionRow) -> str:
    pressure, limit = row.standing.get("thermal_pressure"), row.standing.get("speed_limit_pct")
    parts = [
        "" if row.temperature_c is None else f"{row.temperature_c:.0f} C",
        f"thermal pressure {pressure}" if pressure else "",
        f"speed limit {limit} %" if limit is not None else "",
    ]
    return ", ".join(filter(None, parts))


def _power(row: ConditionRow) -> str:
    supply = {None: "", True: "battery", False: "mains"}[row.on_battery]
    return ", ".join(filter(None, (supply, row.standing.get("power_mode", ""))))


def _clock(row: ConditionRow) -> str:
    governor: str = row.standing.get("governor", "")
    return f"governor {governor}" if governor else ""


def _gpu(gpu: Mapping[str, Any]) -> str:
    units = {"clock_mhz": "MHz", "temperature_c": "C", "busy_pct": "% busy"}
    known = [f"{gpu[name]:.0f} {unit}" for name, unit in units.items() if gpu[name] is not None]
    return ", ".join(known) or UNKNOWN


LINES: tuple[tuple[str, Callable[[ConditionRow], str], frozenset[str]], ...] = (
    ("load", _processor, frozenset({"others", "load", "unread"})),
    ("sharing", _sharing, frozenset({"steal", "quota"})),
    ("pressure", _memory, frozenset({"memory", "memory pressure"})),
    ("swap", _swap, frozenset({"swapping"})),
    ("heat", _heat, frozenset({"temperature", "heat", "thermal pressure", "speed limit"})),
    ("power", _power, frozenset({"battery", "power mode"})),
    ("clock", _clock, frozenset({"governor"})),
)
"""Label, value, and the kinds of findings that concern it."""
