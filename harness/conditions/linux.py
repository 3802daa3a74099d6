"""What Linux tells of the machine: /proc, /sys and control groups, each read by a pure function.

`root` is where /proc and /sys are looked for; what is not there is None or "".
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from engine.cores import group_folders
from harness.asking import text_of

SELF_ADAPTING = frozenset({"intel_pstate", "amd-pstate-epp"})
"""Drivers whose `powersave` is no fixed lowest clock: the processor chooses, and the preference
for energy or speed beside it says how (the kernel's guides intel_pstate and amd-pstate)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuSeconds:
    """Processor time since boot on some CPUs: by anybody, and taken by the hypervisor."""

    busy_s: float
    stolen_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Periods:
    """Scheduling periods of a control group with a quota, and those in which it was used up."""

    all: int
    throttled: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """Who chooses the clock of the CPUs, "" where the system does not tell.

    Args:
        preference: energy or speed, where the driver adapts by itself.
    """

    governor: str
    driver: str
    preference: str

    @property
    def is_slow(self) -> bool:
        """True when the clock is held low whatever there is to do."""
        if self.driver in SELF_ADAPTING:
            return self.preference == "power"
        return self.governor == "powersave"


def cpu_seconds(text: str, cpus: Collection[int], ticks: float) -> CpuSeconds | None:
    """Read /proc/stat for the CPUs that may be used; None where it has no line of them.

    Time of guests is part of user time there; waiting for a disk is idleness.
    """
    busy = stolen = 0
    seen = False
    for number, rest in re.findall(r"^cpu(\d+) (.+)$", text, flags=re.MULTILINE):
        if int(number) not in cpus:
            continue
        seen = True
        fields = [int(value) for value in rest.split()] + [0] * 8
        user, nice, system, _idle, _waiting, irq, softirq, steal = fields[:8]
        busy += user + nice + system + irq + softirq
        stolen += steal
    return CpuSeconds(busy_s=busy / ticks, stolen_s=stolen / ticks) if seen else None


def swapped_bytes(text: str, page_bytes: int) -> int | None:
    """Read /proc/vmstat: bytes swapped in and out since boot."""
    found = dict(re.findall(r"^(pswpin|pswpout) (\d+)$", text, flags=re.MULTILINE))
    return page_bytes * sum(map(int, found.values())) if len(found) == 2 else None


def memory_wait_s(text: str) -> float | None:
    """Read /proc/pressure/memory: seconds in which some task waited for memory."""
    found = re.search(r"^some .*\btotal=(\d+)$", text, flags=re.MULTILINE)
    return int(found.group(1)) / 1e6 if found else None


def periods(root: Path) -> Periods | None:
    """Return the periods of the innermost control group that has any, None without a quota."""
    folders = [*group_folders(root), root / "sys/fs/cgroup/cpu"]
    found = (periods_of(text_of(folder / "cpu.stat")) for folder in folders)
    return next((item for item in found if item is not None and item.all), None)


def periods_of(text: str) -> Periods | None:
    """Read cpu.stat of a control group, which is the same in both versions."""
    values = dict(re.findall(r"^(nr_periods|nr_throttled) (\d+)$", text, flags=re.MULTILINE))
    if len(values) != 2:
        return None
    return Periods(all=int(values["nr_periods"]), throttled=int(values["nr_throttled"]))


def group_available_bytes(root: Path) -> int | None:
    """Return the memory the control groups still allow, None where they set no limit.

    File pages that were not used lately count as free: the kernel drops them first.
    """
    unified = [
        (folder / "memory.max", folder / "memory.current", folder / "memory.stat")
        for folder in group_folders(root)
    ]
    old = root / "sys/fs/cgroup/memory"
    older = (old / "memory.limit_in_bytes", old / "memory.usage_in_bytes", old / "memory.stat")
    rooms = [_room(*map(text_of, paths)) for paths in (*unified, older)]
    return min((room for room in rooms if room is not None), default=None)


_NO_LIMIT = 2**60
"""Version 1 writes a limit of the largest page count where there is none."""


def _room(limit: str, used: str, stat: str) -> int | None:
    if not (limit.strip().isdigit() and used.strip().isdigit()) or int(limit) >= _NO_LIMIT:
        return None
    idle = re.search(r"^(?:total_)?inactive_file (\d+)$", stat, flags=re.MULTILINE)
    return max(0, int(limit) - int(used) + (int(idle.group(1)) if idle else 0))


def scaling(root: Path, cpus: Collection[int]) -> Scaling:
    """Return who chooses the clock; where CPUs differ, a slow one is told."""
    found = [_scaling(root / f"sys/devices/system/cpu/cpu{cpu}/cpufreq") for cpu in sorted(cpus)]
    nothing = Scaling(governor="", driver="", preference="")
    return next((item for item in found if item.is_slow), found[0] if found else nothing)


def _scaling(folder: Path) -> Scaling:
    names = ("scaling_governor", "scaling_driver", "energy_performance_preference")
    governor, driver, preference = (text_of(folder / name).strip() for name in names)
    return Scaling(governor=governor, driver=driver, preference=preference)


def frequency_mhz(root: Path, cpu: int) -> float | None:
    """Return the present clock of one CPU."""
    text = text_of(root / f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq").strip()
    return int(text) / 1000 if text.isdigit() else None


def present_cpu(stat: str) -> int | None:
    """Read /proc/self/stat: the CPU on which the main thread ran last."""
    fields = stat.rpartition(")")[2].split()
    return int(fields[36]) if len(fields) > 36 and fields[36].isdigit() else None


def heat_events(root: Path, cpus: Collection[int]) -> int | None:
    """Return how often the CPUs were slowed down because of heat since boot."""
    folders = [root / f"sys/devices/system/cpu/cpu{cpu}/thermal_throttle" for cpu in cpus]
    names = ("core_throttle_count", "package_throttle_count")
    texts = [text_of(folder / name).strip() for folder in folders for name in names]
    counts = [int(text) for text in texts if text.isdigit()]
    return sum(counts) if counts else None


def on_battery(root: Path) -> bool | None:
    """Return whether no mains supply is on while a system battery is there; None without both.

    Batteries of mice and pens have the scope `Device` and say nothing of the machine.
    """
    supplies = [_supply(folder) for folder in _folders(root / "sys/class/power_supply")]
    kinds = [supply for supply in supplies if supply.get("scope", "System") == "System"]
    mains = [item.get("online") for item in kinds if item.get("type") in ("Mains", "USB")]
    batteries = [item.get("status") for item in kinds if item.get("type") == "Battery"]
    if "1" in mains:
        return False
    if "Discharging" in batteries:
        return True
    return False if mains and batteries else None


def _supply(folder: Path) -> Mapping[str, str]:
    texts = {name: text_of(folder / name).strip() for name in ("type", "online", "status", "scope")}
    return {name: text for name, text in texts.items() if text}


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def power_mode(root: Path) -> str:
    """Return the platform's power profile, e.g. `low-power`, `balanced` or `performance`."""
    return text_of(root / "sys/firmware/acpi/platform_profile").strip()
