"""One reading of the machine: counters since boot and levels now, whatever the system is."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from engine.backend import backend_info
from harness.asking import output_of, text_of
from harness.conditions import linux, macos, nvidia
from harness.conditions.processes import Table, family, process_table, total_s
from harness.store.rows import utc_now

ROOT = Path("/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The machine at one instant; what a system does not tell is None.

    Args:
        at_s: instant on a monotonic scale.
        cpus: how many CPUs this process may run on; the seconds are of these.
        busy_s, stolen_s: processor time since boot, of anybody, and taken by the hypervisor.
        table: every process that can be seen.
        ours: our own among them.
        self_s: processor time of this process alone.
        memory_wait_s: time in which a task waited for memory.
        swapped_bytes: swapped in and out since boot.
        periods, throttled_periods: of the control group's quota.
        load_1m: of the whole host, also inside a container.
    """

    at: str
    at_s: float
    cpus: int
    table: Table = field(default_factory=dict)
    ours: frozenset[int] = frozenset()
    self_s: float = 0.0
    busy_s: float | None = None
    stolen_s: float | None = None
    memory_wait_s: float | None = None
    swapped_bytes: int | None = None
    periods: int | None = None
    throttled_periods: int | None = None
    load_1m: float | None = None
    memory_available_bytes: int | None = None
    swap_used_bytes: int | None = None
    process_rss_bytes: int | None = None
    frequency_mhz: float | None = None

    @property
    def ours_s(self) -> float:
        """Processor time that our processes and their ended children have used."""
        return total_s(self.table, self.ours)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What changes seldom, or costs more to ask; None or "" where the system does not tell.

    Args:
        power_mode: e.g. `low-power`, `balanced`, `automatic`.
        governor: who chooses the clock, with its driver: `powersave (acpi-cpufreq)`.
        governor_is_slow: True when it holds the clock low whatever there is to do.
        thermal_pressure: of macOS: `nominal`, `moderate`, `heavy`, ...
        speed_limit_pct: of Macs with Intel processors.
        heat_events: how often CPUs were slowed down because of heat since boot.
        gpu: an NVIDIA GPU, where the device is one.
    """

    on_battery: bool | None = None
    power_mode: str = ""
    governor: str = ""
    governor_is_slow: bool = False
    thermal_pressure: str = ""
    speed_limit_pct: int | None = None
    temperature_c: float | None = None
    heat_events: int | None = None
    memory_free_pct: int | None = None
    gpu: nvidia.Gpu | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, what is unknown left out."""
        values: dict[str, Any] = {
            "power_mode": self.power_mode,
            "governor": self.governor,
            "governor_is_slow": self.governor_is_slow,
            "thermal_pressure": self.thermal_pressure,
            "speed_limit_pct": self.speed_limit_pct,
            "memory_free_pct": self.memory_free_pct,
            "gpu": None if self.gpu is None else self.gpu.as_dict(),
        }
        return {name: value for name, value in values.items() if _is_told(value)}


def read(roots: Sequence[int] = ()) -> Reading:
    """Read the machine; it takes about 20 us for each process there is.

    Args:
        roots: processes that are ours beside this one and its children: a measured server.
    """
    return _read_mac(roots) if sys.platform == "darwin" else _read_linux(roots, ROOT)


def read_standing(reading: Reading) -> Standing:
    """Ask for what changes seldom; on macOS and with a GPU that starts short commands."""
    gpu = None
    if backend_info().device == "cuda":
        gpu = nvidia.read_gpu(reading.ours, {pid for pid, _ in reading.table})
    if sys.platform == "darwin":
        power = macos.read_power()
        return Standing(
            on_battery=power.on_battery,
            power_mode=power.mode,
            thermal_pressure=power.thermal_pressure,
            speed_limit_pct=power.speed_limit_pct,
            memory_free_pct=macos.free_pct(output_of(*macos.MEMORY)),
        )
    scaling = linux.scaling(ROOT, allowed_cpus())
    names = [name for name in (scaling.driver, scaling.preference) if name]
    return Standing(
        on_battery=linux.on_battery(ROOT),
        power_mode=linux.power_mode(ROOT),
        governor=f"{scaling.governor} ({', '.join(names)})" if scaling.governor else "",
        governor_is_slow=scaling.is_slow,
        temperature_c=hottest(),
        heat_events=linux.heat_events(ROOT, allowed_cpus()),
        gpu=gpu,
    )


def _is_told(value: Any) -> bool:
    """True but for None, "" and False; 0 is a value."""
    return bool(value) or (isinstance(value, int) and value is not False)


def allowed_cpus() -> frozenset[int]:
    """Return the CPUs this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def hottest() -> float | None:
    """Return the highest reading of the temperature sensors, None without any."""
    if not hasattr(psutil, "sensors_temperatures"):
        return None
    groups = psutil.sensors_temperatures().values()
    return max((sensor.current for group in groups for sensor in group), default=None)


def _read_linux(roots: Sequence[int], root: Path) -> Reading:
    cpus, ticks, page_bytes = allowed_cpus(), os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    vmstat, pressure = text_of(root / "proc/vmstat"), text_of(root / "proc/pressure/memory")
    cpu = linux.cpu_seconds(text_of(root / "proc/stat"), cpus, ticks)
    periods = linux.periods(root)
    table = process_table()
    memory, group = psutil.virtual_memory(), linux.group_available_bytes(root)
    present = linux.present_cpu(text_of(root / "proc/self/stat"))
    return Reading(
        at=utc_now(),
        at_s=time.monotonic(),
        cpus=len(cpus),
        table=table,
        ours=family(table, (os.getpid(), *roots)),
        self_s=time.process_time(),
        busy_s=None if cpu is None else cpu.busy_s,
        stolen_s=None if cpu is None else cpu.stolen_s,
        memory_wait_s=linux.memory_wait_s(pressure),
        swapped_bytes=linux.swapped_bytes(vmstat, page_bytes),
        periods=None if periods is None else periods.all,
        throttled_periods=None if periods is None else periods.throttled,
        load_1m=os.getloadavg()[0],
        memory_available_bytes=memory.available if group is None else min(memory.available, group),
        swap_used_bytes=psutil.swap_memory().used,
        process_rss_bytes=psutil.Process().memory_info().rss,
        frequency_mhz=None if present is None else linux.frequency_mhz(root, present),
    )


def _read_mac(roots: Sequence[int]) -> Reading:
    times, table = psutil.cpu_times(), process_table()
    return Reading(
        at=utc_now(),
        at_s=time.monotonic(),
        cpus=os.cpu_count() or 1,
        table=table,
        ours=family(table, (os.getpid(), *roots)),
        self_s=time.process_time(),
        busy_s=times.user + times.nice + times.system,
        swapped_bytes=macos.swapped_bytes(output_of(*macos.PAGING)),
        load_1m=os.getloadavg()[0],
        memory_available_bytes=psutil.virtual_memory().available,
        swap_used_bytes=psutil.swap_memory().used,
        process_rss_bytes=psutil.Process().memory_info().rss,
    )
