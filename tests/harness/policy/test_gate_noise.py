"""An unchanged build is never called a regression, a slower one is: runs on the metronome."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from harness import exit_codes
from harness.calibration.metronome import Pace
from tests.harness.policy.gate_runs import failed, metronome_gate


def test_an_unchanged_build_is_never_a_regression_in_20_of_20() -> None:
    verdicts = [metronome_gate(seed).exit_code for seed in range(20)]
    assert verdicts == [exit_codes.PASS] * 20


def slower_steps(pace: Pace) -> Pace:
    """Sleep for 8 % of every step."""
    return replace(pace, step_s=1.08 * pace.step_s)


def hidden_sleep(pace: Pace) -> Pace:
    """Sleep for 8 % of every step while the device computes: no token comes later."""
    return replace(pace, host_s=pace.host_s + 0.08 * pace.step_s)


def later_first_tokens(pace: Pace) -> Pace:
    return replace(pace, ttft_s=1.15 * pace.ttft_s)


def doubled_masks(pace: Pace) -> Pace:
    return replace(pace, mask_s=2 * pace.mask_s, step_s=pace.step_s + pace.mask_s)


@pytest.mark.parametrize("seed", [100, 101])
@pytest.mark.parametrize(
    ("change", "metric"),
    [
        (slower_steps, "tok_s"),
        (hidden_sleep, "host_ms"),
        (later_first_tokens, "ttft_ms"),
        (doubled_masks, "mask_us"),
    ],
)
def test_a_slower_build_is_caught(change: Callable[[Pace], Pace], metric: str, seed: int) -> None:
    judgement = metronome_gate(seed, change)
    assert ("metric", metric) in failed(judgement)
    assert judgement.exit_code == exit_codes.REGRESSION


def test_on_a_shared_runner_a_slower_build_is_told_and_fails_nothing() -> None:
    judgement = metronome_gate(100, slower_steps, policy="shared-runner")
    told = [item for item in judgement.of("metric") if item.name == "tok_s"]
    assert any(item.status == "fail" for item in told)
    assert not any(item.is_hard for item in told)
    assert judgement.exit_code == exit_codes.PASS


def test_less_work_in_a_step_is_caught_by_counts() -> None:
    judgement = metronome_gate(
        100, lambda pace: replace(pace, drafted_per_step=pace.tokens_per_step + 2)
    )
    assert ("counter", "drafted") in failed(judgement)
