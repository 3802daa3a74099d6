"""What `fm doctor` says: what is installed, what is missing, and whether timing means something."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from engine.backend import backend_info, require_backend
from engine.errors import BackendError, SettingError
from engine.paths import cache_dir
from engine.switches import SWITCHES, is_off
from harness.conditions.preflight import Line, timing_now
from harness.machine import Machine, git_state, read_machine
from harness.revision import SHORT, revision_text

GIB = 2**30
MIN_FREE_BYTES = GIB
"""Room for the default model, its converted copy and the renamed BLAS."""


@dataclass(frozen=True, slots=True)
class SwitchState:
    """One kill switch: `state` is "on", "off" or "wrong"; `problem` says what is wrong with it."""

    name: str
    state: str
    feature: str
    when_off: str
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Doctor:
    """Everything that was looked at, in the order it is printed."""

    findings: tuple[Line, ...]
    switches: tuple[SwitchState, ...] = ()
    timing: tuple[Line, ...] = ()

    @property
    def is_healthy(self) -> bool:
        """True when nothing is missing or wrong; a switch that is off is neither.

        Nor is a busy machine: it will be quiet again, and `is_clean` tells.
        """
        problems = [item.problem for item in self.findings]
        return not any((*problems, *(switch.problem for switch in self.switches)))

    @property
    def is_clean(self) -> bool:
        """True when timing on this machine would get verdicts and could be quoted now."""
        return not any(item.problem for item in self.timing)

    def lines(self) -> list[str]:
        """Return text for people, a problem on a line of its own under what it concerns."""
        width = max(len(item.label) for item in (*self.findings, *self.timing))
        lines = _lines(self.findings, width)
        if self.timing:
            verdict = "clean" if self.is_clean else "not clean, so a run now could not be quoted"
            lines += ["", f"timing on this machine now: {verdict}", *_lines(self.timing, width)]
        return [*lines, *self._switch_lines()]

    def _switch_lines(self) -> list[str]:
        width = max((len(switch.name) for switch in self.switches), default=0)
        lines = []
        for switch in self.switches:
            lines.append(f"{switch.name:{width}}  {switch.state:5}  {switch.feature}")
            if switch.problem or switch.state == "off":
                lines.append(f"{'':{width}}  ! {switch.problem or switch.when_off}")
        return ["", "kill switches (NAME=0 turns the feature off)", *lines] if lines else []

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "healthy": self.is_healthy,
            "findings": [asdict(item) for item in self.findings],
            "clean": self.is_clean,
            "timing": [asdict(item) for item in self.timing],
            "switches": [asdict(item) for item in self.switches],
        }


def examine() -> Doctor:
    """Look at this machine and installation; it never raises for something missing."""
    backend_problem = _backend_problem()
    machine = read_machine()
    return Doctor(
        (
            Line("device", f"{machine.device}: {machine.device_name}", backend_problem),
            Line("processor", f"{machine.cpu}, {_cores(machine)}, {machine.arch}"),
            _blas(machine),
            _memory(machine),
            _cache(cache_dir()),
            Line("models", "unknown without a backend" if backend_problem else _models()),
            Line("system", f"{machine.os}, host {machine.host}"),
            Line("python", machine.python),
            Line("versions", ", ".join(f"{k} {v}" for k, v in machine.versions.items())),
            Line("source", _source()),
        ),
        tuple(_switch(name) for name in SWITCHES),
        timing_now(),
    )


def _lines(findings: Iterable[Line], width: int) -> list[str]:
    lines = []
    for item in findings:
        lines.append(f"{item.label:{width}}  {item.value}")
        if item.problem:
            lines.append(f"{'':{width}}  ! {item.problem}")
    return lines


def _switch(name: str) -> SwitchState:
    switch = SWITCHES[name]
    try:
        state, problem = "off" if is_off(name) else "on", ""
    except SettingError as error:
        state, problem = "wrong", str(error)
    return SwitchState(name, state, switch.help, switch.degrades_to, problem)


def _backend_problem() -> str:
    try:
        require_backend()
    except BackendError as error:
        return str(error)
    return ""


def _cores(machine: Machine) -> str:
    return f"{machine.usable_cores} of {machine.cores or 'unknown'} cores usable"


def _blas(machine: Machine) -> Line:
    threads = machine.blas_threads
    text = f"{machine.blas}, {threads} thread{'s' * (threads != 1)}" if threads else machine.blas
    if machine.product_cores > 1:
        text += f", {machine.product_cores} cores for products of many rows"
    problem = "; ".join(backend_info().warnings)
    return Line("blas", text, problem and f"matrix products are slow: {problem}")


def _memory(machine: Machine) -> Line:
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    text = (
        f"{machine.memory_bytes / GIB:.1f} GiB, {memory.available / GIB:.1f} GiB free, "
        f"swap {swap.used / GIB:.1f} of {swap.total / GIB:.1f} GiB used"
    )
    small = memory.available < 2 * GIB
    return Line("memory", text, "the default model needs 2 GiB free" if small else "")


def _cache(folder: Path) -> Line:
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    text = f"{folder}, {free / GIB:.1f} GiB free on its disk"
    if not _is_writable(existing):
        return Line("cache", text, "it cannot be written; set FM_CACHE_DIR to another folder")
    problem = "less than 1 GiB is left; free some, or set FM_CACHE_DIR"
    return Line("cache", text, problem if free < MIN_FREE_BYTES else "")


def _models() -> str:
    from engine.models.registry import model_rows

    rows = model_rows()
    cached = [row.name for row in rows if row.cached]
    first = "" if rows[0].cached else f"; {rows[0].name} is fetched when first used"
    return f"{', '.join(cached) or 'none'} cached{first}"


def _is_writable(folder: Path) -> bool:
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _source() -> str:
    state = git_state()
    if not state.sha:
        return "an installed package"
    return f"checkout at {revision_text(state.sha[:SHORT], is_dirty=state.is_dirty)}"
