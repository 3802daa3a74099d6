"""Many comparisons judged as one family: an unchanged build is rarely called a regression.

A gate looks at dozens of cells. If each were judged at 5 %, some cell of an unchanged build would
be called slower in most runs. Here a comparison is a regression only when two things agree: its own
95 % interval (exact signed ranks) lies beyond what is allowed, and the family has it that chance
makes no comparison of an unchanged build look as bad in more than 5 % of runs.

The second is a randomisation test. The order of a block is shuffled, so in an unchanged build the
two trials of a cell might as well have changed places, in every block and cell by itself, and what
the run would then have shown is known: the same log-ratios with other signs, those of all metrics
of these two trials together. The largest of all
statistics over many such draws is what chance can do (Westfall and Young, Resampling-Based Multiple
Testing, 1993). No law of the noise is assumed, and no equal noise. Log-ratios are cut at a few
times their usual size, the same in the run and in the draws, so that an outlier hides little. That
passes run in pairs of opposite order makes a steady drift cancel in the run and not in the draws:
it costs power and no error.

Ranks cell by cell could never decide: 7 blocks give no p below 1/128, and 24 cells at 5 % need
1/480. The mean over all cells is a comparison of its own: it finds a change that all share and
that is too small to be seen in one.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from harness.stats import (
    MAX_CV,
    MIN_BLOCKS_VERDICT,
    Interval,
    coefficient_of_variation,
    estimate,
    minimum_detectable,
    student_t_quantile,
)

Status = Literal["pass", "fail", "inconclusive"]

NUM_DRAWS = 9999
"""With 10,000 arrangements, the run's own counted, a p of 5 % is known to 0.2 %."""

DRAW_SEED = 5
"""The same rows give the same verdict."""

CUT = 3.0
"""Times the median size of a metric's log-ratios beyond which one counts as no larger."""

