"""What `fm doctor` says of the machine's state: every line in its place, problems below it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.conditions.findings import GIB, RULES, Finding, findings
from harness.conditions.preflight import LINES, UNKNOWN, timing_lines, timing_now
from harness.doctor import Doctor
from harness.machine import GitState
from harness.store.rows import ConditionRow

LABELS = "load sharing pressure swap heat power clock products tree".split()
COMMITTED = GitState("a" * 40, is_dirty=False)
QUIET = ConditionRow(
    run_id="",
    sampled_at="",
    phase="preflight",
    window_s=1.0,
    cores=2,
    load_1m=0.5,
    others_cores=0.1,
    heaviest=({"pid": 7, "name": "sshd", "cores": 0.1},),
    stolen_share=0.001,
    throttled_share=0.0,
    memory_available_bytes=8 * GIB,
    memory_wait_share=0.0,
    swap_used_bytes=GIB,
    swapped_bytes=0,
    temperature_c=55.0,
    on_battery=False,
    standing={"power_mode": "balanced", "governor": "schedutil (acpi-cpufreq)"},
)


def test_a_quiet_machine_is_told_in_values() -> None:
    found = timing_lines(QUIET, (), COMMITTED)

    assert [(item.label, item.value) for item in found] == [
        ("load", "others use 0.10 of 2 cores, heaviest sshd (pid 7) 10 % of a core; load 0.50"),
        ("sharing", "steal 0.1 %, quota used up 0.0 %"),
        ("pressure", "8.0 GiB free, tasks waited 0.0 % of the time"),
        ("swap", "1.0 GiB used, 0.0 MiB/s in and out"),
        ("heat", "55 C"),
        ("power", "mains, balanced"),
        ("clock", "governor schedutil (acpi-cpufreq)"),
        ("products", "optimised"),
        ("tree", "clean"),
    ]
    assert Doctor((), (), found).is_clean


def test_what_a_system_does_not_tell_is_unknown_and_no_problem() -> None:
    nothing = ConditionRow(run_id="", sampled_at="", phase="preflight")
    found = timing_lines(nothing, (), GitState("", is_dirty=False))

    assert [item.value for item in found[:7]] == [UNKNOWN] * 7
    assert not any(item.problem for item in found)


GPU = {"clock_mhz": 1980.0, "temperature_c": 40.0, "busy_pct": 70.0, "slowdowns": [], "others": []}


@pytest.mark.parametrize(
    ("label", "change"),
    [
        ("load", {"others_cores": 1.5}),
        ("load", {"others_cores": None, "load_1m": 5.0}),
        ("load", {"standing": {"unread": "OSError"}}),
        ("sharing", {"stolen_share": 0.2}),
        ("sharing", {"throttled_share": 0.2}),
        ("pressure", {"memory_available_bytes": GIB}),
        ("pressure", {"memory_wait_share": 0.5}),
        ("swap", {"swapped_bytes": GIB}),
        ("heat", {"temperature_c": 99.0}),
        ("heat", {"standing": {"thermal_pressure": "heavy"}}),
        ("heat", {"standing": {"speed_limit_pct": 50}}),
        ("power", {"on_battery": True}),
        ("power", {"standing": {"power_mode": "low-power"}}),
        ("clock", {"standing": {"governor": "powersave", "governor_is_slow": True}}),
        ("gpu", {"standing": {"gpu": GPU}}),
    ],
)
def test_a_problem_stands_under_what_it_concerns(label: str, change: dict[str, Any]) -> None:
    found = timing_lines(replace(QUIET, **change), (), COMMITTED)

    assert [item.label for item in found if item.problem] == [label]
    assert not Doctor((), (), found).is_clean


def test_every_kind_of_finding_has_its_line() -> None:
    worst = replace(
        QUIET,
        others_cores=2.0,
        stolen_share=0.5,
        throttled_share=0.5,
        memory_available_bytes=0,
        memory_wait_share=0.5,
        swapped_bytes=GIB,
        temperature_c=99.0,
        heat_events=9,
        on_battery=True,
        standing={
            "thermal_pressure": "heavy",
            "speed_limit_pct": 1,
            "power_mode": "low-power",
            "governor": "powersave",
            "governor_is_slow": True,
            "gpu": {**GPU, "slowdowns": ["power brake"], "others": ["x, pid 1"]},
            "unread": "OSError",
        },
    )
    unmeasured = replace(QUIET, others_cores=None, load_1m=99.0)
    kinds = [item.kind for row in (worst, unmeasured) for item in findings(row)]
    shown = {kind for _, _, kinds_of_line in LINES for kind in kinds_of_line}

    assert len(set(kinds)) == len(RULES)
    assert {kind for kind in kinds if not kind.startswith("GPU")} == shown
    told = "; ".join(item.problem for item in timing_lines(worst, (), COMMITTED))
    missing = [item for item in findings(worst) if item.text not in told]
    assert missing == list[Finding]()


def test_a_missing_blas_and_a_changed_tree_are_problems() -> None:
    found = timing_lines(QUIET, ("products run slowly",), replace(COMMITTED, is_dirty=True))
    problems = {item.label: item.problem for item in found if item.problem}

    assert problems["products"] == "products run slowly"
    assert "commit" in problems["tree"]


def test_a_busy_machine_is_healthy_and_not_clean() -> None:
    found = timing_lines(replace(QUIET, others_cores=2.0), (), COMMITTED)
    doctor = Doctor(found[:1], (), found)

    assert not doctor.is_clean
    assert Doctor((), (), found).is_healthy
    assert Doctor((), (), found).as_dict()["clean"] is False
    assert any("could not be quoted" in line for line in doctor.lines())


def test_this_machine_is_looked_at_in_the_same_order() -> None:
    labels = [item.label for item in timing_now()]

    assert [label for label in labels if label != "gpu"] == LABELS
