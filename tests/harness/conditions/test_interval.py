"""What lies between two readings of the machine."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.conditions.interval import row_between, with_standing
from harness.conditions.processes import ProcessTime, table_of
from harness.conditions.reading import Reading, Standing

OURS, OTHER = 10, 20


def reading(at_s: float, ours_s: float, other_s: float, **values: object) -> Reading:
    table = table_of(
        [
            ProcessTime(pid=OURS, parent=1, name="fm", used_s=ours_s),
            ProcessTime(pid=OTHER, parent=1, name="other", used_s=other_s),
        ]
    )
    return replace(
        Reading(
            at="now",
            at_s=at_s,
            cpus=4,
            table=table,
            ours=frozenset({OURS}),
            busy_s=ours_s + other_s,
            stolen_s=0.0,
            self_s=ours_s,
        ),
        **values,  # type: ignore[arg-type]  # values of any field
    )


def test_shares_are_of_the_time_between() -> None:
    first = reading(
        100.0, 50.0, 7.0, memory_wait_s=1.0, swapped_bytes=10, periods=5, throttled_periods=1
    )
    second = reading(
        104.0,
        56.0,
        9.0,
        stolen_s=1.6,
        memory_wait_s=1.2,
        swapped_bytes=14,
        periods=45,
        throttled_periods=11,
        frequency_mhz=3000.0,
        load_1m=2.5,
    )
    row = row_between(first, second)

    assert (row.window_s, row.cores, row.load_1m) == (4.0, 4, 2.5)
    assert (row.ours_cores, row.others_cores) == (1.5, 0.5)
    assert row.heaviest == ({"pid": OTHER, "name": "other", "cores": 0.5},)
    assert row.stolen_share == pytest.approx(0.1)
    assert row.memory_wait_share == pytest.approx(0.05)
    assert (row.swapped_bytes, row.throttled_share) == (4, 0.25)
    assert row.frequency_mhz == 3000.0


def test_too_short_a_time_gives_levels_and_no_shares() -> None:
    row = row_between(reading(1.0, 0.0, 0.0), reading(1.5, 0.5, 0.5, load_1m=3.0))

    assert (row.load_1m, row.cores) == (3.0, 4)
    assert (row.window_s, row.others_cores, row.heaviest) == (None, None, ())


def test_the_clock_of_a_process_with_little_to_do_says_nothing() -> None:
    second = reading(14.0, 1.0, 0.0, frequency_mhz=800.0)

    assert row_between(reading(10.0, 0.0, 0.0), second).frequency_mhz is None


def test_what_the_system_does_not_tell_stays_unknown() -> None:
    first, second = Reading(at="", at_s=0.0, cpus=2), Reading(at="", at_s=9.0, cpus=2)
    row = row_between(first, second)

    assert row.window_s == 9.0
    assert row.others_cores is None
    assert row.stolen_share is None
    assert row.throttled_share is None
    assert row.memory_wait_share is None
    assert row.swapped_bytes is None


@given(
    ours=st.floats(0, 1e6),
    other=st.floats(0, 1e6),
    busy=st.floats(0, 1e6),
    window=st.floats(1.0, 1e5),
)
def test_nobody_ever_uses_less_than_nothing(
    ours: float, other: float, busy: float, window: float
) -> None:
    """Clocks of processes and of CPUs tick apart, so differences may come out below zero."""
    second = replace(reading(window, ours, other), busy_s=busy)
    row = row_between(reading(0.0, 0.0, 0.0), second)

    assert row.others_cores is None or row.others_cores >= 0
    assert row.ours_cores is not None
    assert row.ours_cores >= 0


def test_a_count_of_all_that_holds_less_than_our_own_is_none() -> None:
    first, second = reading(0.0, 0.0, 0.0), reading(4.0, 4.0, 0.0)

    assert row_between(first, replace(second, busy_s=0.0)).others_cores is None
    assert row_between(first, replace(second, busy_s=1.9)).others_cores is None
    assert row_between(first, replace(second, busy_s=3.9)).others_cores == 0.0


def test_an_idle_machine_is_known_to_be_idle_although_its_ticks_are_coarse() -> None:
    """Two ticks of ours may be in the count of a process and not yet in that of the CPUs."""
    first, second = reading(0.0, 0.0, 0.0), reading(1.0, 0.02, 0.0)

    known = replace(second, busy_s=50.0)
    assert row_between(replace(first, busy_s=50.0), known).others_cores == 0.0
    assert row_between(replace(first, busy_s=0.0), replace(second, busy_s=0.0)).others_cores is None


def test_heat_is_counted_since_it_was_last_asked_for() -> None:
    row = row_between(reading(0.0, 0.0, 0.0), reading(5.0, 0.0, 0.0))
    before, now = Standing(heat_events=3), Standing(heat_events=7, on_battery=True)

    assert with_standing(row, now, before).heat_events == 4
    assert with_standing(row, now, before).on_battery is True
    assert with_standing(row, now, None).heat_events is None
    assert with_standing(row, now, Standing()).heat_events is None


def test_a_standing_keeps_what_is_known_alone() -> None:
    assert Standing().as_dict() == {}
    assert Standing(governor="x", governor_is_slow=True, speed_limit_pct=0).as_dict() == {
        "governor": "x",
        "governor_is_slow": True,
        "speed_limit_pct": 0,
    }
