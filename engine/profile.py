"""Measures what decode forwards cost here, on a cache of its own that is dropped afterwards."""

from __future__ import annotations

import time
from dataclasses import dataclass

import mlx.core as mx

from engine import arrays
from engine.costs import StepCosts, step_costs
from engine.kv_budget import Rectangle
from engine.plan import RowRange
from engine.runner import Runner
from engine.shapes import CAPACITY_BLOCK, STEP_WIDTHS, round_up, row_bucket

ROUNDS = 3
"""Forwards of each shape, of which the fastest counts: whatever else runs here only adds time."""

FIRST_S = 3.0
"""Time after which no shape is run for the first time; it lies on the line through the others."""

PROFILE_S = 1.5
"""Time for further runs, on a clock of its own: a first run may trace and compile, which takes long
and says nothing of a step. By such prices a batch was never given drafts, for as long as its engine
was open (docs/decisions/budgets.md). So a second run comes always, and a third in what is left.
"""

START = 384
"""Cached tokens of the first row; every row has one more than the one before, as in a batch.

Reading the cache is a part of every step. At 64 tokens a plain step of four rows looks cheaper
beside a wide one than it is in a real batch, which was then given too few drafts
(docs/decisions/budgets.md).
"""


@dataclass(frozen=True, slots=True)
class Timing:
    """One forward: until it was launched, and until the host has read its choice; seconds."""

    launch_s: float
    total_s: float


def profile_steps(runner: Runner, max_rows: int, widest: int = STEP_WIDTHS[-1]) -> StepCosts:
    """Time decode forwards of one row and of `max_rows`, at each width up to `widest`.

    Waits for the device, for about FIRST_S and as long again where nothing is compiled, and leaves
    the runner's cache as it is. A step launched ahead saves its launch or the computing it overlaps
    with, whichever is shorter.

    Returns:
        Costs in seconds.
    """
    scratch = runner.on_empty_cache()
    positions = round_up(START + max_rows + widest, CAPACITY_BLOCK)
    scratch.make_room(Rectangle(row_bucket(max_rows), positions))
    fastest = _fastest(scratch, row_bucket(max_rows), widest)
    plain = fastest[(1, STEP_WIDTHS[0])]
    least_s = min(timing.total_s for timing in fastest.values())
    return step_costs(
        {shape: timing.total_s for shape, timing in fastest.items()},
        ahead=min(plain.launch_s, plain.total_s - plain.launch_s, least_s / 2),
    )


def _fastest(runner: Runner, max_rows: int, widest: int) -> dict[tuple[int, int], Timing]:
    """Run all shapes, (rows, width), in turns, so that a slow moment hits no single one."""
    widths = [width for width in STEP_WIDTHS if width <= widest]
    shapes = [(rows, width) for width in widths for rows in sorted({1, max_rows})]
    found: dict[tuple[int, int], Timing] = {}
    first_until_s = time.perf_counter() + FIRST_S
    for shape in shapes:
        if shape[1] == STEP_WIDTHS[0] or time.perf_counter() < first_until_s:
            found[shape] = _run(runner, *shape)
    until_s = time.perf_counter() + PROFILE_S
    for number, shape in enumerate(list(found) * (ROUNDS - 1)):
        if number < len(found) or time.perf_counter() < until_s:
            found[shape] = min(found[shape], _run(runner, *shape), key=lambda each: each.total_s)
    return found


def _run(runner: Runner, rows: int, width: int) -> Timing:
    starts = tuple(START + row for row in range(rows))
    where = RowRange(0, starts, counts=(width,) * rows, adapters=(0,) * rows)
    ids = arrays.ids_array([[0] * width] * rows, width)
    before = time.perf_counter()
    chosen = mx.argmax(runner.forward(ids, where), axis=-1)
    arrays.launch(chosen)
    launched = time.perf_counter()
    arrays.read_tokens(chosen)
    return Timing(launched - before, time.perf_counter() - before)
