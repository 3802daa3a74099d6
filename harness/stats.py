"""The statistics of the reports, on plain numbers, with numpy alone.

Percentiles are by nearest rank, everywhere. Ratios are estimated from per-block log-ratios; every
result is finite or None, never NaN or infinite.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, TypeGuard

import numpy as np
import numpy.typing as npt

from harness.store.rows import Verdict

CONFIDENCE = 0.95
POWER = 0.80
"""Chance with which an effect as large as the minimum detectable one is found."""

TOLERANCE = 0.03
"""Two cells whose ratio lies within 1 +- this are called the same."""

MAX_CV = 0.10
"""Above this spread of the per-block ratios no verdict is given."""

MIN_BLOCKS_VERDICT = 6
"""The smallest n whose exact two-sided signed-rank interval reaches 95 % (2 / 2^6 = 3.1 %)."""

MIN_BLOCKS_INTERVAL = 3
MAX_LOG_RATIO = 300.0
"""Of ratios up to 10^130, squares are finite too; no two rates are that far apart."""

MIN_P95_SHOWN = 20
MIN_P95_PROVEN = 59
"""Fewest observations whose largest bounds the 95th percentile with 95 % confidence."""

SIGNED_RANK_REACH = {6: 1.257, 7: 1.048, 8: 1.082, 9: 1.080, 10: 1.025, 11: 1.055, 12: 1.055}
"""By how much the signed-rank interval reaches less far than Student's t at 80 % power, by n: on
normal log-ratios, from 100,000 sessions each (`scripts/calibrate` repeats it for 7 and 10). Six
blocks need all six on one side, which costs a quarter."""

MANY_BLOCKS_REACH = 1.045
"""The same beyond 12 blocks, where it falls to 1.023."""

Tail = Literal["hidden", "flagged", "shown"]
Method = Literal["signed-rank", "t", "none"]


class StatsError(ValueError):
    """A value that must not enter a statistic: None, NaN or infinite."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Finite values of a mixed list, and how many were dropped."""

    values: tuple[float, ...]
    dropped: int


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its confidence interval; low and high are None where there is none."""

    estimate: float
    low: float | None
    high: float | None
    method: Method


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """How much faster one cell is than another, from blocks that ran both.

    Args:
        n: blocks with both.
        estimate, low, high: the ratio, above 1 is faster; None where it cannot be given.
        verdict: None when refused, or with fewer than 3 blocks.
        wins: blocks in which the ratio was above 1.
        minimum_detectable: smallest relative change found with 80 % power, e.g. 0.04.
        cv: coefficient of variation of the per-block ratios.
        refusals: why there is no verdict, one line each.
    """

    n: int
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    verdict: Verdict | None = None
    wins: int = 0
    minimum_detectable: float | None = None
    cv: float | None = None
    method: Method = "none"
    refusals: tuple[str, ...] = ()


def finite(values: Sequence[float | None]) -> Kept:
    """Return the finite values in their order, and the number of others."""
    kept = tuple(float(value) for value in values if value is not None and math.isfinite(value))
    return Kept(kept, len(values) - len(kept))


def percentile(values: Sequence[float], p: float) -> float | None:
    """Return the nearest-rank percentile: the smallest value with p % of all at or below it.

    Args:
        p: 0 to 100; 0 gives the smallest, 100 the largest.

    Returns:
        One of the values, None for none.

    Raises:
        StatsError: a value is None or not finite; `finite` drops and counts such.
        ValueError: p is out of range.
    """
    if not 0 <= p <= 100:
        raise ValueError(f"p is {p}; it must be between 0 and 100")
    if finite(values).dropped:
        raise StatsError("a percentile of None, NaN or an infinity was asked for; drop it first")
    if not values:
        return None
    rank = math.ceil(p * len(values) / 100)
    return float(sorted(values)[max(rank, 1) - 1])


def tail(n: int) -> Tail:
    """Return how a 95th percentile of n observations is shown."""
    if n < MIN_P95_SHOWN:
        return "hidden"
    return "flagged" if n < MIN_P95_PROVEN else "shown"


def per_stream_rate(
    tokens: int | None, first_s: float | None, last_s: float | None
) -> float | None:
    """Return (n - 1) / (t_last - t_first) in tokens a second.

    None for replies of zero or one token, and where no time passed between first and last.
    """
    if tokens is None or tokens < 2 or first_s is None or last_s is None:
        return None
    return rate(tokens - 1, last_s - first_s)


def rate(tokens: int | None, seconds: float | None) -> float | None:
    """Return tokens a second, None when nothing came or no time passed."""
    if not tokens or seconds is None or not math.isfinite(seconds) or seconds <= 0:
        return None
    return tokens / seconds


def log_ratios(
    rates: Mapping[int, float | None], baseline: Mapping[int, float | None]
) -> tuple[float, ...]:
    """Return ln(rate / baseline) of every block that has both, by block.

    A rate that is None, zero, negative or not finite counts as none, and so do two that no engine
    lies between.
    """
    logs = []
    for block in sorted(rates.keys() & baseline.keys()):
        ours, theirs = rates[block], baseline[block]
        if _is_rate(ours) and _is_rate(theirs) and _is_rate(ours / theirs):
            logs.append(math.log(ours / theirs))
    return tuple(value for value in logs if abs(value) <= MAX_LOG_RATIO)


def _is_rate(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value) and value > 0


def compare(
    logs: Sequence[float], *, refusals: Sequence[str] = (), tolerance: float = TOLERANCE
) -> Ratio:
    """Return the ratio of two cells from their per-block log-ratios.

    Args:
        logs: natural logarithms, one a block.
        refusals: reasons known to the caller against a verdict.
        tolerance: relative difference that counts as none.

    Raises:
        StatsError: a logarithm is not finite, or so large that its ratio is not.
    """
    if any(not abs(value) <= MAX_LOG_RATIO for value in logs):
        raise StatsError(
            f"{list(logs)} are no log-ratios; each must lie within +-{MAX_LOG_RATIO:g}"
        )
    if not logs:
        return Ratio(n=0, refusals=(*refusals, "no block has the speed of both cells"))
    interval = estimate(logs)
    spread = coefficient_of_variation([math.exp(value) for value in logs])
    against = list(refusals)
    if spread is not None and spread > MAX_CV:
        against.append(f"the ratio varies by {100 * spread:.3g} % between blocks (over 10 %)")
    ratio = Ratio(
        n=len(logs),
        estimate=math.exp(interval.estimate),
        low=None if interval.low is None else math.exp(interval.low),
        high=None if interval.high is None else math.exp(interval.high),
        wins=sum(value > 0 for value in logs),
        minimum_detectable=minimum_detectable(logs),
        cv=spread,
        method=interval.method,
        refusals=tuple(against),
    )
    return replace(ratio, verdict=None if against else judge(interval, len(logs), tolerance))


def judge(interval: Interval, n: int, tolerance: float = TOLERANCE) -> Verdict | None:
    """Return what an interval of n log-ratios says; None where there are too few for one."""
    if interval.low is None or interval.high is None:
        return None
    if n < MIN_BLOCKS_VERDICT:
        return "provisional"
    if math.log1p(-tolerance) < interval.low and interval.high < math.log1p(tolerance):
        return "same"
    if interval.low > 0:
        return "faster"
    return "slower" if interval.high < 0 else "unclear"


def estimate(values: Sequence[float]) -> Interval:
    """Return the centre of symmetric values with the interval that their number allows.

    From 6 on the Hodges-Lehmann estimate with the exact Wilcoxon signed-rank interval (Hollander
    and Wolfe, Nonparametric Statistical Methods, 3.2-3.3); from 3 on the mean with Student's t
    interval; below that the mean alone.
    """
    if len(values) >= MIN_BLOCKS_VERDICT:
        return _signed_rank(values)
    centre = math.fsum(values) / len(values)
    if len(values) < MIN_BLOCKS_INTERVAL:
        return Interval(centre, None, None, "none")
    half = student_t_quantile((1 + CONFIDENCE) / 2, len(values) - 1) * _standard_error(values)
    return Interval(centre, centre - half, centre + half, "t")


def signed_rank_law(n: int) -> npt.NDArray[np.float64]:
    """Return P(positive ranks of n values sum to 0, 1, ..., n(n+1)/2), both signs as likely.

    Adding rank r to the sum of the smaller ranks happens with probability 1/2.
    """
    law = np.zeros(n * (n + 1) // 2 + 1)
    law[0] = 1.0
    for rank in range(1, n + 1):
        law[rank:] = (law[rank:] + law[:-rank]) / 2
        law[:rank] /= 2
    return law


def minimum_detectable(values: Sequence[float]) -> float | None:
    """Return the smallest relative change these log-ratios would show in 80 % of sessions.

    None below 3 blocks.
    """
    if len(values) < MIN_BLOCKS_INTERVAL:
        return None
    return detectable_change(float(np.std(values, ddof=1)), len(values))


def detectable_change(spread: float, n: int) -> float:
    """Return the same for a known standard deviation of n log-ratios.

    (t_0.975 + t_0.80) times the standard error, and more where the interval is the signed-rank one.
    """
    reach = student_t_quantile((1 + CONFIDENCE) / 2, n - 1) + student_t_quantile(POWER, n - 1)
    if n >= MIN_BLOCKS_VERDICT:
        reach *= SIGNED_RANK_REACH.get(n, MANY_BLOCKS_REACH)
    return math.expm1(reach * spread / math.sqrt(n))


def coefficient_of_variation(values: Sequence[float]) -> float | None:
    """Return standard deviation over mean; None below two values, or where the mean is no size."""
    if len(values) < 2 or not np.mean(values) > 0:
        return None
    return float(np.std(values, ddof=1) / np.mean(values))


def drift(rates: Mapping[int, float | None]) -> float | None:
    """Return the relative change from the first block to the last, e.g. -0.04; None below two."""
    known = [value for _, value in sorted(rates.items()) if _is_rate(value)]
    if len(known) < 2:
        return None
    return known[-1] / known[0] - 1


@cache
def student_t_quantile(p: float, degrees: int) -> float:
    """Return the t below which a share p lies, for p from 0.5 to 1 (1 excluded), by bisection."""
    low, high = 0.0, 1.0
    while student_t_cdf(high, degrees) < p:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if student_t_cdf(middle, degrees) < p else (low, middle)
    return high


def student_t_cdf(t: float, degrees: int) -> float:
    """Return P(T <= t) for whole degrees of freedom (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(degrees))
    cosine_squared = math.cos(angle) ** 2
    is_odd = degrees % 2
    term = math.cos(angle) if is_odd else 1.0
    total = 0.0
    for step in range(1 + is_odd, degrees, 2):
        total += term
        term *= cosine_squared * step / (step + 1)
    series = math.sin(angle) * total
    share = (2 / math.pi) * (angle + series) if is_odd else series
    return 0.5 + share / 2


def _signed_rank(values: Sequence[float]) -> Interval:
    """Return the Hodges-Lehmann estimate and the exact interval, ends among the Walsh averages."""
    points = np.asarray(values, dtype=np.float64)
    left, right = np.triu_indices(len(points))
    walsh = np.sort((points[left] + points[right]) / 2)
    cut = _lower_cut(len(points))
    return Interval(
        float(np.median(walsh)), float(walsh[cut]), float(walsh[-1 - cut]), "signed-rank"
    )


@cache
def _lower_cut(n: int) -> int:
    """Return the largest rank sum k with P(sum <= k) <= 2.5 %: k averages lie below the low end."""
    below = np.cumsum(signed_rank_law(n))
    return int(np.searchsorted(below, (1 - CONFIDENCE) / 2, side="right")) - 1


def _standard_error(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1) / math.sqrt(len(values)))
