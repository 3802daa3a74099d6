"""What changes while a machine works: load, memory, swap, heat, power; and when it is too much."""

from __future__ import annotations

import os

import psutil

from harness.machine import Machine
from harness.store.rows import ConditionRow, utc_now

GIB = 2**30
MAX_LOAD_PER_CORE = 0.5
"""Busier than this before a run starts, others will take turns with the measured process."""

MIN_AVAILABLE_BYTES = 2 * GIB
MAX_SWAP_BYTES = GIB
MAX_TEMPERATURE_C = 90.0


def sample(run_id: str, phase: str, trial_id: str | None = None) -> ConditionRow:
    """Return the state of the machine now; call it outside of measured windows.

    Figures the system does not give are None. `cpu_pct` is since the last call.
    """
    frequency, battery = psutil.cpu_freq(), psutil.sensors_battery()
    return ConditionRow(
        run_id=run_id,
        sampled_at=utc_now(),
        phase=phase,
        trial_id=trial_id,
        load_1m=os.getloadavg()[0],
        cpu_pct=psutil.cpu_percent(interval=None),
        memory_available_bytes=psutil.virtual_memory().available,
        swap_used_bytes=psutil.swap_memory().used,
        process_rss_bytes=psutil.Process().memory_info().rss,
        temperature_c=hottest(),
        frequency_mhz=frequency.current if frequency else None,
        on_battery=not battery.power_plugged if battery else None,
    )


def hottest() -> float | None:
    """Return the highest reading of the temperature sensors, None without any."""
    if not hasattr(psutil, "sensors_temperatures"):
        return None
    groups = psutil.sensors_temperatures().values()
    return max((sensor.current for group in groups for sensor in group), default=None)


def preflight(machine: Machine, now: ConditionRow) -> tuple[str, ...]:
    """Return why timing on this machine deserves no verdict now, one line each.

    An uncommitted change is no such reason: it keeps a run from being quoted, not from a verdict.
    """
    reasons = []
    limit = MAX_LOAD_PER_CORE * machine.usable_cores
    if now.load_1m is not None and now.load_1m > limit:
        reasons.append(
            f"load is {now.load_1m:.1f} on {machine.usable_cores} cores, above {limit:.1f}; "
            "stop other programs"
        )
    available, swap = now.memory_available_bytes, now.swap_used_bytes
    if available is not None and available < MIN_AVAILABLE_BYTES:
        reasons.append(f"{available / GIB:.1f} GiB of memory is free; 2 GiB is the least")
    if swap is not None and swap > MAX_SWAP_BYTES:
        reasons.append(f"{swap / GIB:.1f} GiB of swap is in use; free memory first")
    if now.temperature_c is not None and now.temperature_c > MAX_TEMPERATURE_C:
        reasons.append(f"a sensor reads {now.temperature_c:.0f} C; let the machine cool down")
    if now.on_battery:
        reasons.append("the machine runs on battery; plug it in")
    return tuple(reasons)
