"""What an NVIDIA GPU is doing, by `nvidia-smi`, which comes with the driver.

The bindings of NVML would be a dependency for one reading in half a minute; they are not used.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from harness.asking import output_of

REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
"""The field's name, and what older drivers call it."""

FIELDS = ("clocks.sm", "temperature.gpu", "utilization.gpu")

SLOWDOWNS: Mapping[int, str] = {
    0x08: "hardware slowdown",
    0x20: "heat (software)",
    0x40: "heat (hardware)",
    0x80: "power brake",
}
"""Bits of the reasons, of nvml.h, that hold the clock below what was asked for: not idleness, a
chosen clock, or the power cap that every long load comes to."""

FIRST = "0"
_INDEX = re.compile(r"\d+|(?:GPU|MIG)-[0-9A-Fa-f/-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU at one instant; None where it does not tell.

    Args:
        busy_pct: share of the last second or less in which a kernel ran.
        slowdowns: words of SLOWDOWNS.
        others: names and numbers of processes on it that are not ours, as far as they can be seen.
    """

    clock_mhz: float | None
    temperature_c: float | None
    busy_pct: float | None
    slowdowns: tuple[str, ...]
    others: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "clock_mhz": self.clock_mhz,
            "temperature_c": self.temperature_c,
            "busy_pct": self.busy_pct,
            "slowdowns": list(self.slowdowns),
            "others": list(self.others),
        }


def read_gpu(ours: Collection[int], visible: Collection[int]) -> Gpu | None:
    """Ask for the GPU that MLX uses, the first one that this process may see; None without one.

    Args:
        ours: our own processes.
        visible: processes that can be seen from here; in a container the driver may tell numbers
            that mean nothing inside, our own among them, so those are left out.
    """
    index = gpu_index(os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    for reasons in REASONS:
        fields = ",".join((*FIELDS, reasons))
        state = output_of("nvidia-smi", "-i", index, f"--query-gpu={fields}", *_PLAIN)
        if state.strip():
            apps = output_of("nvidia-smi", "-i", index, _APPS, *_PLAIN)
            return gpu_of(state, other_apps(apps, ours, visible))
    return None


_PLAIN = ("--format=csv,noheader,nounits",)
_APPS = "--query-compute-apps=pid,process_name"


def gpu_index(visible_devices: str) -> str:
    """Return which GPU is the first one, as nvidia-smi names it."""
    first = visible_devices.split(",", maxsplit=1)[0].strip()
    return first if _INDEX.fullmatch(first) else FIRST


def gpu_of(line: str, others: tuple[str, ...]) -> Gpu | None:
    """Read one line of FIELDS and the reasons; None for anything else."""
    cells = [cell.strip() for cell in line.strip().splitlines()[0].split(",")]
    if len(cells) != len(FIELDS) + 1:
        return None
    clock, temperature, busy = map(_number, cells[:-1])
    bits = int(cells[-1], 16) if re.fullmatch(r"0x[0-9A-Fa-f]+", cells[-1]) else 0
    return Gpu(
        clock_mhz=clock,
        temperature_c=temperature,
        busy_pct=busy,
        slowdowns=tuple(word for bit, word in SLOWDOWNS.items() if bits & bit),
        others=others,
    )


def other_apps(text: str, ours: Collection[int], visible: Collection[int]) -> tuple[str, ...]:
    """Read lines of number and program; of a program only its own name is kept."""
    found = []
    for line in text.splitlines():
        number, _, program = line.partition(",")
        if not number.strip().isdigit():
            continue
        pid = int(number)
        if pid in visible and pid not in ours:
            path = "".join(char for char in program.strip() if char.isprintable()).partition(" ")[0]
            found.append(f"{path.rpartition('/')[2] or 'a process'}, pid {pid}")
    return tuple(found)


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else None
