"""What macOS tells of the machine, by documented commands, each output read by a pure function.

`pmset`, `vm_stat`, `memory_pressure` and `notifyutil` have manual pages; the name and the levels of
the thermal notification stand in the public header libkern/OSThermalNotification.h.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from harness.asking import output_of

THERMAL = ("notifyutil", "-g", "com.apple.system.thermalpressurelevel")
THERMAL_LEVELS = ("nominal", "moderate", "heavy", "trapping", "sleeping")
THERM = ("pmset", "-g", "therm")
BATTERY = ("pmset", "-g", "batt")
SETTINGS = ("pmset", "-g")
MEMORY = ("memory_pressure", "-Q")
PAGING = ("vm_stat",)

POWER_MODES = {"0": "automatic", "1": "low-power", "2": "high-power"}
"""Values of `powermode` where a Mac offers three; `lowpowermode` elsewhere is 0 or 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """Supply, mode and heat; None or "" where the system does not tell.

    Args:
        speed_limit_pct: how much of its speed the processor may use; Intel only.
    """

    on_battery: bool | None
    mode: str
    thermal_pressure: str
    speed_limit_pct: int | None


def read_power() -> Power:
    """Ask the system; four short commands."""
    return Power(
        on_battery=on_battery(output_of(*BATTERY)),
        mode=power_mode(output_of(*SETTINGS)),
        thermal_pressure=thermal_pressure(output_of(*THERMAL)),
        speed_limit_pct=speed_limit_pct(output_of(*THERM)),
    )


def on_battery(text: str) -> bool | None:
    """Read `pmset -g batt`."""
    found = re.search(r"drawing from '([^']+)'", text)
    return None if found is None else found.group(1) != "AC Power"


def power_mode(text: str) -> str:
    """Read `pmset -g`: the mode in use."""
    mode = re.search(r"^\s*powermode\s+(\d)", text, flags=re.MULTILINE)
    if mode is not None:
        return POWER_MODES.get(mode.group(1), "")
    low = re.search(r"^\s*lowpowermode\s+(\d)", text, flags=re.MULTILINE)
    if low is None:
        return ""
    return "low-power" if low.group(1) == "1" else "automatic"


def thermal_pressure(text: str) -> str:
    """Read `notifyutil -g NAME`, which prints the name and its state."""
    found = re.search(r"thermalpressurelevel[:\s]+(\d+)\s*$", text)
    level = int(found.group(1)) if found else len(THERMAL_LEVELS)
    return THERMAL_LEVELS[level] if level < len(THERMAL_LEVELS) else ""


def speed_limit_pct(text: str) -> int | None:
    """Read `pmset -g therm`: the lowest of its limits; None where nothing was recorded."""
    limits = re.findall(r"CPU_(?:Speed|Scheduler)_Limit\s*=\s*(\d+)", text)
    return min(map(int, limits), default=None)


def free_pct(text: str) -> int | None:
    """Read `memory_pressure -Q`: how much of the memory is free, in percent."""
    found = re.search(r"free percentage:\s*(\d+)%", text)
    return int(found.group(1)) if found else None


def swapped_bytes(text: str) -> int | None:
    """Read `vm_stat`: bytes swapped in and out since boot."""
    page = re.search(r"page size of (\d+) bytes", text)
    counts = re.findall(r"^\"?(?:Swapins|Swapouts)\"?:\s+(\d+)\.", text, flags=re.MULTILINE)
    return int(page.group(1)) * sum(map(int, counts)) if page and len(counts) == 2 else None
