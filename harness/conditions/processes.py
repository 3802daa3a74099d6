"""Who used the processor: our own processes, and the others by name.

Of a process only its number, the name of its program and its times are read; its arguments may
hold what nobody else should see.
"""

from __future__ import annotations

import os
import re
import resource
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from harness.asking import output_of

ROOT = Path("/")
PS = ("ps", "-Aco", "pid=,ppid=,time=,comm=")
"""macOS: `-c` gives the program's name alone, without path and arguments."""

_PS_LINE = re.compile(r"^\s*(\d+)\s+(\d+)\s+(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)\s+(\S.*)$")
_UNPRINTABLE = "?"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessTime:
    """Processor time of one process since it began, in seconds.

    Args:
        start: tells two processes of one number apart.
        used_s: its own time, of all its threads.
        reaped_s: time of its children that have ended.
    """

    pid: int
    parent: int
    name: str
    used_s: float
    start: str = ""
    reaped_s: float = 0.0

    @property
    def key(self) -> tuple[int, str]:
        """What is one process's alone."""
        return (self.pid, self.start)

    @property
    def total_s(self) -> float:
        """Its time and that of its ended children."""
        return self.used_s + self.reaped_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one process used of the processor between two readings, in cores."""

    pid: int
    name: str
    cores: float


Table = Mapping[tuple[int, str], ProcessTime]


def process_table() -> Table:
    """Return every process that can be seen from here; it takes some microseconds for each."""
    if sys.platform == "darwin":
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        return table_of(from_ps(output_of(*PS), os.getpid(), ended.ru_utime + ended.ru_stime))
    return table_of(from_proc(ROOT / "proc"))


def table_of(processes: Iterable[ProcessTime]) -> Table:
    """Return processes by their keys."""
    return {process.key: process for process in processes}


def from_proc(folder: Path, ticks: float | None = None) -> Iterator[ProcessTime]:
    """Yield the processes of a /proc; one that ends meanwhile is left out."""
    ticks = os.sysconf("SC_CLK_TCK") if ticks is None else ticks
    try:
        numbers = [name for name in os.listdir(folder) if name.isdigit()]  # noqa: PTH208  # no Path each
    except OSError:
        return
    for number in numbers:
        try:
            with open(f"{folder}/{number}/stat", "rb") as file:  # noqa: PTH123  # half the time
                text = file.read().decode("utf-8", "replace")
        except OSError:
            continue
        process = from_stat(text, ticks)
        if process is not None:
            yield process


def from_stat(text: str, ticks: float) -> ProcessTime | None:
    """Read /proc/PID/stat (proc_pid_stat(5)); None for anything else.

    The name stands in parentheses and may hold blanks and parentheses itself.
    """
    head, _, tail = text.rpartition(")")
    pid, _, name = head.partition(" (")
    fields = tail.split()
    if not pid.isdigit() or len(fields) < 20:
        return None
    user, system, ended_user, ended_system = (int(value) for value in fields[11:15])
    return ProcessTime(
        pid=int(pid),
        parent=int(fields[1]),
        name=_printable(name),
        used_s=(user + system) / ticks,
        start=fields[19],
        reaped_s=(ended_user + ended_system) / ticks,
    )


def from_ps(text: str, own: int, ended_s: float) -> Iterator[ProcessTime]:
    """Read the output of PS, whose times are `[[DAYS-]HOURS:]MINUTES:SECONDS`.

    Args:
        own: this process, the one of which the time of its ended children is known: `ended_s`.
    """
    for line in text.splitlines():
        found = _PS_LINE.match(line)
        if found is None:
            continue
        pid, parent, days, hours, minutes, seconds, name = found.groups()
        whole = (24 * int(days or 0) + int(hours or 0)) * 60 + int(minutes)
        yield ProcessTime(
            pid=int(pid),
            parent=int(parent),
            name=_printable(name.strip()),
            used_s=60.0 * whole + float(seconds),
            reaped_s=ended_s if int(pid) == own else 0.0,
        )


def family(table: Table, roots: Sequence[int]) -> frozenset[int]:
    """Return the processes of `roots` and all that descend from them."""
    children: dict[int, list[int]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process.pid)
    found, waiting = set(roots), list(roots)
    while waiting:
        new = [pid for pid in children.get(waiting.pop(), ()) if pid not in found]
        found.update(new)
        waiting += new
    return frozenset(found)


def total_s(table: Table, pids: frozenset[int]) -> float:
    """Return the processor time of some processes and of their ended children."""
    return sum(process.total_s for process in table.values() if process.pid in pids)


def heaviest(first: Table, second: Table, ours: frozenset[int], window_s: float) -> list[Share]:
    """Return what others used between two tables, the most first.

    The time of a child that ended in between is its parent's, as far as it fell in between.
    """
    reaped = _reaped_between(first, second)
    shares = []
    for process in second.values():
        before = first.get(process.key)
        used_s = process.used_s - (before.used_s if before else 0.0) + reaped.get(process.pid, 0.0)
        if process.pid not in ours and used_s > 0:
            shares.append(Share(pid=process.pid, name=process.name, cores=used_s / window_s))
    return sorted(shares, key=lambda share: (-share.cores, share.pid))


def _reaped_between(first: Table, second: Table) -> Mapping[int, float]:
    """Return by how much the time of ended children rose, less what they had used before.

    What an ended process had used is found with the nearest of its ancestors that lives: its
    parent may have ended with it, and handed the time on.
    """
    rises = {
        key[0]: max(0.0, second[key].reaped_s - process.reaped_s)
        for key, process in first.items()
        if key in second
    }
    parents = {process.pid: process.parent for process in first.values()}
    for key, process in first.items():
        if key in second:
            continue
        left_s, pid, seen = process.total_s, process.parent, {process.pid}
        while left_s > 0 and pid in parents and pid not in seen:
            taken_s = min(left_s, rises.get(pid, 0.0))
            rises[pid] = rises.get(pid, 0.0) - taken_s
            left_s -= taken_s
            seen.add(pid)
            pid = parents[pid]
    return rises


def measured_roots(target: str) -> tuple[int, ...] | None:
    """Return the processes a run measures beside our own: those of a server on this machine.

    Args:
        target: as of Choices.

    Returns:
        None where the server is on this machine and its process cannot be seen.
    """
    url = urlsplit(target)
    if not url.scheme or url.hostname not in ("127.0.0.1", "localhost", "::1"):
        return ()
    pid = listener(url.port or (443 if url.scheme == "https" else 80))
    return None if pid is None else (pid,)


def listener(port: int) -> int | None:
    """Return the process that listens on a TCP port of this machine, None where none is seen."""
    try:
        found = psutil.net_connections("tcp")
    except psutil.Error:
        return None
    return next(
        (
            item.pid
            for item in found
            if item.status == psutil.CONN_LISTEN and item.laddr and item.laddr.port == port
        ),
        None,
    )


def _printable(name: str) -> str:
    return "".join(char if char.isprintable() else _UNPRINTABLE for char in name)
