"""A run is quotable when its machine was clean throughout; lasting trouble refuses verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from harness.conditions.verdict import blemishes, machine_refusals, preflight_reasons
from harness.store.rows import ConditionRow, RunRow

RUN = RunRow(
    run_id="r", created_at="", tag="", command="", preset="gate", seed=0, blocks=7, prompts=4
)
BUSY = {"others_cores": 1.5, "heaviest": ({"pid": 3, "name": "make", "cores": 1.5},)}


def row(phase: str = "running", **changes: Any) -> ConditionRow:
    clean = ConditionRow(
        run_id="r",
        sampled_at="",
        phase=phase,
        window_s=5.0,
        cores=4,
        others_cores=0.0,
        on_battery=False,
        frequency_mhz=3500.0,
        standing={"power_mode": "balanced", "governor": "schedutil (acpi-cpufreq)"},
    )
    return replace(clean, **changes)


def run_of(during: Sequence[ConditionRow], **before: Any) -> list[ConditionRow]:
    return [row("preflight", **before), *during, row("end")]


def test_a_run_that_was_clean_throughout_has_no_reason() -> None:
    rows = run_of([row() for _ in range(20)])

    assert machine_refusals(RUN, rows) == ()
    assert blemishes(RUN, rows) == ()


def test_a_preflight_that_was_not_clean_refuses_verdicts_and_quoting() -> None:
    rows = run_of([row() for _ in range(20)], on_battery=True)

    assert preflight_reasons(rows) == ("the machine runs on battery; plug it in",)
    assert machine_refusals(RUN, rows) == preflight_reasons(rows)
    assert preflight_reasons(rows)[0] in blemishes(RUN, rows)


def test_what_was_stored_with_the_run_is_told_once() -> None:
    rows = run_of([], on_battery=True)
    stored = ("matrix products run slowly", *preflight_reasons(rows))

    assert machine_refusals(replace(RUN, machine_refusals=stored), rows) == stored


def test_one_sample_of_many_that_was_not_clean_keeps_a_run_from_being_quoted_alone() -> None:
    rows = run_of([row() for _ in range(30)] + [row(**BUSY)])

    assert machine_refusals(RUN, rows) == ()
    assert blemishes(RUN, rows) == (
        (
            "during the run other processes use 1.5 of 4 cores (heaviest: make (pid 3) 150 % of a "
            "core; stop them) (in 1 of 32 samples)"
        ),
    )


def test_trouble_that_lasts_refuses_verdicts_however_quiet_the_start_was() -> None:
    rows = run_of([row() for _ in range(10)] + [row(**BUSY) for _ in range(5)])

    (reason,) = machine_refusals(RUN, rows)
    assert "in 5 of 16 samples, the worst of them" in reason
    assert blemishes(RUN, rows) == (reason,)


def test_what_is_asked_seldom_is_counted_among_the_samples_that_ask_it() -> None:
    silent = {"on_battery": None, "standing": {}}
    often = [row(**silent) for _ in range(90)]
    asked = [row(on_battery=number < 3) for number in range(6)]

    (reason,) = machine_refusals(RUN, run_of([*often, *asked]))
    assert reason.endswith("plug it in (in 3 of 7 samples, the worst of them)")


def test_the_worst_sample_of_a_kind_is_told() -> None:
    rows = run_of([row(stolen_share=share) for share in (0.03, 0.5, 0.04)])

    (reason,) = blemishes(RUN, rows)
    assert "gave 50 % of the processor time" in reason


def test_a_run_that_went_on_elsewhere_or_with_other_code_is_told() -> None:
    began, went_on = {"machine": "a-1", "commit": "abc"}, {"machine": "b-2", "commit": "def"}
    rows = run_of([row(standing=began), row(standing=began), row(standing=went_on)])

    reasons = blemishes(RUN, rows)
    assert "the machine changed during the run: a-1, then b-2" in reasons
    assert "fm's own code changed during the run: abc, then def" in reasons


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([{"on_battery": True}], "the power supply changed during the run: mains, then battery"),
        (
            [{"standing": {"power_mode": "performance"}}],
            "the power mode changed during the run: balanced, then performance",
        ),
        (
            [{"standing": {"governor": "performance (acpi-cpufreq)"}}],
            (
                "the CPU governor changed during the run: schedutil (acpi-cpufreq), "
                "then performance (acpi-cpufreq)"
            ),
        ),
        (
            [{"frequency_mhz": 2400.0}, {}, {}],
            "the processor's clock fell from 3500 to 2400 MHz during the run",
        ),
    ],
    ids=["supply", "mode", "governor", "clock"],
)
def test_what_changes_during_a_run_is_told(
    changes: Sequence[dict[str, Any]], expected: str
) -> None:
    rows = run_of([row(), row(), *(row(**change) for change in changes)])

    assert expected in blemishes(RUN, rows)


def test_samples_that_do_not_ask_everything_are_no_change() -> None:
    silent = {"on_battery": None, "standing": {}, "frequency_mhz": None}

    assert blemishes(RUN, run_of([row(**silent), row(), row(**silent)])) == ()


@pytest.mark.parametrize(
    ("clocks", "is_told"),
    [
        ([3500, 3400, 3450, 3300, 3500], False),
        ([3500, 3500, 3500, 2900, 3500], True),
        ([3500, 1000], False),
    ],
    ids=["steps of the turbo", "a fall", "too few to know"],
)
def test_a_clock_may_vary_a_little(clocks: Sequence[float], is_told: bool) -> None:
    silent = {"frequency_mhz": None}
    during = [row(frequency_mhz=clock) for clock in clocks]
    rows = [row("preflight", **silent), *during, row("end", **silent)]

    assert any("clock" in reason for reason in blemishes(RUN, rows)) == is_told


def gpu_row(clock_mhz: float, busy_pct: float) -> ConditionRow:
    gpu = {"clock_mhz": clock_mhz, "busy_pct": busy_pct, "slowdowns": [], "others": []}
    return row(standing={"gpu": gpu})


def test_a_gpu_that_sleeps_between_trials_has_not_been_slowed_down() -> None:
    at_work = [gpu_row(1980.0, 95.0) for _ in range(6)]

    assert blemishes(RUN, run_of([*at_work, gpu_row(345.0, 0.0)])) == ()
    fallen = blemishes(RUN, run_of([*at_work, gpu_row(1200.0, 95.0)]))
    assert fallen == ("the GPU's clock fell from 1980 to 1200 MHz during the run",)


def test_a_run_of_which_nothing_was_seen_is_not_clean() -> None:
    assert blemishes(RUN, [row("preflight")]) == ("the machine was not watched during the run",)


def test_runs_of_before_there_was_a_watch_are_judged_by_what_they_have() -> None:
    old = {"window_s": None, "cores": None, "others_cores": None, "standing": {}}
    rows = [row("preflight", **old), row("trial", **old)]

    assert blemishes(RUN, rows) == ()
    assert blemishes(RUN, []) == ()
