"""What the sums over the steps of a trial keep."""

from __future__ import annotations

import random

import pytest

from harness.store import TrialRow
from harness.trials.clock import StepTally
from harness.trials.record import filled_trial

TRIAL = TrialRow(
    trial_id="t", run_id="r", block=0, order_in_block=0, model="m", workload="w", cell="c"
)


def told_of(full_steps_s: list[float], drain_s: float = 0.001) -> TrialRow:
    """Return the row of a trial with these steps, and a drain of quick ones behind them."""
    tally = StepTally()
    for seconds in full_steps_s:
        tally.add(is_full=True, committed=4, seconds=seconds)
    for _ in range(len(full_steps_s)):
        tally.add(is_full=False, committed=1, seconds=drain_s)
    return filled_trial(TRIAL, (), tally, wall_s=1.0)


def test_what_disturbs_nine_steps_of_ten_leaves_the_undisturbed_step_alone() -> None:
    steps = [0.05] * 10 + [0.08] * 80 + [2.0] * 10
    random.Random(3).shuffle(steps)
    trial = told_of(steps)
    assert trial.step_p10_s == 0.05
    assert trial.aggregate_s == pytest.approx(sum(steps))


def test_a_loss_of_every_step_is_one_of_the_undisturbed_step() -> None:
    draw = random.Random(4)
    steps = [draw.lognormvariate(-3, 0.3) for _ in range(101)]
    slower = told_of([1.08 * seconds for seconds in steps])
    assert (slower.step_p10_s or 0) == pytest.approx(1.08 * (told_of(steps).step_p10_s or 0))


def test_a_trial_never_full_has_no_undisturbed_step() -> None:
    assert told_of([]).step_p10_s is None
    assert filled_trial(TRIAL, (), None, wall_s=1.0).step_p10_s is None


def test_sums_without_steps_have_no_undisturbed_step() -> None:
    sums = StepTally(full_tokens=8, full_s=0.4, steps=2, seconds=0.4)
    assert filled_trial(TRIAL, (), sums, wall_s=1.0).step_p10_s is None
