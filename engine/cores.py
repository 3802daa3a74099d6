"""How many cores this process may use, and how many of them a matrix product should take.

BLAS threads spin while they wait for each other. As soon as one of them has to share its core,
every product waits for that one: two threads on two busy cores cost 2 to 30 times what one
thread does, while on an idle machine they save a quarter (docs/decisions/blas.md). So one core
stays free for everything else, and cores that are busy at the start are not counted.
"""

from __future__ import annotations

import math
import os
import re
from pathlib import Path

from engine.errors import SettingError

MOST_THREADS = 4
"""Decoding reads weights; a few cores saturate the memory, more only wait for each other."""

ROOT = Path("/")


def blas_threads() -> int:
    """Return the threads one matrix product may use; FM_BLAS_THREADS overrides the rule.

    The variables OpenBLAS and OpenMP read themselves are upper bounds.

    Raises:
        SettingError: FM_BLAS_THREADS is not a number from 1 to 64.
    """
    asked = _asked_threads()
    return asked or min(threads_for(usable_cores(), os.getloadavg()[0]), *_limits())


def product_streams() -> int:
    """Return how many streams may share a large product, 1 or 2.

    Streams sleep while they wait, so that a busy core costs them little: the free core is used for
    such products, unless the variables of `blas_threads` say 1.

    Raises:
        SettingError: as `blas_threads`.
    """
    return min(2, usable_cores(), _asked_threads() or min(_limits()))


def _asked_threads() -> int | None:
    """Return FM_BLAS_THREADS; None when it is not set."""
    asked = os.environ.get("FM_BLAS_THREADS")
    if not asked:
        return None
    if not (asked.isascii() and asked.isdigit() and 1 <= int(asked) <= 64):
        raise SettingError(f"FM_BLAS_THREADS is {asked!r}; it must be a number from 1 to 64")
    return int(asked)


def threads_for(cores: int, load: float) -> int:
    """Return the threads for `cores` cores of which `load` are busy: 1 to cores - 1, at least 1."""
    idle = cores - math.ceil(load - 0.5)
    return max(1, min(cores - 1, idle))


def usable_cores(root: Path = ROOT) -> int:
    """Return the physical cores this process may run on at a time; at least one.

    Counted are the cores of the scheduling mask, two hardware threads of one core being one,
    and no more than the control group's quota pays for.

    Args:
        root: where /proc and /sys are looked for.
    """
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    cores = {_siblings(root, cpu) for cpu in os.sched_getaffinity(0)}
    quota = cpu_quota(root)
    return max(1, len(cores) if quota is None else min(len(cores), math.floor(quota)))


def cpu_quota(root: Path = ROOT) -> float | None:
    """Return the cores' worth of time the control groups allow, None where they set no limit."""
    limits = [_quota_v2(folder) for folder in group_folders(root)]
    limits.append(_quota_v1(root / "sys/fs/cgroup/cpu"))
    return min((limit for limit in limits if limit is not None), default=None)


def _limits() -> list[int]:
    values = (os.environ.get(name, "") for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"))
    return [MOST_THREADS, *(int(value) for value in values if re.fullmatch(r"0*[1-9]\d*", value))]


def _siblings(root: Path, cpu: int) -> str:
    path = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
    return _read(path) or str(cpu)


def group_folders(root: Path) -> list[Path]:
    """Return the process's group in the unified hierarchy and the groups around it."""
    top = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        if line.startswith("0::"):
            inner = top / line[3:].lstrip("/")
            return [folder for folder in (inner, *inner.parents) if folder.is_relative_to(top)]
    return []


def _quota_v2(folder: Path) -> float | None:
    words = _read(folder / "cpu.max").split()
    return None if len(words) != 2 or words[0] == "max" else int(words[0]) / int(words[1])


def _quota_v1(folder: Path) -> float | None:
    quota, period = (_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us"))
    return int(quota) / int(period) if quota and period and int(quota) > 0 else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""
