"""A run that ends badly, at any moment, goes on with nothing lost or doubled."""

from __future__ import annotations

import random
import signal
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from harness import exit_codes
from harness.report import build_report
from harness.running.plan_rows import plan_trials
from harness.running.session import matrix_of
from harness.store import EvalStore, ModelRow, RunData, TrialRow
from tests.harness.nursery import CHOICES, COUNT, End, Life, Nursery

NUM_KILLS = 50
NUM_INTERRUPTS = 8
MAX_LIVES = 4 * NUM_KILLS


@pytest.fixture(scope="module")
def undisturbed(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> tuple[End, RunData]:
    folder = tmp_path_factory.mktemp("undisturbed")
    (counted,) = nursery.run(Life(folder=str(folder), at_event=COUNT))
    (timed,) = nursery.run(Life(folder=str(folder)))
    assert (counted.code, timed.code) == (exit_codes.PASS, exit_codes.PASS), timed.out
    assert counted.events > 1000
    return replace(counted, seconds=timed.seconds), loaded(folder)[0]


def loaded(folder: Path, is_finished: bool = True) -> list[RunData]:
    """The runs of a database that are finished, or that are not; the database is sound."""
    if not (folder / "fm.db").exists():
        return []
    with EvalStore.open(folder / "fm.db") as store:
        assert store.integrity_problems() == ()
        return [
            store.load_run(run.run_id)
            for run in store.list_runs(1000)
            if (run.status == "finished") == is_finished
        ]


def seen(data: RunData) -> Any:
    """All that a run observed, without its ids and instants."""
    trials = {row.trial_id: (row.model, row.workload, row.cell, row.block) for row in data.trials}
    bare = {"trial_id": "", "run_id": ""}
    instants = dict.fromkeys(("started_at", "finished_at", "turns_s"))
    return (
        sorted((trials[row.trial_id], replace(row, **bare, **instants)) for row in data.trials),
        Counter((trials[row.trial_id], str(replace(row, trial_id=""))) for row in data.requests),
        Counter((trials[row.trial_id], str(replace(row, trial_id=""))) for row in data.divergences),
        Counter((trials[row.trial_id], str(replace(row, trial_id=""))) for row in data.laws),
        [replace(gate, run_id="") for gate in data.gates],
        data.figures,
        [replace(row, trial_id="") for row in data.blocks],
        data.totals,
    )


def ratios(data: RunData) -> list[tuple[object, ...]]:
    """What the run says of each cell; verdicts depend on the machine, estimates do not."""
    return [
        (cell.place, against.baseline, against.ratio.estimate, against.ratio.low)
        for cell in build_report(data).cells
        for against in cell.ratios
    ]


def assert_nothing_is_half_done(data: RunData) -> None:
    planned = {row.trial_id: row for row in data.trials}
    counts = Counter(row.trial_id for row in data.requests)
    for trial in planned.values():
        wanted = counts[trial.trial_id]
        assert (wanted >= 2) if trial.status == "done" else (wanted == 0)
    ran = {row.trial_id for row in data.trials if row.status != "skipped"}
    assert len(ran) == len(planned_rows(data))


def planned_rows(data: RunData) -> list[TrialRow]:
    matrix = matrix_of(CHOICES)
    models = {name: ModelRow(name=name) for name in CHOICES.models}
    return [item.row for item in plan_trials(matrix, data.run.run_id, models)]


def disturbed(life: Life, number: int, whole: End, num_done: int, draw: random.Random) -> Life:
    """A life that ends by the clock, at any place of the program, or in one of its trials."""
    if number % 4 == 0:
        return replace(life, after_s=draw.uniform(0.001, whole.seconds))
    if number % 4 == 1:
        return replace(life, at_event=draw.randint(1, whole.events))
    lengths = [end - begin for begin, end in pairwise(whole.trials)]
    return replace(
        life,
        from_trial=draw.randint(1, max(1, len(whole.trials) - num_done)),
        at_event=draw.randint(1, max(lengths)),
    )


def test_kill_9_at_50_random_points_loses_and_doubles_nothing(
    tmp_path: Path, nursery: Nursery, undisturbed: tuple[End, RunData]
) -> None:
    """Each life goes on with the run that the one before it left."""
    whole, expected = undisturbed
    draw, kills, run_id, done = random.Random(11), 0, "", set[str]()
    midway = 0
    for _ in range(MAX_LIVES):
        if kills >= NUM_KILLS and not run_id:
            break
        life = Life(folder=str(tmp_path), resume=run_id)
        if kills < NUM_KILLS:
            life = disturbed(life, kills, whole, len(done), draw)
        (end,) = nursery.run(life)
        assert end.code in (-signal.SIGKILL, exit_codes.PASS), end.out
        kills += end.code == -signal.SIGKILL
        if end.code == exit_codes.PASS:
            run_id, done = "", set()
            continue
        unfinished = loaded(tmp_path, is_finished=False)
        assert len(unfinished) <= 1
        for data in unfinished:
            assert_nothing_is_half_done(data)
            now = {row.trial_id for row in data.trials if row.status == "done"}
            assert done <= now
            run_id, done = data.run.run_id, now
            midway += 0 < len(done) < len(planned_rows(data))
        if not unfinished:
            run_id, done = "", set()
    assert kills >= NUM_KILLS
    runs = loaded(tmp_path)
    # Kills struck in the middle of runs, not only before and behind them.
    assert midway >= NUM_KILLS / 5
    assert len(runs) > 2
    for data in runs:
        assert seen(data) == seen(expected)
        assert ratios(data) == ratios(expected)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda item: item.name)
def test_an_interrupt_at_any_moment_leaves_a_run_that_goes_on(
    tmp_path: Path, nursery: Nursery, undisturbed: tuple[End, RunData], number: signal.Signals
) -> None:
    whole, expected = undisturbed
    draw, run_id, interrupted = random.Random(int(number)), "", 0
    for _ in range(MAX_LIVES):
        if interrupted >= NUM_INTERRUPTS and not run_id:
            break
        at_event = draw.randint(1, whole.events) if interrupted < NUM_INTERRUPTS else 0
        (end,) = nursery.run(
            Life(folder=str(tmp_path), resume=run_id, signal=number, at_event=at_event)
        )
        # Python itself tells of an interrupt that struck in a destructor.
        assert end.out.count("Traceback") == end.out.count("Exception ignored in")
        if end.code == exit_codes.PASS:
            run_id = ""
            continue
        # Before anything is begun, SIGTERM simply ends the process.
        assert end.code in (exit_codes.INTERRUPTED, -signal.SIGTERM), end.out
        interrupted += 1
        open_runs = [data.run for data in loaded(tmp_path, is_finished=False)]
        run_id = open_runs[0].run_id if open_runs else ""
        if "go on with" in end.out:
            assert f"--resume {run_id} " in end.out
            assert {run.status for run in open_runs} == {"interrupted"}
    runs = loaded(tmp_path)
    assert runs
    for data in runs:
        assert seen(data) == seen(expected)


def test_runs_on_one_database_at_once_do_not_disturb_each_other(
    tmp_path: Path, nursery: Nursery, undisturbed: tuple[End, RunData]
) -> None:
    ends = nursery.run(*[Life(folder=str(tmp_path))] * 3)
    assert [end.code for end in ends] == [exit_codes.PASS] * 3, ends
    runs = loaded(tmp_path)
    assert len({data.run.run_id for data in runs}) == 3
    for data in runs:
        assert seen(data) == seen(undisturbed[1])
    assert len(list((tmp_path / "reports").glob("*.md"))) == 3
