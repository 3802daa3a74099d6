"""The statistics agree with scipy, keep their promises, and never give a NaN."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from harness import stats

FINITE = st.floats(min_value=-1e6, max_value=1e6)
LOG_RATIOS = st.floats(min_value=-0.5, max_value=0.5)

PERCENTILES = [
    ([1.0], 99, 1.0),
    ([1.0, 2.0], 50, 1.0),
    ([10, 20, 30], 99, 30),
    ([10, 20, 30], 50, 20),
    ([5, 5, 5, 5, 5], 95, 5),
    (list(range(1, 21)), 95, 19),
    (list(range(1, 101)), 95, 95),
    (list(range(1, 101)), 99, 99),
    (list(range(1, 101)), 90, 90),
    ([3, 1, 2], 0, 1),
    ([3, 1, 2], 100, 3),
]


@pytest.mark.parametrize(("values", "p", "expected"), PERCENTILES)
def test_a_percentile_is_the_nearest_rank(
    values: Sequence[float], p: float, expected: float
) -> None:
    assert stats.percentile(values, p) == expected


def test_a_percentile_of_nothing_is_none() -> None:
    assert stats.percentile([], 50) is None


@pytest.mark.parametrize("bad", [None, math.nan, math.inf])
def test_a_percentile_refuses_what_is_no_number(bad: float | None) -> None:
    values: list[float] = [1.0, bad, 2.0]  # type: ignore[list-item]  # what is refused
    with pytest.raises(stats.StatsError):
        stats.percentile(values, 50)
    assert stats.finite(values) == stats.Kept((1.0, 2.0), 1)


@pytest.mark.parametrize("p", [-1, 101])
def test_a_percentile_outside_0_to_100_is_refused(p: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 100"):
        stats.percentile([1.0], p)


@given(st.lists(FINITE, min_size=1), st.floats(0, 100), st.floats(0, 100))
def test_percentiles_are_values_and_monotone(values: list[float], p: float, q: float) -> None:
    low, high = stats.percentile(values, min(p, q)), stats.percentile(values, max(p, q))
    assert low is not None
    assert high is not None
    assert low in values
    assert low <= high
    assert stats.percentile(values, 0) == min(values)
    assert stats.percentile(values, 100) == max(values)


@given(st.lists(FINITE, min_size=1), st.floats(0, 100))
def test_percentiles_agree_with_numpy(values: list[float], p: float) -> None:
    expected = np.percentile(values, p, method="inverted_cdf")
    rank = p * len(values) / 100
    if abs(rank - round(rank)) > 1e-9:
        assert stats.percentile(values, p) == expected


@pytest.mark.parametrize(
    ("n", "shown"), [(0, "hidden"), (19, "hidden"), (20, "flagged"), (58, "flagged"), (59, "shown")]
)
def test_a_95th_percentile_is_hidden_flagged_or_shown_by_its_number(n: int, shown: str) -> None:
    assert stats.tail(n) == shown


def test_from_59_values_on_the_largest_bounds_the_95th_percentile() -> None:
    assert 0.95**59 < 0.05 < 0.95**58


@pytest.mark.parametrize(
    ("tokens", "first_s", "last_s", "expected"),
    [
        pytest.param(120, 0.050, 1.240, 100.0, id="ids are counted, not re-tokenised text"),
        pytest.param(2, 0.050, 0.060, 100.0, id="two tokens, not the budget"),
        pytest.param(11, 0.040, 0.140, 100.0, id="eleven tokens"),
        pytest.param(0, None, None, None, id="empty reply"),
        pytest.param(1, 0.040, 0.040, None, id="one token"),
        pytest.param(5, 0.040, 0.040, None, id="no time passed"),
        pytest.param(None, 0.1, 0.2, None, id="count unknown"),
        pytest.param(5, 0.2, 0.1, None, id="clock went back"),
    ],
)
def test_the_rate_of_one_stream_leaves_the_first_token_out(
    tokens: int | None, first_s: float | None, last_s: float | None, expected: float | None
) -> None:
    found = stats.per_stream_rate(tokens, first_s, last_s)
    assert found == (None if expected is None else pytest.approx(expected))


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf, None])
def test_a_rate_without_a_duration_is_none(seconds: float | None) -> None:
    assert stats.rate(10, seconds) is None


def test_log_ratios_pair_the_blocks_that_both_have() -> None:
    ours = {0: 20.0, 1: 30.0, 2: None, 3: 10.0}
    theirs = {0: 10.0, 1: 30.0, 2: 10.0, 4: 5.0}
    assert stats.log_ratios(ours, theirs) == (math.log(2), 0.0)


@pytest.mark.parametrize("n", range(6, 16))
def test_the_interval_is_what_the_exact_signed_rank_test_does_not_reject(n: int) -> None:
    values = np.random.default_rng(n).normal(0.05, 0.1, n)
    interval = stats.estimate(values)
    assert interval.low is not None
    assert interval.high is not None
    for end, inward in ((interval.low, 1e-9), (interval.high, -1e-9)):
        inside = scipy_stats.wilcoxon(values - (end + inward), method="exact").pvalue
        outside = scipy_stats.wilcoxon(values - (end - inward), method="exact").pvalue
        assert inside > 0.05 >= outside


def test_six_blocks_reach_95_percent_and_five_do_not() -> None:
    assert 2 * stats.signed_rank_law(6)[0] == pytest.approx(2 / 64)
    assert 2 * stats.signed_rank_law(5)[0] > 0.05


@given(st.integers(1, 40))
def test_the_signed_rank_law_is_a_symmetric_law(n: int) -> None:
    law = stats.signed_rank_law(n)
    assert law.sum() == pytest.approx(1)
    np.testing.assert_allclose(law, law[::-1])


@pytest.mark.parametrize("n", [3, 4, 5])
def test_few_blocks_get_the_t_interval(n: int) -> None:
    values = np.random.default_rng(n).normal(0.05, 0.1, n)
    interval = stats.estimate(values)
    expected = scipy_stats.t.interval(0.95, n - 1, np.mean(values), scipy_stats.sem(values))
    assert (interval.low, interval.high) == pytest.approx(expected)


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 5, 6, 9, 10, 29, 30])
@pytest.mark.parametrize("p", [0.5, 0.8, 0.975, 0.999])
def test_t_quantiles_agree_with_scipy(degrees: int, p: float) -> None:
    expected = scipy_stats.t.ppf(p, degrees)
    assert stats.student_t_quantile(p, degrees) == pytest.approx(expected, abs=1e-9)


@given(st.integers(1, 40), st.floats(-30, 30))
def test_t_probabilities_agree_with_scipy(degrees: int, t: float) -> None:
    assert stats.student_t_cdf(t, degrees) == pytest.approx(scipy_stats.t.cdf(t, degrees), abs=1e-9)


@given(st.lists(LOG_RATIOS, max_size=12))
def test_a_comparison_is_finite_and_ordered(logs: list[float]) -> None:
    ratio = stats.compare(logs)
    numbers = [ratio.estimate, ratio.low, ratio.high, ratio.minimum_detectable, ratio.cv]
    assert all(number is None or math.isfinite(number) for number in numbers)
    assert (ratio.estimate is None) == (not logs)
    assert (ratio.low is None) == (ratio.high is None) == (len(logs) < 3)
    assert 0 <= ratio.wins <= ratio.n == len(logs)
    if ratio.low is not None and ratio.high is not None and ratio.estimate is not None:
        assert ratio.low <= ratio.estimate * (1 + 1e-12)
        assert ratio.estimate <= ratio.high * (1 + 1e-12)


@given(st.lists(LOG_RATIOS, min_size=3, max_size=10), st.randoms())
def test_a_comparison_does_not_depend_on_the_order_of_blocks(logs: list[float], random) -> None:  # type: ignore[no-untyped-def]  # hypothesis gives its own class
    shuffled = list(logs)
    random.shuffle(shuffled)
    one, other = stats.compare(logs), stats.compare(shuffled)
    assert one.verdict == other.verdict
    assert one.estimate == pytest.approx(other.estimate)


@given(st.lists(LOG_RATIOS, min_size=1, max_size=10))
def test_swapping_the_cells_turns_the_ratio_over(logs: list[float]) -> None:
    one, other = stats.compare(logs), stats.compare([-value for value in logs])
    assert one.estimate is not None
    assert other.estimate == pytest.approx(1 / one.estimate)


@pytest.mark.parametrize(
    ("logs", "verdict"),
    [
        pytest.param([], None, id="no block"),
        pytest.param([0.2], None, id="one block"),
        pytest.param([0.2, 0.2], None, id="two blocks"),
        pytest.param([0.20, 0.21, 0.22], "provisional", id="three blocks prove nothing"),
        pytest.param([0.20, 0.21, 0.22, 0.23, 0.24], "provisional", id="five blocks neither"),
        pytest.param([0.20, 0.21, 0.22, 0.23, 0.24, 0.25], "faster", id="all above"),
        pytest.param([-0.20, -0.21, -0.22, -0.23, -0.24, -0.25], "slower", id="all below"),
        pytest.param([0.001, -0.001, 0.002, -0.002, 0.003, 0.0], "same", id="inside tolerance"),
        pytest.param([0.010, 0.011, 0.012, 0.013, 0.014, 0.015], "same", id="real but small"),
        pytest.param([0.06, -0.05, 0.04, -0.03, 0.05, -0.06], "unclear", id="both sides"),
        pytest.param([0.5, -0.4, 0.3, 0.1, 0.2, 0.1], None, id="varies too much"),
    ],
)
def test_the_verdict_follows_from_the_interval(logs: list[float], verdict: str | None) -> None:
    assert stats.compare(logs).verdict == verdict


def test_a_spread_just_beyond_its_limit_is_not_told_as_the_limit() -> None:
    (reason,) = stats.compare([0.103, -0.103] * 3).refusals
    told = re.search(r"varies by ([0-9.]+) % between blocks \(over 10 %\)", reason)
    assert told is not None
    assert 10 < float(told[1]) < 12


def test_a_reason_of_the_caller_takes_the_verdict_and_leaves_the_figures() -> None:
    ratio = stats.compare([0.2, 0.21, 0.22, 0.23, 0.24, 0.25], refusals=["swap is in use"])
    assert ratio.verdict is None
    assert ratio.refusals == ("swap is in use",)
    assert ratio.estimate == pytest.approx(math.exp(0.225), rel=0.01)


def test_where_no_block_has_two_speeds_the_reason_blames_the_speeds_and_not_the_cells() -> None:
    assert stats.compare([]).refusals == ("no block has the speed of both cells",)


def test_unequal_ratios_are_counted_as_wins() -> None:
    assert stats.compare([0.1, 0.2, -0.1, 0.0]).wins == 2


def test_drift_is_the_change_from_first_to_last_block() -> None:
    assert stats.drift({0: 20.0, 1: 30.0, 2: 19.0}) == pytest.approx(-0.05)
    assert stats.drift({0: 20.0}) is None
    assert stats.drift({0: None, 1: 20.0}) is None


def test_the_interval_covers_the_truth_in_about_95_percent_of_sessions() -> None:
    rng = np.random.default_rng(1)
    for n in (3, 7):
        hits = 0
        for _ in range(400):
            interval = stats.estimate(rng.normal(0.1, 0.06, n))
            assert interval.low is not None
            assert interval.high is not None
            hits += interval.low <= 0.1 <= interval.high
        assert hits / 400 > 0.925


def test_a_change_of_the_minimum_detectable_size_is_found_in_about_80_percent() -> None:
    rng = np.random.default_rng(2)
    spread = 0.02
    effects = [stats.minimum_detectable(rng.normal(0, spread, 7)) for _ in range(200)]
    effect = math.log1p(float(np.median([item for item in effects if item is not None])))
    found = sum(
        interval.low is not None and interval.low > 0
        for interval in (stats.estimate(rng.normal(effect, spread, 7)) for _ in range(400))
    )
    assert 0.65 < found / 400 < 0.95


def test_an_unchanged_cell_rarely_looks_slower_and_a_lost_third_is_always_seen() -> None:
    rng = np.random.default_rng(3)
    limit = math.log1p(-stats.TOLERANCE)
    quiet = [stats.estimate(_noisy_block_ratios(rng, 1.0)).high for _ in range(2000)]
    dropped = [stats.estimate(_noisy_block_ratios(rng, 0.7)).high for _ in range(200)]
    assert sum(high is not None and high < limit for high in quiet) / 2000 < 0.01
    assert sum(high is not None and high < limit for high in dropped) / 200 >= 0.95


def _noisy_block_ratios(rng: np.random.Generator, speed: float) -> list[float]:
    """Ratios of seven blocks under 6 % noise; what differs between machines cancels in a block."""
    machine = 1 + rng.uniform(-0.13, 0.13)
    return [
        math.log(machine * speed * rng.lognormal(0, 0.06) / (machine * rng.lognormal(0, 0.06)))
        for _ in range(7)
    ]
