"""The verdicts keep their promise on made-up machines: differences are not invented, and found."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest

from harness.calibration.disturbance import Disturbances
from harness.calibration.metronome import MetronomeTarget, Pace
from harness.calibration.rehearsal import rehearsal_matrix, rehearse
from harness.calibration.simulate import (
    BASELINE,
    CANDIDATE,
    NOMINAL,
    REPEAT,
    SCENARIOS,
    Scenario,
    Tally,
    detectable,
    invented,
    margin,
    mirrored,
    one_after_another,
    rates,
    shuffled,
    simulate,
    unluckiest,
    verdict,
)
from harness.planning.choices import Choices
from harness.stats import estimate

SESSIONS = 300
GATE, QUOTE = 7, 10
QUIET = Scenario(name="noise 1 %", noise=0.01)
USUAL = Scenario(name="noise 2 %", noise=0.02)


@cache
def at_no_effect(scenario: Scenario, blocks: int) -> Tally:
    return simulate(scenario, blocks=blocks, sessions=SESSIONS)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda item: item.name)
@pytest.mark.parametrize("blocks", [GATE, QUOTE])
def test_no_machine_makes_equal_cells_differ(scenario: Scenario, blocks: int) -> None:
    tally = at_no_effect(scenario, blocks)
    assert tally.different <= NOMINAL + margin(NOMINAL, SESSIONS)
    assert tally.covered / SESSIONS >= 1 - NOMINAL - margin(NOMINAL, SESSIONS)


@pytest.mark.parametrize("blocks", [GATE, QUOTE])
def test_a_steady_drift_alone_invents_nothing(blocks: int) -> None:
    """Case ha-08: 1 % slower every trial, and no noise that would hide it."""
    drifting = Scenario(name="drift", noise=0.001, drift=0.01 * (9 * blocks - 1), cells=9)
    assert simulate(drifting, blocks=blocks, sessions=100).different == 0


def test_no_order_is_unlucky_for_a_pair_of_cells() -> None:
    """One seed is one order in every session: with shuffles alone a drift would favour a cell."""
    drifting = Scenario(name="drift", noise=0.01, drift=0.62, cells=9)
    worst = [
        unluckiest(drifting, GATE, 20, layout, order_seed=3) for layout in (shuffled, mirrored)
    ]
    assert worst[0] > 0.5
    assert worst[1] <= NOMINAL + margin(NOMINAL, 20)


def test_cells_that_run_one_after_another_differ_by_what_the_machine_drifts() -> None:
    drifting = Scenario(name="drift", noise=0.01, drift=0.10)
    assert invented(drifting, GATE, 50, one_after_another) == 1
    assert invented(drifting, GATE, 50, mirrored) <= NOMINAL + margin(NOMINAL, 50)


@pytest.mark.parametrize(
    ("scenario", "blocks", "effect", "least"),
    [
        pytest.param(QUIET, GATE, 0.05, 0.97, id="5 % on a quiet machine, gate"),
        pytest.param(USUAL, GATE, 0.05, 0.80, id="5 % at noise 2 %, gate"),
        pytest.param(USUAL, GATE, 0.08, 0.97, id="8 % at noise 2 %, gate"),
        pytest.param(USUAL, QUOTE, 0.05, 0.97, id="5 % at noise 2 %, quote"),
    ],
)
def test_a_difference_that_is_there_is_found(
    scenario: Scenario, blocks: int, effect: float, least: float
) -> None:
    slower = simulate(scenario, blocks=blocks, sessions=SESSIONS, effect=-effect)
    faster = simulate(scenario, blocks=blocks, sessions=SESSIONS, effect=effect)
    allowance = margin(least, SESSIONS)
    assert slower.share("slower") >= least - allowance
    assert faster.share("faster") >= least - allowance
    assert slower.share("faster") == faster.share("slower") == 0


@pytest.mark.parametrize("blocks", [6, GATE, QUOTE, 14])
def test_the_detectable_change_is_found_in_four_of_five_sessions(blocks: int) -> None:
    """Printed beside every ratio, so it has to be true for the interval that is printed."""
    effect = math.log1p(detectable(0.04, blocks))
    noise = np.random.default_rng(blocks).normal(effect, 0.04 * math.sqrt(2), (1500, blocks))
    found = sum((estimate(logs).low or 0.0) > 0 for logs in noise.tolist())
    assert found / len(noise) == pytest.approx(0.8, abs=0.035)


def test_a_real_difference_is_never_called_the_same() -> None:
    for effect in (-0.05, 0.05):
        tally = simulate(QUIET, blocks=GATE, sessions=SESSIONS, effect=effect)
        assert tally.share("same") <= 0.025 + margin(0.025, SESSIONS)


def test_a_baseline_that_runs_at_two_speeds_takes_the_verdict() -> None:
    speeds = rates(QUIET, GATE, 0.3, seed=1)
    assert verdict(speeds, GATE)[0].verdict == "faster"
    speeds[REPEAT] = {block: 1.08 * (rate or 0.0) for block, rate in speeds[REPEAT].items()}
    ratio, is_noise = verdict(speeds, GATE)
    assert is_noise
    assert ratio.verdict is None
    assert "differs from its own repeat" in ratio.refusals[0]


def test_a_simulated_session_is_a_run() -> None:
    """The same disturbances through plan, run loop, database and report give the same ratio."""
    machine = Scenario(
        name="all",
        noise=0.03,
        autocorrelation=0.5,
        drift=0.2,
        outlier_rate=0.1,
        outlier_factor=1.1,
        turns=4,
    )
    pace = machine.pace(GATE)
    fast = Pace(
        step_s=pace.step_s / 1.08,
        noise=pace.noise,
        drift_per_trial=pace.drift_per_trial,
        outlier_rate=pace.outlier_rate,
        outlier_factor=pace.outlier_factor,
    )
    target = MetronomeTarget(
        {"serial": pace, "serial+spec": fast}, seed=5, autocorrelation=machine.autocorrelation
    )
    choices = Choices(cells=("spec",), workloads=("short-chat",), preset="gate", seed=3)
    report = rehearse(choices, target)
    assert report.groups[0].noise is not None
    found = {cell.place.cell: cell.main for cell in report.cells}["serial+spec"]
    assert found is not None

    order = {"serial": BASELINE, "serial@aa": REPEAT, "serial+spec": CANDIDATE}

    def as_run(_machine: Scenario, _blocks: int, _seed: str) -> Iterator[tuple[int, int]]:
        turns = [
            (trial.block, place, order[trial.pair.cell.name])
            for trial in rehearsal_matrix(choices).trials()
            for place in trial.places
        ]
        return ((block, cell) for block, _, cell in sorted(turns))

    speeds = rates(machine, GATE, 0.08, seed=5, layout=as_run)
    ratio, is_noise = verdict(speeds, GATE)
    assert (ratio.estimate, ratio.low, ratio.high) == pytest.approx(
        (found.ratio.estimate, found.ratio.low, found.ratio.high)
    )
    assert ratio.verdict == found.ratio.verdict
    assert is_noise == bool(report.refusals)


@pytest.mark.parametrize("autocorrelation", [0.0, 0.5, 0.9])
def test_the_noise_has_the_spread_and_the_memory_that_were_set(autocorrelation: float) -> None:
    machine = Disturbances(3, autocorrelation)
    pace = Pace(noise=0.05)
    logs = np.log([machine.next_factor(pace) for _ in range(20_000)])
    assert logs.std() == pytest.approx(0.05, rel=0.1)
    assert np.corrcoef(logs[1:], logs[:-1])[0, 1] == pytest.approx(autocorrelation, abs=0.03)
