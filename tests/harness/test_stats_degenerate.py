"""Input that no machine should give, and some do: statistics answer None, and never NaN."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from harness import stats

NO_RATES = [0.0, -1.0, None, math.nan, math.inf, -math.inf]
ANY_RATE = st.none() | st.floats(allow_nan=True, allow_infinity=True)
BY_BLOCK = st.dictionaries(st.integers(0, 12), ANY_RATE, max_size=12)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 6, 7, 10])
@pytest.mark.parametrize("value", [0.0, 0.05, -0.05])
def test_blocks_that_are_all_alike_have_no_spread(n: int, value: float) -> None:
    ratio = stats.compare([value] * n)
    assert ratio.estimate == pytest.approx(math.exp(value))
    assert ratio.cv == (None if n < 2 else pytest.approx(0, abs=1e-12))
    assert ratio.minimum_detectable == (None if n < 3 else pytest.approx(0, abs=1e-12))
    assert ratio.low == (None if n < 3 else pytest.approx(math.exp(value)))
    assert ratio.high == ratio.low or ratio.high == pytest.approx(math.exp(value))
    if n >= 6:
        wanted = {0.0: "same", 0.05: "faster", -0.05: "slower"}
        assert ratio.verdict == wanted[value]


@pytest.mark.parametrize("bad", NO_RATES)
def test_a_rate_that_is_none_makes_no_block(bad: float | None) -> None:
    assert stats.log_ratios({0: bad, 1: 2.0}, {0: 1.0, 1: 1.0}) == (math.log(2),)
    assert stats.log_ratios({0: 1.0, 1: 2.0}, {0: bad, 1: 1.0}) == (math.log(2),)
    assert stats.drift({0: bad, 1: 20.0, 2: 30.0}) == pytest.approx(0.5)
    assert stats.drift({0: bad, 1: 20.0, 2: bad}) is None


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e6])
def test_logarithms_that_are_none_are_refused_by_name(bad: float) -> None:
    with pytest.raises(stats.StatsError, match="no log-ratios"):
        stats.compare([0.1, bad, 0.2])


@given(BY_BLOCK, BY_BLOCK)
def test_whatever_rates_come_the_comparison_is_finite(
    rates: dict[int, float | None], baseline: dict[int, float | None]
) -> None:
    ratio = stats.compare(stats.log_ratios(rates, baseline))
    numbers = [ratio.estimate, ratio.low, ratio.high, ratio.minimum_detectable, ratio.cv]
    assert all(number is None or math.isfinite(number) for number in numbers)
    drift = stats.drift(rates)
    assert drift is None or not math.isnan(drift)


@pytest.mark.parametrize("values", [[], [1.0], [0.0, 0.0], [-1.0, 1.0], [-2.0, -1.0]])
def test_a_coefficient_of_variation_needs_a_size(values: list[float]) -> None:
    assert stats.coefficient_of_variation(values) is None


@pytest.mark.parametrize("n", [6, 7])
def test_ties_and_zeros_keep_the_interval_on_the_safe_side(n: int) -> None:
    """With ties the exact law is conservative: what scipy does not reject is inside."""
    rng = np.random.default_rng(n)
    for _ in range(5):
        values = rng.integers(-2, 3, n) / 100
        interval = stats.estimate(values.tolist())
        assert interval.low is not None
        assert interval.high is not None
        assert interval.low <= interval.estimate <= interval.high
        for shift in (-0.025, -0.015, -0.005, 0.005, 0.015, 0.025):
            all_signs = scipy_stats.PermutationMethod(n_resamples=2**n)
            if scipy_stats.wilcoxon(values - shift, method=all_signs).pvalue > 0.05:
                assert interval.low - 1e-12 <= shift <= interval.high + 1e-12


@pytest.mark.parametrize("n", [7, 10])
def test_one_wild_block_moves_the_estimate_by_less_than_the_noise(n: int) -> None:
    quiet = np.linspace(-0.01, 0.01, n).tolist()
    wild = [*quiet[:-1], 3.0]
    assert abs(stats.estimate(wild).estimate) < 0.01
    assert stats.compare(wild).verdict is None, "and the spread takes the verdict"


def test_a_single_block_has_a_ratio_and_nothing_else() -> None:
    ratio = stats.compare([math.log(1.25)])
    assert (ratio.n, ratio.estimate, ratio.low, ratio.high) == (1, pytest.approx(1.25), None, None)
    assert (ratio.verdict, ratio.minimum_detectable, ratio.cv) == (None, None, None)
    assert ratio.wins == 1
