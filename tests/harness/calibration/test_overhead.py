"""What the harness adds is seen where it adds something, and nothing is seen where it does not.

Nothing here hangs on how fast this machine is; `scripts/calibrate` measures it in real time.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.calibration.calibrate import Calibration, main
from harness.calibration.metronome import VirtualClock
from harness.calibration.overhead import PACE, Overhead, measure_in_process, measure_over_http


@dataclass(slots=True)
class Ticking(VirtualClock):
    """A clock on which every reading takes time: a harness that is slow between two steps."""

    tick_s: float = 0.0

    def __call__(self) -> float:
        self.now_s += self.tick_s
        return self.now_s


def test_a_harness_that_takes_no_time_measures_what_was_set() -> None:
    found = measure_in_process(2, 33, clock=VirtualClock())
    assert (found.replies, found.steady) == (10, 10)
    assert found.tok_s == pytest.approx(2000)
    assert found.rate_error == pytest.approx(0, abs=1e-9)
    assert found.ttft_error_s == pytest.approx(0, abs=1e-9)
    assert found.gap_s == pytest.approx(0, abs=1e-9)
    assert found.is_small


@pytest.mark.parametrize(("tick_s", "is_small"), [(1e-6, True), (5e-6, False)])
def test_time_between_two_steps_is_in_the_rate_and_is_told(tick_s: float, is_small: bool) -> None:
    """The clock is read three times from the end of one step to the beginning of the next."""
    found = measure_in_process(2, 33, clock=Ticking(tick_s=tick_s))
    gap_s = 3 * tick_s
    assert found.gap_s is not None
    assert found.gap_s >= gap_s * (1 - 1e-6)
    assert found.rate_error == pytest.approx(-gap_s / (PACE.step_s + gap_s), rel=0.35)
    assert found.is_small is is_small


def test_over_http_a_reply_is_compared_with_what_its_server_sent() -> None:
    found = measure_over_http(1, 5)
    assert found.replies == 5
    assert found.tok_s > 0
    assert found.ttft_error_s > -1e-3
    assert found.gap_s is None


@pytest.mark.parametrize(("rate", "ttft_s"), [(0.02, 0.0), (-0.02, 0.0), (0.0, 0.002)])
def test_an_overhead_that_is_not_small_breaks_a_promise(rate: float, ttft_s: float) -> None:
    lines: list[str] = []
    calibration = Calibration(say=lines.append)
    found = Overhead(
        target="in process",
        replies=9,
        steady=9,
        tok_s=2000.0,
        rate_error=rate,
        ttft_error_s=ttft_s,
    )
    calibration.overhead(found)
    assert calibration.failures == ["overhead in process: over 1 % or 1 ms"]
    assert "9 replies, 9 of them steady" in lines[0]


def test_the_command_writes_its_counts_and_says_how_long_each_part_took(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    done = CliRunner().invoke(main, ["--only", "runs", "--runs", "2", "--json", str(path)])
    assert done.exit_code == 0, done.output
    assert "| serial+spec | +8 % |" in done.output
    found = json.loads(path.read_text(encoding="utf-8"))
    assert found["failures"] == []
    assert found["runs"]["serial+spec"]["runs"] == 2
    assert found["machine"]
