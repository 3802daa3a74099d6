"""The speed at which this machine moves memory: what bounds decoding a few rows.

Measured once a process, in a few hundred milliseconds, on the device that computes: several ways
of reading and copying arrays too large for any cache, in turns, of which the fastest counts.
Whatever else runs here only slows it down, so it is a bound from below on what the memory can do,
and the bound it gives on tokens a second can be passed where it was measured on a busy machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from threading import Thread

import mlx.core as mx
import numpy as np
import psutil
from numpy.typing import NDArray

from engine.backend import backend_info
from engine.cores import usable_cores

CACHES = 4
"""An array of so many last-level caches is in none."""

CPU_BYTES = 128 << 20
"""Of an array at least: the size of a cache is not told everywhere."""

MOST_CPU_BYTES = 1 << 30

GPU_BYTES = 512 << 20
"""Ten times the cache of an H200; copying it takes 0.2 ms there and 10 ms at 100 GB/s."""

GPU_REPEATS = 8
"""Kernels of one timing, launched together, so that launching them is no part of it."""

BUDGET_S = 0.4
"""No round is begun after this."""

Way = Callable[[], int]
"""Moves memory, waits until that is done, and returns how many bytes were moved."""


@cache
def memory_bandwidth_gb_s() -> float | None:
    """Return the bandwidth in 10^9 bytes a second; None where memory is too short to tell.

    Waits for the device.
    """
    ways = _gpu_ways() if backend_info().device != "cpu" else _cpu_ways()
    if not ways:
        return None
    found = fastest(ways)
    mx.clear_cache()
    return float(f"{found / 1e9:.3g}")


def fastest(
    ways: Sequence[Way], budget_s: float = BUDGET_S, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Run all ways in turns until the budget is spent, twice at least; bytes a second of the best.

    The first round is left out: it meets memory that was never touched and kernels not compiled.
    """
    deadline_s, best, rounds = clock() + budget_s, 0.0, 0
    while rounds < 2 or clock() < deadline_s:
        for move in ways:
            before_s = clock()
            moved = move()
            seconds = clock() - before_s
            if rounds and seconds > 0:
                best = max(best, moved / seconds)
        rounds += 1
    return best


def _cpu_ways() -> list[Way]:
    """Read by one thread, read by all cores, copy by all cores; numpy lets threads run together."""
    size = min(max(CACHES * _last_level_cache(), CPU_BYTES), MOST_CPU_BYTES)
    if psutil.virtual_memory().available < 4 * size:
        return []
    source = np.ones(size // 4, dtype=np.float32)
    target = np.empty_like(source)
    cores = usable_cores()

    def read(num_threads: int) -> int:
        _together(np.sum, [(part,) for part in np.array_split(source, num_threads)])
        return source.nbytes

    def copy(num_threads: int) -> int:
        halves = (np.array_split(array, num_threads) for array in (target, source))
        _together(np.copyto, list(zip(*halves, strict=True)))
        return 2 * source.nbytes

    return [lambda: read(1), lambda: read(cores), lambda: copy(cores)]


def _last_level_cache(folder: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """Return the bytes of the largest cache that Linux tells of, 0 where none is told."""
    told = [path.read_text().strip() for path in folder.glob("index*/size")]
    return max((int(text[:-1]) << 10 for text in told if text.endswith("K")), default=0)


def _together(
    call: Callable[..., object], parts: Sequence[tuple[NDArray[np.float32], ...]]
) -> None:
    threads = [Thread(target=call, args=part) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _gpu_ways() -> list[Way]:
    """Read, and copy within the device, by kernels of MLX."""
    source = mx.ones(GPU_BYTES // 4)
    mx.eval(source)

    def read() -> int:
        mx.eval([mx.sum(source) for _ in range(GPU_REPEATS)])
        return GPU_REPEATS * source.nbytes

    def copy() -> int:
        copied = source
        for _ in range(GPU_REPEATS):
            copied = copied + 1
        mx.eval(copied)
        return 2 * GPU_REPEATS * source.nbytes

    return [read, copy]
