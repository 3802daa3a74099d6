"""Measures what decode forwards cost here, on a cache of its own that is dropped afterwards."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median

import mlx.core as mx

from engine import arrays
from engine.config import STEP_WIDTHS
from engine.costs import StepCosts, step_costs
from engine.runner import Runner

REPEATS = 3
"""Forwards of one shape, of which the median counts."""

PROFILE_S = 1.5
"""Time after which what is left is taken from the line through what was measured."""

START = 64
"""Cached tokens of the first row; every row has one more than the one before, as in a batch."""


@dataclass(frozen=True, slots=True)
class Timing:
    """One forward: until it was launched, and until the host has read its choice; seconds."""

    launch_s: float
    total_s: float


def profile_steps(runner: Runner, max_rows: int, widest: int = STEP_WIDTHS[-1]) -> StepCosts:
    """Time decode forwards of one row and of `max_rows`, at each width up to `widest`.

    Waits for the device, about PROFILE_S in all, and leaves the runner's cache as it is. A step
    launched ahead saves its launch or the computing it overlaps with, whichever is shorter.

    Returns:
        Costs in seconds.
    """
    scratch = runner.on_empty_cache()
    shapes = [
        (rows, width) for width in STEP_WIDTHS if width <= widest for rows in sorted({1, max_rows})
    ]
    measured: dict[tuple[int, int], Timing] = {}
    deadline_s = time.perf_counter() + PROFILE_S
    _run(scratch, *shapes[0])  # the first forward also pays for what is built once
    for shape in shapes:
        if time.perf_counter() < deadline_s or shape[1] == STEP_WIDTHS[0]:
            measured[shape] = _measure(scratch, *shape, deadline_s)
    fastest = min(measured.values(), key=lambda timing: timing.total_s)
    return step_costs(
        {shape: timing.total_s for shape, timing in measured.items()},
        ahead=min(fastest.launch_s, fastest.total_s - fastest.launch_s),
    )


def _measure(runner: Runner, rows: int, width: int, deadline_s: float) -> Timing:
    timings = [_run(runner, rows, width)]
    while len(timings) < REPEATS and time.perf_counter() < deadline_s:
        timings.append(_run(runner, rows, width))
    return Timing(
        median(timing.launch_s for timing in timings), median(timing.total_s for timing in timings)
    )


def _run(runner: Runner, rows: int, width: int) -> Timing:
    starts = [START + row for row in range(rows)]
    ids = arrays.ids_array([[0] * width] * rows, width)
    before = time.perf_counter()
    chosen = mx.argmax(runner.forward(ids, 0, starts), axis=-1)
    arrays.launch(chosen)
    launched = time.perf_counter()
    arrays.read_tokens(chosen)
    return Timing(launched - before, time.perf_counter() - before)
