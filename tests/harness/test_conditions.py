"""When a machine is too busy, full or hot for a timing verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.conditions import GIB, preflight, sample
from harness.machine import read_machine
from harness.store.rows import ConditionRow

MACHINE = replace(read_machine(), usable_cores=4)
QUIET = ConditionRow(
    run_id="r",
    sampled_at="2026-01-01T00:00:00Z",
    phase="preflight",
    load_1m=0.3,
    memory_available_bytes=8 * GIB,
    swap_used_bytes=0,
    temperature_c=50.0,
    on_battery=False,
)


def test_a_quiet_machine_gives_no_reason() -> None:
    assert preflight(MACHINE, QUIET) == ()


def test_what_a_system_does_not_tell_gives_no_reason() -> None:
    unknown = ConditionRow(run_id="r", sampled_at="", phase="preflight")

    assert preflight(MACHINE, unknown) == ()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"load_1m": 2.1}, "load is 2.1 on 4 cores, above 2.0; stop other programs"),
        ({"memory_available_bytes": GIB}, "1.0 GiB of memory is free; 2 GiB is the least"),
        ({"swap_used_bytes": 3 * GIB}, "3.0 GiB of swap is in use; free memory first"),
        ({"temperature_c": 96.0}, "a sensor reads 96 C; let the machine cool down"),
        ({"on_battery": True}, "the machine runs on battery; plug it in"),
    ],
    ids=["load", "memory", "swap", "heat", "power"],
)
def test_each_condition_is_one_line_with_its_value(change: dict[str, Any], expected: str) -> None:
    assert preflight(MACHINE, replace(QUIET, **change)) == (expected,)


def test_a_sample_of_this_machine_fits_the_store() -> None:
    row = sample("run", "trial", "trial-1")

    assert (row.run_id, row.phase, row.trial_id) == ("run", "trial", "trial-1")
    assert row.memory_available_bytes is not None
    assert row.process_rss_bytes is not None
    assert row.process_rss_bytes > 2**20
