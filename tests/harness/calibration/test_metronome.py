"""The metronome keeps its pace, and a run on it goes the way of every run."""

from __future__ import annotations

import pytest

from engine.errors import SettingError
from engine.request import Request
from harness.calibration.metronome import Metronome, MetronomeTarget, Pace, VirtualClock
from harness.calibration.rehearsal import rehearse
from harness.planning.choices import Choices
from harness.report import RunReport
from harness.report.figures import CellFigures
from harness.trials.drive import drive
from harness.trials.target import ignore_tokens

GATE = Choices(cells=("spec",), workloads=("short-chat",), preset="gate")


def figures(report: RunReport, cell: str) -> CellFigures:
    (found,) = [item for item in report.cells if item.place.cell == cell]
    return found


def test_a_run_on_a_metronome_finds_the_difference_that_is_there() -> None:
    plain, drafting = Pace(step_s=0.020, noise=0.01), Pace(step_s=0.018, noise=0.01)
    target = MetronomeTarget({"serial": plain, "serial+spec": drafting}, seed=1)
    report = rehearse(GATE, target)
    assert {gate.status for gate in report.gates} == {"pass"}
    ratio = figures(report, "serial+spec").main.ratio  # type: ignore[union-attr]  # it has one
    assert ratio.verdict == "faster"
    assert ratio.low is not None
    assert ratio.high is not None
    assert ratio.low < 0.020 / 0.018 < ratio.high


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("rows", [1, 3])
def test_without_noise_every_figure_is_what_was_set(width: int, rows: int) -> None:
    clock = VirtualClock()
    pace = Pace(step_s=0.0005, ttft_s=0.030, tokens_per_step=width)
    engine = Metronome(pace, clock, lambda request: "x" * request.max_tokens, max_rows=rows)
    requests = [Request(prompt_ids=(1,), max_tokens=1 + 4 * width) for _ in range(2 * rows)]
    done = drive(engine, requests, rows, clock, ignore_tokens)
    assert len(done.served) == len(requests)
    for served in done.served:
        times = served.times
        assert times.since_submission(times.first_token_s) == pytest.approx(0.030)
        assert len(served.completion.token_ids) == 1 + 4 * width
    assert done.tally.full_tokens / done.tally.full_s == pytest.approx(rows * pace.tok_s)
    assert done.wall_s == pytest.approx(2 * (0.030 + 4 * 0.0005))


def test_a_reply_that_ends_by_itself_takes_a_step_for_its_end() -> None:
    clock = VirtualClock()
    engine = Metronome(Pace(step_s=1.0, ttft_s=5.0), clock, lambda _request: "abc")
    done = drive(engine, [Request(prompt_ids=(1,), max_tokens=9)], 1, clock, ignore_tokens)
    (served,) = done.served
    assert served.completion.text == "abc"
    assert served.completion.finish_reason == "stop"
    assert served.times.last_token_s == 7.0
    assert served.times.ended_s == 8.0


def test_an_empty_reply_ends_with_its_prefill() -> None:
    clock = VirtualClock()
    engine = Metronome(Pace(), clock, lambda _request: "")
    done = drive(engine, [Request(prompt_ids=(1,), max_tokens=9)], 1, clock, ignore_tokens)
    (served,) = done.served
    assert served.completion.token_ids == ()
    assert served.times.first_token_s is None


def test_every_core_cell_has_right_figures_and_green_gates() -> None:
    choices = Choices(workloads=("json-extract",), preset="smoke", max_tokens=2000)
    cells = ("serial", "batch4", "serial+grammar", "batch4+grammar")
    spec = ("serial+spec", "batch4+spec", "serial+spec+grammar", "batch4+spec+grammar")
    speeds = {name: Pace(step_s=0.01, mask_s=0.001) for name in cells}
    speeds |= {name: Pace(step_s=0.01, tokens_per_step=2, drafted_per_step=3) for name in spec}
    report = rehearse(choices, MetronomeTarget(speeds))
    assert {gate.status for gate in report.gates} == {"pass"}, report.gates
    for cell in report.cells:
        rows = cell.cell.max_rows
        tokens = 2 if "spec" in cell.place.cell else 1
        assert cell.speed.aggregate == pytest.approx(rows * tokens / 0.01, rel=0.01)
    assert figures(report, "serial+spec").acceptance.rate == pytest.approx(1 / 3)  # type: ignore[union-attr]  # it has one
    grammar = figures(report, "serial+grammar").grammar
    assert grammar is not None
    assert grammar.mask_us_per_token == pytest.approx(1000)
    assert grammar.overhead_pct == pytest.approx(100 / 9)


def test_the_same_seed_gives_the_same_figures() -> None:
    def ratio(seed: int) -> float | None:
        pace = Pace(noise=0.05, step_noise=0.1, outlier_rate=0.1, drift_per_trial=0.001)
        speeds = {"serial": pace, "serial+spec": pace}
        found = figures(rehearse(GATE, MetronomeTarget(speeds, seed)), "serial+spec").main
        return None if found is None else found.ratio.estimate

    assert ratio(1) == ratio(1) != ratio(2)


def test_a_cell_without_a_pace_is_named() -> None:
    target = MetronomeTarget({"serial": Pace()})
    report = rehearse(GATE, target)
    assert any("'serial+spec' has no pace" in item.what for item in report.failures)
    with pytest.raises(SettingError, match="step_s is -1"):
        Pace(step_s=-1)