NOISE_ERROR = 0.01
"""Chance with which a baseline that equals its repeat is said not to, over all of them together.

It counts against power only: a session that is refused misses a regression it might have seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gains:
    """One comparison: ln of how much better the head is, by block; negative is worse.

    Args:
        limit: the gain at which it is a regression, negative.
        is_better_high: whether gains are ln(head / base), or the inverse.
        trials: which two trials each value is of; what several metrics saw of the same two changes
            sign together. Empty where every value has two of its own.
    """

    values: tuple[float, ...]
    limit: float
    is_better_high: bool
    trials: tuple[Hashable, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """The head against the base in one comparison.

    Args:
        n: blocks with both.
        ratio: head over base, with `low` and `high` of its own 95 % interval; None without one.
        limit: the ratio at which it becomes a regression.
        p: chance with which an unchanged build shows any comparison as bad as this one.
        wins: blocks in which the head was better.
        spread: coefficient of variation of the per-block ratios.
        minimum_detectable: smallest relative change found in 80 % of sessions, by this cell alone.
    """

    n: int
    ratio: float
    low: float | None
    high: float | None
    limit: float
    p: float
    wins: int
    spread: float | None
    minimum_detectable: float | None
    status: Status
    reason: str


def judge(families: Mapping[str, Sequence[Gains]], error: float) -> dict[str, tuple[Effect, ...]]:
    """Return what each comparison comes to, as one of all of them.

    Args:
        families: metric -> its comparisons, none of them without blocks. Where there are several,
            their mean is one more, the last of the result.
        error: chance of a false alarm among all of them.
    """
    chances = _chances(families)
    return {
        name: tuple(
            _effect(gains, p, error)
            for gains, p in zip([*cells, *mean_of(cells)], chances[name], strict=True)
        )
        for name, cells in families.items()
    }


def mean_of(cells: Sequence[Gains]) -> tuple[Gains, ...]:
    """Return the mean over some cells, block by block; nothing for fewer than two."""
    if len(cells) < 2:
        return ()
    n = min(len(cell.values) for cell in cells)
    values = [math.fsum(cell.values[block] for cell in cells) / len(cells) for block in range(n)]
    limit = math.fsum(cell.limit for cell in cells) / len(cells)
    high = cells[0].is_better_high
    return (Gains(values=tuple(values), limit=limit, is_better_high=high),)


def is_noisy(logs: Sequence[float], *, error: float, tolerance: float) -> bool:
    """Return whether a baseline differs from its own repeat by more than chance and tolerance."""
    if len(logs) < MIN_BLOCKS_VERDICT:
        return False
    half = student_t_quantile(1 - error / 2, len(logs) - 1) * float(np.std(logs, ddof=1))
    half /= math.sqrt(len(logs))
    mean = math.fsum(logs) / len(logs)
    return mean + half < math.log1p(-tolerance) or mean - half > math.log1p(tolerance)


def _chances(families: Mapping[str, Sequence[Gains]]) -> dict[str, list[float]]:
    """Return the family-wise p of every comparison, means included."""
    draw = _Draw()
    seen: dict[str, list[float]] = {}
    worst = np.full(NUM_DRAWS, -np.inf)
    for name, uncut in families.items():
        cells = _cut(uncut)
        means = [_mean(cell) for cell in cells]
        drawn = [draw.flipped_means(cell) for cell in cells]
        scales = [_scale(cells)] * len(cells)
        if len(cells) > 1:
            means.append(math.fsum(means) / len(cells))
            drawn.append(np.mean(drawn, axis=0))
            scales.append(_scale_of_mean(cells))
        seen[name] = [-mean / scale for mean, scale in zip(means, scales, strict=True)]
        for flipped, scale in zip(drawn, scales, strict=True):
            worst = np.maximum(worst, -flipped / scale)
    ordered = np.sort(worst)
    return {name: [_share(ordered, value) for value in values] for name, values in seen.items()}


def _cut(cells: Sequence[Gains]) -> list[Gains]:
    """Return the gains with outliers drawn in; sizes alone decide, which the draws keep."""
    sizes = [abs(value) for cell in cells for value in cell.values]
    most = CUT * float(np.median(sizes))
    if most == 0:
        return list(cells)
    return [
        replace(cell, values=tuple(max(-most, min(most, value)) for value in cell.values))
        for cell in cells
    ]


def _share(ordered: npt.NDArray[np.float64], value: float) -> float:
    """Return the share of draws at least as bad, the run itself counted as one of them."""
    # Sums of the same numbers in another order may differ in their last bits.
    at_least = len(ordered) - int(np.searchsorted(ordered, value - 1e-9))
    return (at_least + 1) / (len(ordered) + 1)


class _Draw:
    """Random arrangements of a run: which two trials change places in which draw."""

    def __init__(self) -> None:
        self._random = np.random.Generator(np.random.PCG64(DRAW_SEED))
        self._of_trials: dict[Hashable, npt.NDArray[np.int8]] = {}

    def flipped_means(self, cell: Gains) -> npt.NDArray[np.float64]:
        """Return the mean gain in each draw, [draws]."""
        signs = self._drawn(len(cell.values)) if not cell.trials else self._shared(cell.trials)
        means: npt.NDArray[np.float64] = signs @ np.asarray(cell.values) / len(cell.values)
        return means

    def _drawn(self, count: int) -> npt.NDArray[np.int8]:
        return 1 - 2 * self._random.integers(0, 2, size=(NUM_DRAWS, count), dtype=np.int8)

    def _shared(self, trials: tuple[Hashable, ...]) -> npt.NDArray[np.int8]:
        """Return the signs of some trials, [draws, trials], the same whoever asks."""
        new = [trial for trial in trials if trial not in self._of_trials]
        self._of_trials |= dict(zip(new, self._drawn(len(new)).T, strict=True))
        return np.stack([self._of_trials[trial] for trial in trials], axis=1)


def _scale(cells: Sequence[Gains]) -> float:
    """Return a unit in which metrics can be compared; signs do not change it."""
    squares = [value**2 for cell in cells for value in cell.values]
    blocks = len(squares) / len(cells)
    return math.sqrt(math.fsum(squares) / len(squares) / blocks) or 1.0


def _scale_of_mean(cells: Sequence[Gains]) -> float:
    """Return the same for the mean over cells: its standard deviation under the draws."""
    of_cells = [
        math.fsum(value**2 for value in cell.values) / len(cell.values) ** 2 for cell in cells
    ]
    return math.sqrt(math.fsum(of_cells)) / len(cells) or 1.0


def _mean(cell: Gains) -> float:
    return math.fsum(cell.values) / len(cell.values)


def _effect(gains: Gains, p: float, error: float) -> Effect:
    own, n = estimate(gains.values), len(gains.values)
    spread = coefficient_of_variation([math.exp(gain) for gain in gains.values])
    status, reason = _status(own, n, gains.limit, spread, p <= error)
    ends = [None if end is None else _told(end, gains) for end in (own.low, own.high)]
    low, high = ends if gains.is_better_high else ends[::-1]
    return Effect(
        n=n,
        ratio=_told(own.estimate, gains),
        low=low,
        high=high,
        limit=_told(gains.limit, gains),
        p=p,
        wins=sum(gain > 0 for gain in gains.values),
        spread=spread,
        minimum_detectable=minimum_detectable(gains.values),
        status=status,
        reason=reason,
    )


def _status(
    own: Interval, n: int, limit: float, spread: float | None, is_beyond_chance: bool
) -> tuple[Status, str]:
    if n < MIN_BLOCKS_VERDICT or own.low is None or own.high is None:
        return "inconclusive", f"a verdict needs {MIN_BLOCKS_VERDICT} blocks"
    if own.high < limit and is_beyond_chance:
        return "fail", "worse than is allowed"
    if own.high < limit:
        return "inconclusive", "worse by itself, but as one of so many it may be chance"
    if own.low <= limit:
        return "inconclusive", "too noisy to tell"
    if spread is not None and spread > MAX_CV:
        # A spread that wide makes a drop harder to prove, never easier: only passing is refused.
        return "inconclusive", f"the ratio varies by {100 * spread:.3g} % between blocks"
    return "pass", ""


def _told(gain: float, gains: Gains) -> float:
    return math.exp(gain if gains.is_better_high else -gain)
