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

PROFILE_S = 1.5
"""Time for forwards that nobody needs, by the prices found so far: of widths between the narrowest
and the widest, which lie on a line otherwise, and third runs.

No clock decides this. A first run may trace and compile for seconds; on a fresh machine that used
up a limit in wall time at the second shape, and the widths left unmeasured, priced by the token,
kept a batch from ever being given drafts (docs/decisions/budgets.md).
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

    Waits for the device, which computes for some 2 * PROFILE_S, for longer where four forwards do,
    and compiles what these shapes need. Leaves the runner's cache as it is. A step launched ahead
    saves its launch or the computing it overlaps with, whichever is shorter.

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
    """Return the faster of two runs of each shape, (rows, width), or of three."""
    found: dict[tuple[int, int], Timing] = {}
    spent_s = 0.0
    for shape in _shapes(max_rows, widest):
        if spent_s < PROFILE_S or shape[1] in (STEP_WIDTHS[0], widest):
            found[shape] = _faster(_run(runner, *shape), _run(runner, *shape))
            spent_s += found[shape].total_s
    for shape, timing in list(found.items()):
        if spent_s < PROFILE_S:
            found[shape] = _faster(timing, _run(runner, *shape))
            spent_s += found[shape].total_s
    return found


def _shapes(max_rows: int, widest: int) -> list[tuple[int, int]]:
    """Return what is measured, (rows, width): first what is needed, the ends of each line."""
    between = [width for width in STEP_WIDTHS[1:] if width < widest]
    widths = [*dict.fromkeys((STEP_WIDTHS[0], widest)), *between]
    return [(rows, width) for width in widths for rows in sorted({1, max_rows})]


def _faster(one: Timing, other: Timing) -> Timing:
    """Whatever else runs here only adds time."""
    return min(one, other, key=lambda each: each.total_s)


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
