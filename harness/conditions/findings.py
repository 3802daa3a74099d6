"""What makes the timing of one sample worthless: a reason with its value and a remedy for each.

Every rule is a function of one row alone, so that stored runs can be judged again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from harness.store.rows import ConditionRow

PREFLIGHT = "preflight"
"""Phase of a sample that was taken before the first trial."""

GIB, MIB = 2**30, 2**20

OTHERS_CORES = 0.25
OTHERS_SHARE = 0.05
"""What others may use: a quarter of a core, on large machines a twentieth of all."""

LOAD_PER_CORE = 0.5
MIN_AVAILABLE_BYTES = 2 * GIB
MIN_FREE_PCT = 10
MEMORY_WAIT_SHARE = 0.01
SWAPPED_BYTES_PER_S = MIB
STOLEN_SHARE = 0.02
THROTTLED_SHARE = 0.01
MAX_TEMPERATURE_C = 90.0
GPU_BUSY_PCT = 10.0

LOW_POWER = frozenset({"low-power", "quiet", "cool"})
"""Power modes of Linux (platform_profile) and macOS in which the clock is held low."""


SELDOM = frozenset(
    {
        "temperature",
        "heat",
        "thermal pressure",
        "speed limit",
        "battery",
        "power mode",
        "governor",
        "GPU clock",
        "GPU processes",
    }
)
"""Kinds that only samples with a standing tell of: they are asked for less often than the rest."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Why the timing of a sample deserves no trust.

    Args:
        kind: what it is about; a run sums its samples up by it.
        amount: how bad it is, to be compared within one kind.
        text: one line with the value and the remedy.
    """

    kind: str
    amount: float
    text: str


def findings(row: ConditionRow) -> tuple[Finding, ...]:
    """Return everything that is wrong with a sample; what a system does not tell is not wrong."""
    found = (rule(row) for rule in RULES)
    return tuple(item for item in found if item is not None)


def tells(row: ConditionRow, kind: str) -> bool:
    """True for a sample in which a finding of this kind was possible."""
    if kind in SELDOM:
        return bool(row.standing) or row.on_battery is not None or row.temperature_c is not None
    return row.window_s is not None or "unread" in row.standing


def others_limit(cores: int) -> float:
    """Return how many of so many cores others may use."""
    return max(OTHERS_CORES, OTHERS_SHARE * cores)


def named(processes: tuple[Mapping[str, Any], ...]) -> str:
    """Return processes for people: number and share, never what they were started with."""
    return ", ".join(
        f"{item['name']} (pid {item['pid']}) {100 * item['cores']:.0f} %"
        for item in processes
        if item["cores"] >= 0.01
    )


def _others(row: ConditionRow) -> Finding | None:
    if row.others_cores is None or row.cores is None:
        return None
    if row.others_cores <= others_limit(row.cores):
        return None
    who = named(row.heaviest)
    told = f"heaviest: {who} of a core; stop them" if who else "none of them can be seen from here"
    return Finding(
        "others",
        row.others_cores,
        f"other processes use {row.others_cores:.1f} of {row.cores} cores ({told})",
    )


def _load(row: ConditionRow) -> Finding | None:
    """The load average tells of the last minutes, our own runs in them, and of a whole host.

    So it counts before a run alone, and where nothing better is known.
    """
    if row.phase != PREFLIGHT or row.others_cores is not None or not row.cores:
        return None
    limit = LOAD_PER_CORE * row.cores
    if row.load_1m is None or row.load_1m <= limit:
        return None
    return Finding(
        "load",
        row.load_1m,
        f"load is {row.load_1m:.3g} on {row.cores} cores, above {limit:.1f}; stop other programs",
    )


def _memory(row: ConditionRow) -> Finding | None:
    """During a run the model fills the memory, rightly: there waiting and swapping count."""
    free = row.memory_available_bytes
    if row.phase != PREFLIGHT or free is None or free >= MIN_AVAILABLE_BYTES:
        return None
    text = f"{free / GIB:.3g} GiB of memory is free; 2 GiB is the least"
    return Finding("memory", -free, text)


def _memory_pressure(row: ConditionRow) -> Finding | None:
    free, waited = row.standing.get("memory_free_pct"), row.memory_wait_share
    if waited is not None and waited > MEMORY_WAIT_SHARE:
        text = f"tasks waited for memory {100 * waited:.3g} % of the time; free memory"
        return Finding("memory pressure", waited, text)
    if free is not None and free < MIN_FREE_PCT:
        text = f"{free} % of the memory is free, under {MIN_FREE_PCT} %; free memory"
        return Finding("memory pressure", 1 - free / 100, text)
    return None


def _swapping(row: ConditionRow) -> Finding | None:
    """Swapping harms, not a swap that holds what nobody asks for."""
    if row.swapped_bytes is None or not row.window_s:
        return None
    rate = row.swapped_bytes / row.window_s
    if rate <= SWAPPED_BYTES_PER_S:
        return None
    return Finding("swapping", rate, f"the machine swaps {rate / MIB:.0f} MiB/s; free memory")


def _stolen(row: ConditionRow) -> Finding | None:
    if row.stolen_share is None or row.stolen_share <= STOLEN_SHARE:
        return None
    percent = 100 * row.stolen_share
    text = f"the hypervisor gave {percent:.3g} % of the processor time to others (steal)"
    return Finding("steal", row.stolen_share, f"{text}; use a machine of your own")


def _throttled(row: ConditionRow) -> Finding | None:
    if row.throttled_share is None or row.throttled_share <= THROTTLED_SHARE:
        return None
    percent = 100 * row.throttled_share
    text = f"the control group's quota was used up in {percent:.3g} % of its periods; raise it"
    return Finding("quota", row.throttled_share, f"{text}, or take fewer threads")


def _temperature(row: ConditionRow) -> Finding | None:
    if row.temperature_c is None or row.temperature_c <= MAX_TEMPERATURE_C:
        return None
    text = f"a sensor reads {row.temperature_c:.0f} C; let the machine cool down"
    return Finding("temperature", row.temperature_c, text)


def _heat(row: ConditionRow) -> Finding | None:
    if not row.heat_events:
        return None
    text = f"the processor was slowed down by heat {row.heat_events} times; let it cool down"
    return Finding("heat", row.heat_events, text)


def _thermal_pressure(row: ConditionRow) -> Finding | None:
    level = row.standing.get("thermal_pressure", "nominal")
    if level == "nominal":
        return None
    return Finding("thermal pressure", 1, f"thermal pressure is {level}; let the machine cool down")


def _speed_limit(row: ConditionRow) -> Finding | None:
    limit = row.standing.get("speed_limit_pct")
    if limit is None or limit >= 100:
        return None
    text = f"the system limits the processor to {limit} % of its speed; let the machine cool down"
    return Finding("speed limit", -limit, text)


def _battery(row: ConditionRow) -> Finding | None:
    if not row.on_battery:
        return None
    return Finding("battery", 1, "the machine runs on battery; plug it in")


def _power_mode(row: ConditionRow) -> Finding | None:
    mode = row.standing.get("power_mode", "")
    if mode not in LOW_POWER:
        return None
    return Finding("power mode", 1, f"the power mode is {mode}; choose another one")


def _governor(row: ConditionRow) -> Finding | None:
    if not row.standing.get("governor_is_slow"):
        return None
    text = f"the CPU governor is {row.standing['governor']}, which keeps the clock low"
    return Finding("governor", 1, f"{text}; set performance")


def _gpu_slowdown(row: ConditionRow) -> Finding | None:
    words = _gpu(row).get("slowdowns")
    if not words:
        return None
    return Finding("GPU clock", len(words), f"the GPU is slowed down: {', '.join(words)}")


def _gpu_others(row: ConditionRow) -> Finding | None:
    others = _gpu(row).get("others")
    if not others:
        return None
    return Finding(
        "GPU processes",
        len(others),
        f"other processes are on the GPU: {'; '.join(others)}; stop them",
    )


def _gpu_busy(row: ConditionRow) -> Finding | None:
    """Before a run nothing of ours computes, so what computes is not ours."""
    busy = _gpu(row).get("busy_pct")
    if row.phase != PREFLIGHT or busy is None or busy <= GPU_BUSY_PCT:
        return None
    return Finding("GPU load", busy, f"the GPU is {busy:.0f} % busy before the run; stop others")


def _gpu(row: ConditionRow) -> Mapping[str, Any]:
    gpu: Mapping[str, Any] = row.standing.get("gpu") or {}
    return gpu


def _unread(row: ConditionRow) -> Finding | None:
    """A sample that was not taken says nothing, so it is not clean."""
    unread = row.standing.get("unread")
    return Finding("unread", 1, f"the machine could not be read ({unread})") if unread else None


RULES: tuple[Callable[[ConditionRow], Finding | None], ...] = (
    _others,
    _load,
    _memory,
    _memory_pressure,
    _swapping,
    _stolen,
    _throttled,
    _temperature,
    _heat,
    _thermal_pressure,
    _speed_limit,
    _battery,
    _power_mode,
    _governor,
    _gpu_slowdown,
    _gpu_others,
    _gpu_busy,
    _unread,
)
"""Every rule, in the order in which reasons are told."""
