"""The watch: samples in the background, none lost, none written while something is measured."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest

from harness.conditions.findings import findings
from harness.conditions.reading import Reading, Standing, read, read_standing
from harness.conditions.watch import Watch
from harness.store.rows import ConditionRow

HANG_S = 60.0


class Machine:
    """A machine that is read on demand: each reading is one step of a script further."""

    def __init__(self, busy_cores: Callable[[int], float] = lambda _step: 0.0) -> None:
        self.steps = 0
        self.busy_s = 0.0
        self.asked = 0
        self.fails = False
        self.busy_cores = busy_cores
        self.enough = threading.Event()

    def read(self, _roots: Sequence[int]) -> Reading:
        self.steps += 1
        self.busy_s += 5.0 * self.busy_cores(self.steps)
        if self.steps >= 12:
            self.enough.set()
        if self.fails:
            raise OSError("gone")
        return Reading(at=f"step {self.steps}", at_s=5.0 * self.steps, cpus=4, busy_s=self.busy_s)

    def read_standing(self, _reading: Reading) -> Standing:
        self.asked += 1
        return Standing(on_battery=False, heat_events=10 * self.asked)

    def watch(self, **values: float) -> Watch:
        return Watch(
            interval_s=values.get("interval_s", 0.001),
            standing_interval_s=values.get("standing_interval_s", 0.0),
            read=self.read,
            read_standing=self.read_standing,
        )


def watched(machine: Machine, watch: Watch) -> list[ConditionRow]:
    """Let a watch run for some samples and return all it kept."""
    watch.start("run")
    assert machine.enough.wait(HANG_S)
    return list(watch.close())


def test_samples_are_taken_while_nobody_asks_and_every_one_is_kept() -> None:
    machine = Machine()
    rows = watched(machine, machine.watch())

    assert {row.run_id for row in rows} == {"run"}
    assert [row.phase for row in rows] == ["running"] * (len(rows) - 1) + ["end"]
    assert len({row.sampled_at for row in rows}) == len(rows) >= 11
    assert len(rows) == machine.steps - 1


def test_what_was_taken_is_not_given_twice() -> None:
    machine = Machine()
    watch = machine.watch()
    watch.start("run")
    assert machine.enough.wait(HANG_S)
    first, second = watch.take(), watch.close()

    at = [row.sampled_at for row in (*first, *second)]
    assert len(set(at)) == len(at) == machine.steps - 1


def test_a_disturbance_between_two_trials_is_seen() -> None:
    machine = Machine(lambda step: 2.0 if step == 7 else 0.0)
    rows = watched(machine, machine.watch())

    dirty = [row for row in rows if any(item.kind == "others" for item in findings(row))]
    assert [(row.sampled_at, row.others_cores) for row in dirty] == [("step 7", 2.0)]


def test_windows_follow_each_other_without_a_gap() -> None:
    machine = Machine()
    watch = machine.watch()
    watch.start("run")
    trials = [watch.after(f"trial {number}") for number in range(5)]
    assert machine.enough.wait(HANG_S)
    rows = [*trials, *watch.close()]

    assert [row.trial_id for row in trials] == [f"trial {number}" for number in range(5)]
    assert sum(row.window_s or 0.0 for row in rows) == 5.0 * (machine.steps - 1)


def test_the_preflight_lasts_a_second_and_tells_everything() -> None:
    machine = Machine(lambda _step: 1.0)
    with machine.watch() as watch:
        row = watch.preflight()

    assert row.phase == "preflight"
    assert (row.others_cores, row.on_battery) == (1.0, False)


@pytest.mark.parametrize(("lasts", "kinds"), [(2, []), (3, ["others"])])
def test_a_disturbance_counts_before_a_run_when_it_lasts_longer_than_the_first_look(
    lasts: int, kinds: list[str]
) -> None:
    machine = Machine(lambda step: 1.0 if step <= lasts else 0.0)
    with machine.watch() as watch:
        row = watch.preflight()

    assert [item.kind for item in findings(row)] == kinds
    assert row.phase == "preflight"


def test_heat_between_two_questions_is_counted() -> None:
    machine = Machine()
    rows = watched(machine, machine.watch())

    assert rows[-1].heat_events == 10
    assert sum(row.heat_events or 0 for row in rows) == 10 * (machine.asked - 1)


def test_what_is_costly_is_asked_seldom() -> None:
    machine = Machine()
    watched(machine, machine.watch(standing_interval_s=3600.0))

    assert machine.asked == 2


def test_a_machine_that_cannot_be_read_is_not_clean() -> None:
    machine = Machine()
    watch = machine.watch()
    machine.fails = True
    rows = watched(machine, watch)

    assert all("OSError: gone" in findings(row)[0].text for row in rows)
    assert findings(watch.after("trial"))


def test_a_server_that_cannot_be_told_from_others_gives_no_share_of_others() -> None:
    machine = Machine(lambda _step: 3.0)
    watch = Watch(None, read=machine.read, read_standing=machine.read_standing)

    assert watch.preflight().others_cores is None


def test_leaving_the_watch_ends_its_thread() -> None:
    machine = Machine()
    with machine.watch() as watch:
        watch.start("run")
    assert all(thread.name != "machine-watch" for thread in threading.enumerate())


def test_this_machine_can_be_read() -> None:
    reading = read()
    standing = read_standing(reading)

    assert reading.cpus >= 1
    assert reading.busy_s
    assert reading.ours_s > 0
    assert reading.memory_available_bytes
    assert reading.process_rss_bytes is not None
    assert reading.process_rss_bytes > 2**20
    assert isinstance(standing.as_dict(), dict)


def test_a_sample_of_this_machine_fits_the_store() -> None:
    with Watch() as watch:
        row = watch.preflight()

    assert row.window_s is not None
    assert row.window_s >= 1.0
    assert row.others_cores is not None
    assert len(row.heaviest) <= 3
