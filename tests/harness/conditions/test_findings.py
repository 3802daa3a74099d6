"""When a sample's timing is worthless: the reason, its value and the remedy in one line."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.conditions.findings import GIB, MIB, findings, others_limit
from harness.store.rows import ConditionRow

QUIET = ConditionRow(
    run_id="r",
    sampled_at="2026-01-01T00:00:00Z",
    phase="preflight",
    load_1m=0.3,
    memory_available_bytes=8 * GIB,
    swap_used_bytes=0,
    temperature_c=50.0,
    on_battery=False,
    window_s=5.0,
    cores=4,
    ours_cores=1.0,
    others_cores=0.05,
    heaviest=({"pid": 9, "name": "sshd", "cores": 0.05},),
    stolen_share=0.001,
    throttled_share=0.0,
    memory_wait_share=0.0,
    swapped_bytes=0,
    heat_events=0,
    standing={"power_mode": "balanced", "governor": "schedutil", "thermal_pressure": "nominal"},
)
BUILD = ({"pid": 4711, "name": "cc1plus", "cores": 0.98}, {"pid": 5, "name": "x", "cores": 0.002})


def gpu(**values: Any) -> dict[str, Any]:
    idle = {"clock_mhz": 1980.0, "temperature_c": 40.0, "busy_pct": 0.0}
    return {"gpu": {**idle, "slowdowns": [], "others": [], **values}}


def test_a_quiet_machine_has_no_finding() -> None:
    assert findings(QUIET) == ()


@pytest.mark.parametrize("phase", ["preflight", "running", "trial", "end"])
def test_what_a_system_does_not_tell_is_no_finding(phase: str) -> None:
    assert findings(ConditionRow(run_id="r", sampled_at="", phase=phase)) == ()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            {"others_cores": 1.04, "heaviest": BUILD},
            (
                "other processes use 1.0 of 4 cores "
                "(heaviest: cc1plus (pid 4711) 98 % of a core; stop them)"
            ),
        ),
        (
            {"others_cores": 3.0, "heaviest": ()},
            "other processes use 3.0 of 4 cores (none of them can be seen from here)",
        ),
        (
            {"others_cores": None, "load_1m": 2.1},
            "load is 2.1 on 4 cores, above 2.0; stop other programs",
        ),
        (
            {"memory_available_bytes": GIB},
            "1 GiB of memory is free; 2 GiB is the least",
        ),
        (
            {"memory_wait_share": 0.04},
            "tasks waited for memory 4 % of the time; free memory",
        ),
        (
            {"standing": {"memory_free_pct": 7}},
            "7 % of the memory is free, under 10 %; free memory",
        ),
        ({"swapped_bytes": 50 * MIB}, "the machine swaps 10 MiB/s; free memory"),
        (
            {"stolen_share": 0.05},
            (
                "the hypervisor gave 5 % of the processor time to others (steal); "
                "use a machine of your own"
            ),
        ),
        (
            {"throttled_share": 0.2},
            (
                "the control group's quota was used up in 20 % of its periods; raise it, "
                "or take fewer threads"
            ),
        ),
        ({"temperature_c": 96.0}, "a sensor reads 96 C; let the machine cool down"),
        (
            {"heat_events": 3},
            "the processor was slowed down by heat 3 times; let it cool down",
        ),
        (
            {"standing": {"thermal_pressure": "heavy"}},
            "thermal pressure is heavy; let the machine cool down",
        ),
        (
            {"standing": {"speed_limit_pct": 58}},
            "the system limits the processor to 58 % of its speed; let the machine cool down",
        ),
        ({"on_battery": True}, "the machine runs on battery; plug it in"),
        (
            {"standing": {"power_mode": "low-power"}},
            "the power mode is low-power; choose another one",
        ),
        (
            {"standing": {"governor": "powersave (acpi-cpufreq)", "governor_is_slow": True}},
            (
                "the CPU governor is powersave (acpi-cpufreq), which keeps the clock low; "
                "set performance"
            ),
        ),
        ({"standing": gpu(slowdowns=["power brake"])}, "the GPU is slowed down: power brake"),
        (
            {"standing": gpu(others=["train.py, pid 12"])},
            "other processes are on the GPU: train.py, pid 12; stop them",
        ),
        (
            {"standing": gpu(busy_pct=40.0)},
            "the GPU is 40 % busy before the run; stop others",
        ),
        (
            {"standing": {"unread": "OSError: gone"}},
            "the machine could not be read (OSError: gone)",
        ),
    ],
)
def test_each_condition_is_one_line_with_its_value(change: dict[str, Any], expected: str) -> None:
    (found,) = findings(replace(QUIET, **change))

    assert found.text == expected


@pytest.mark.parametrize(
    "change",
    [
        {"others_cores": 0.24},
        {"load_1m": 30.0},
        {"swap_used_bytes": 30 * GIB},
        {"swapped_bytes": 4 * MIB},
        {"stolen_share": 0.01},
        {"temperature_c": 89.0},
        {"standing": {"power_mode": "performance"}},
        {"standing": {"speed_limit_pct": 100}},
        {"standing": {"memory_free_pct": 30}},
        {"standing": gpu(busy_pct=5.0)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_does_not_disturb_is_no_finding(change: dict[str, Any]) -> None:
    """A load average holds our own last run; a swap may hold what nobody asks for."""
    assert findings(replace(QUIET, **change)) == ()


@pytest.mark.parametrize(
    "change",
    [
        {"memory_available_bytes": GIB},
        {"others_cores": None, "load_1m": 9.0},
        {"standing": gpu(busy_pct=100.0)},
    ],
    ids=["the model's own memory", "the run's own load", "the run's own kernels"],
)
@pytest.mark.parametrize("phase", ["running", "trial", "end"])
def test_what_the_run_itself_does_is_no_finding(phase: str, change: dict[str, Any]) -> None:
    assert findings(replace(QUIET, phase=phase, **change)) == ()


@pytest.mark.parametrize(("cores", "limit"), [(1, 0.25), (2, 0.25), (5, 0.25), (64, 3.2)])
def test_larger_machines_bear_more_of_others(cores: int, limit: float) -> None:
    assert others_limit(cores) == pytest.approx(limit)


def test_several_findings_are_all_told() -> None:
    row = replace(QUIET, on_battery=True, temperature_c=99.0, stolen_share=0.3)

    assert [item.kind for item in findings(row)] == ["steal", "temperature", "battery"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"stolen_share": 0.0231}, "gave 2.31 %"),
        ({"throttled_share": 0.0112}, "in 1.12 %"),
        ({"memory_available_bytes": int(1.97 * GIB)}, "1.97 GiB"),
        ({"others_cores": None, "load_1m": 2.04}, "load is 2.04"),
    ],
)
def test_what_is_just_beyond_its_limit_is_not_told_as_the_limit(
    change: dict[str, Any], told: str
) -> None:
    (finding,) = findings(replace(QUIET, **change))
    assert told in finding.text
