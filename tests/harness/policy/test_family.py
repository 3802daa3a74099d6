"""ha-10: over a whole gate an unchanged build is rarely a regression, and a real drop is seen."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.calibration.gate_power import Setting, simulate
from harness.policy.family import Effect, Gains, is_noisy, judge, mean_of

LIMIT = math.log1p(-0.03)


def cells(rows: object) -> list[Gains]:
    return [
        Gains(values=tuple(map(float, row)), limit=LIMIT, is_better_high=True)
        for row in np.asarray(rows)
    ]


def only(values: list[float], **changes: object) -> Effect:
    gains = Gains(values=tuple(values), limit=LIMIT, is_better_high=True)
    (effect,) = judge({"tok_s": [gains]}, 0.05)["tok_s"]
    return effect


def test_an_unchanged_build_of_24_cells_with_6_percent_noise_rarely_fails() -> None:
    seen = simulate(Setting(cells=24, noise=0.06, drop=0.0), runs=200, seed=1)
    assert seen.any_failed <= 0.05


def test_a_drop_of_30_percent_in_one_of_24_cells_is_caught() -> None:
    seen = simulate(Setting(cells=24, noise=0.06, drop=0.30), runs=60, seed=2)
    assert seen.caught >= 0.95


def test_noise_between_machines_does_not_matter_since_both_sides_run_on_one() -> None:
    here = simulate(Setting(cells=6, noise=0.06, drop=0.30, machine=0.0), runs=20, seed=3)
    there = simulate(Setting(cells=6, noise=0.06, drop=0.30, machine=0.13), runs=20, seed=3)
    assert here == there


def test_what_a_process_adds_throughout_is_met_by_delta_while_it_is_small() -> None:
    """No shuffling tells it from a change of the code: docs/gating.md says where that ends."""
    small = Setting(cells=6, noise=0.02, metrics=1, process=0.005)
    assert simulate(small, runs=60, seed=4).any_failed <= 0.05
    large = Setting(cells=6, noise=0.02, metrics=1, process=0.05)
    assert simulate(large, runs=60, seed=4).any_failed > 0.05


def test_a_small_change_that_all_cells_share_is_seen_in_their_mean() -> None:
    rng = np.random.default_rng(4)
    shared = rng.normal(math.log(0.93), 0.05, size=(12, 7))
    effects = judge({"tok_s": cells(shared)}, 0.05)["tok_s"]
    assert len(effects) == 13
    assert effects[-1].status == "fail"
    assert effects[-1].ratio == pytest.approx(0.93, abs=0.03)


def test_metrics_that_are_noisy_do_not_hide_those_that_are_not() -> None:
    rng = np.random.default_rng(5)
    quiet, noisy = rng.normal(0, 0.01, size=(3, 7)), rng.normal(0, 0.4, size=(12, 7))
    quiet[0] -= 0.08
    effects = judge({"ttft_ms": cells(noisy), "tok_s": cells(quiet)}, 0.05)
    assert effects["tok_s"][0].status == "fail"
    assert all(effect.status != "fail" for effect in effects["ttft_ms"])


def test_one_cell_is_judged_by_all_arrangements_of_its_blocks() -> None:
    effect = only([-0.08, -0.07, -0.09, -0.08, -0.075, -0.085, -0.08])
    assert effect.status == "fail"
    assert effect.p == pytest.approx(1 / 128, abs=0.003)


def test_metrics_of_the_same_trials_change_places_together() -> None:
    """What two metrics show alike is one piece of evidence, neither two chances nor two doubts."""
    rows = np.random.default_rng(8).normal(-0.02, 0.05, size=(6, 7))
    gains = [
        replace(cell, trials=tuple((place, block) for block in range(7)))
        for place, cell in enumerate(cells(rows))
    ]
    alone = judge({"tok_s": gains}, 0.05)["tok_s"]
    twice = judge({"tok_s": gains, "ttft_ms": gains}, 0.05)
    for effects in twice.values():
        assert [effect.p for effect in effects] == [effect.p for effect in alone]


def test_an_outlier_makes_no_drop_and_hides_little_of_one() -> None:
    rng = np.random.default_rng(6)
    rows = rng.normal(0, 0.02, size=(8, 7))
    rows[0] -= 0.3
    rows[0, 3] += 0.25
    rows[1, 2] -= 2.0
    effects = judge({"tok_s": cells(rows)}, 0.05)["tok_s"]
    assert effects[1].status != "fail"
    assert effects[0].status == "fail"


def test_values_that_never_vary_are_compared_as_they_are() -> None:
    rows = np.zeros((5, 7))
    rows[2] = -0.1
    effects = judge({"memory_bytes": cells(rows)}, 0.05)["memory_bytes"]
    assert [effect.status for effect in effects[:5]] == ["pass", "pass", "fail", "pass", "pass"]


@pytest.mark.parametrize(
    ("values", "status", "reason"),
    [
        pytest.param([-0.2] * 5, "inconclusive", "needs 6 blocks", id="too few blocks"),
        pytest.param([-0.01, 0.0, 0.01, 0.0, -0.01, 0.01, 0.0], "pass", "", id="as it was"),
        pytest.param([0.3, -0.3, 0.2, -0.2, 0.1, -0.1, 0.0], "inconclusive", "noisy", id="noisy"),
        pytest.param([0.1, 0.4, 0.2, 0.5, 0.3, 0.05, 0.1], "inconclusive", "varies", id="uneven"),
        pytest.param([-0.025, -0.02, -0.02, -0.02, -0.02, -0.025, -0.02], "pass", "", id="allowed"),
    ],
)
def test_what_one_comparison_says(values: list[float], status: str, reason: str) -> None:
    effect = only(values)
    assert effect.status == status
    assert reason in effect.reason


def test_ratios_are_told_as_head_over_base_in_both_directions() -> None:
    slower = (-0.1, -0.11, -0.09, -0.1, -0.1, -0.105, -0.095)
    high = Gains(values=slower, limit=LIMIT, is_better_high=True)
    low = Gains(values=slower, limit=-math.log1p(0.05), is_better_high=False)
    speed, delay = judge({"tok_s": [high], "ttft_ms": [low]}, 0.05).values()
    assert speed[0].ratio < 1 < delay[0].ratio
    for effect in (*speed, *delay):
        assert effect.low is not None
        assert effect.high is not None
        assert effect.low <= effect.ratio <= effect.high
    assert speed[0].limit == pytest.approx(0.97)
    assert delay[0].limit == pytest.approx(1.05)


@given(st.lists(st.lists(st.floats(-1, 1), min_size=7, max_size=7), min_size=1, max_size=4))
def test_any_gains_give_finite_figures_and_a_p_between_0_and_1(rows: list[list[float]]) -> None:
    for effect in judge({"tok_s": cells(rows)}, 0.05)["tok_s"]:
        assert 0 < effect.p <= 1
        assert math.isfinite(effect.ratio)


def test_the_same_rows_give_the_same_verdict() -> None:
    rows = np.random.default_rng(7).normal(0, 0.05, size=(6, 7))
    assert judge({"tok_s": cells(rows)}, 0.05) == judge({"tok_s": cells(rows)}, 0.05)


def test_the_mean_needs_two_cells_and_takes_the_blocks_that_all_have() -> None:
    one, other = cells([[0.1] * 7, [0.3] * 7])
    assert mean_of([one]) == ()
    short = Gains(values=other.values[:6], limit=LIMIT, is_better_high=True)
    (mean,) = mean_of([one, short])
    assert mean.values == pytest.approx([0.2] * 6)


def test_a_baseline_is_noisy_when_it_differs_from_its_repeat_by_more_than_chance() -> None:
    steady = [0.05, 0.051, 0.049, 0.05, 0.052, 0.048, 0.05]
    assert is_noisy(steady, error=0.01, tolerance=0.03)
    assert not is_noisy([value - 0.05 for value in steady], error=0.01, tolerance=0.03)
    assert not is_noisy(steady[:5], error=0.01, tolerance=0.03)
