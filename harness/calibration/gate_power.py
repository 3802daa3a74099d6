"""How often a whole gate is wrong, and how often it sees a drop: simulated, cell by cell.

Run as `python -m harness.calibration.gate_power [--runs 1000]`; docs/gating.md holds its figures.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from harness.policy.family import Gains, judge

DELTA = 0.03
"""Of `tok_s` in policies/default.toml."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is simulated.

    Args:
        noise: standard deviation of the logarithm of one trial's speed.
        drop: of the speed of the first cell, 0 for an unchanged build.
        metrics: speeds that are compared beside each other; the drop is in the first.
        outliers: share of trials that a disturbance slows down, by 0.5 in the logarithm on average.
        machine: standard deviation between machines; both sides of a block share theirs.
        process: standard deviation of what one side's process adds to a cell in all blocks, e.g. by
            where its memory lies: no shuffling meets that.
    """

    cells: int = 24
    blocks: int = 7
    noise: float = 0.06
    drop: float = 0.0
    metrics: int = 1
    outliers: float = 0.0
    machine: float = 0.0
    process: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Shares of runs: with any comparison failed, and with the first cell failed."""

    any_failed: float
    caught: float


def simulate(setting: Setting, runs: int, seed: int, error: float = 0.05) -> Seen:
    """Return what gates say over many runs."""
    rng = np.random.default_rng(seed)
    any_failed = caught = 0
    for _ in range(runs):
        families = {str(metric): _gains(setting, metric, rng) for metric in range(setting.metrics)}
        effects = judge(families, error)
        failed = [effect.status == "fail" for cells in effects.values() for effect in cells]
        any_failed += any(failed)
        caught += failed[0]
    return Seen(any_failed=any_failed / runs, caught=caught / runs)


def _gains(setting: Setting, metric: int, rng: np.random.Generator) -> list[Gains]:
    shape = (2, setting.cells, setting.blocks)
    logs = rng.normal(0, setting.noise, shape)
    is_hit = rng.random(shape) < setting.outliers
    logs -= is_hit * rng.exponential(0.5, shape)
    if setting.process:
        logs += rng.normal(0, setting.process, (*shape[:2], 1))
    gains = logs[0] - logs[1]
    if setting.machine:
        # Drawn apart, so that the other noise stays the same; it cancels in every ratio.
        other = np.random.default_rng(0).normal(0, setting.machine, shape[1:])
        gains = (logs[0] + other) - (logs[1] + other)
    if metric == 0:
        gains[0] += math.log1p(-setting.drop)
    limit = math.log1p(-DELTA)
    return [
        Gains(
            values=tuple(map(float, row)),
            limit=limit,
            is_better_high=True,
            trials=tuple((cell, block) for block in range(setting.blocks)),
        )
        for cell, row in enumerate(gains)
    ]


SETTINGS = [
    Setting(drop=drop, metrics=metrics, outliers=outliers)
    for metrics, outliers in ((1, 0.0), (3, 0.0), (3, 0.05))
    for drop in (0.0, 0.10, 0.30)
]
SETTINGS += [Setting(cells=6, noise=0.02, metrics=3, drop=drop) for drop in (0.0, 0.05, 0.08)]
SETTINGS += [
    Setting(cells=6, noise=0.02, metrics=3, process=lasting) for lasting in (0.005, 0.01, 0.02)
]


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate every setting and print one JSON line for each."""
    parser = argparse.ArgumentParser(
        prog="python -m harness.calibration.gate_power", description=__doc__
    )
    parser.add_argument("--runs", type=int, default=1000, help="gates of each setting")
    parser.add_argument("--seed", type=int, default=0, help="of the noise")
    chosen = parser.parse_args(arguments)
    for setting in SETTINGS:
        seen = simulate(setting, chosen.runs, chosen.seed)
        line = {**asdict(setting), "runs": chosen.runs, **asdict(seen)}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
