"""Trials in turns: a run goes on between two of them, and none is lost or counted twice."""

from __future__ import annotations

import io
import os
import signal
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from engine.errors import ModelError
from harness.calibration.rehearsal import Unseen
from harness.running.plan_rows import going_on, pending_trials
from harness.running.progress import LineProgress, Standing
from harness.running.run import SAVED_EVERY_S, RunLoop
from harness.store import ConditionRow, EvalStore, utc_now
from harness.trials.target import TrialJob
from tests.harness.running.bench import CHOICES, Bench, begin, condition, matrix_of
from tests.harness.scripted import Scripted


class KilledError(BaseException):
    """Ends the loop without any handler of it."""


@pytest.mark.parametrize("ending", [KeyboardInterrupt, KilledError])
@pytest.mark.parametrize("at_turn", [1, 5, 11, 14])
def test_a_run_goes_on_between_two_turns_of_a_trial(
    tmp_path: Path, ending: type[BaseException], at_turn: int
) -> None:
    """Every turn took longer than may be lost, so none of them is run again, however it ended."""
    whole, bench = begin(tmp_path / "whole"), begin(tmp_path)
    speeds = dict.fromkeys(("serial", "serial+spec", "batch2"), 2 * SAVED_EVERY_S + 1)
    undisturbed, first, second = (Scripted(speeds=speeds) for _ in range(3))
    whole.go(undisturbed)

    def stop(job: TrialJob) -> None:
        if len(first.turns) == at_turn:
            raise ending

    first.before = stop
    if ending is KeyboardInterrupt:
        assert bench.go(first).ending == "interrupted"
    else:
        with pytest.raises(KilledError):
            bench.go(first)
    assert bench.go(second).ending == "finished"
    assert Counter(first.turns + second.turns).most_common(1)[0][1] == 1
    assert len(first.turns + second.turns) == len(undisturbed.turns) == 15
    assert observed(bench) == observed(whole)
    assert not bench.store.turns(bench.run_id)


def observed(bench: Bench) -> tuple[object, object]:
    """What a run saw, without ids and instants."""
    places = {trial.trial_id: (trial.cell, trial.block) for trial in bench.data.trials}
    trials = [
        replace(trial, trial_id="", run_id="", started_at=None, finished_at=None)
        for trial in bench.data.trials
    ]
    requests = {
        (places[row.trial_id], row.position): replace(row, trial_id="")
        for row in bench.data.requests
    }
    return sorted(trials, key=str), requests


def is_through(target: Scripted, place: int, trial_id: str) -> bool:
    """True where the trial has no turn behind this one and was stored."""
    return trial_id in target.ran and all(name != trial_id for name, _ in target.turns[place + 1 :])


@pytest.mark.parametrize("at_turn", [1, 2, 4, 7, 14])
def test_turns_that_a_kill_took_are_run_again_and_counted_once(
    tmp_path: Path, at_turn: int
) -> None:
    bench, first, second = begin(tmp_path), Scripted(), Scripted()

    def die(job: TrialJob) -> None:
        if len(first.turns) == at_turn:
            raise KilledError

    first.before = die
    with pytest.raises(KilledError):
        bench.go(first)
    assert bench.go(second).ending == "finished"
    # What was there when a trial was stored is kept in the same breath.
    ends = [
        place for place, (trial, _) in enumerate(first.turns) if is_through(first, place, trial)
    ]
    since = first.turns[ends[-1] + 1 :] if ends else first.turns
    assert set(first.turns) & set(second.turns) == set(since)
    assert {trial.tokens for trial in bench.data.trials} == {8}
    assert Counter(row.trial_id for row in bench.data.requests).most_common()[-1][1] == 2


def test_a_trial_is_of_one_machine_and_one_code(tmp_path: Path) -> None:
    """Turns that other code ran are run again, and do not come back when that code does."""
    bench, whole = begin(tmp_path), begin(tmp_path / "whole")
    whole.go(Scripted())
    lives = [("one", 4), ("other", 2), ("one", 3)]
    for place, (code, turns) in enumerate(lives):
        target = Scripted(speeds=dict.fromkeys(("serial", "serial+spec", "batch2"), 50.0))

        def stop(_job: TrialJob, target: Scripted = target, turns: int = turns) -> None:
            if len(target.turns) == turns:
                raise KeyboardInterrupt

        target.before = stop
        before = [trial.trial_id for trial in bench.store.pending_trials(bench.run_id)]
        assert bench.go(target, whereabouts=code).ending == "interrupted"
        assert target.turns[0][1] == 0 or not place
        assert {name for name, _ in target.turns} <= set(before)
    assert bench.go(Scripted(), whereabouts="elsewhere").ending == "finished"
    assert observed(bench)[1] == observed(whole)[1]
    assert not bench.store.turns(bench.run_id)


@pytest.mark.parametrize("at_turn", [0, 1, 4, 9])
def test_progress_tells_all_of_a_run_that_was_gone_on_with_or_failed(
    tmp_path: Path, at_turn: int
) -> None:
    bench, first = begin(tmp_path), Scripted()

    def stop(_job: TrialJob) -> None:
        if len(first.turns) == at_turn:
            raise KeyboardInterrupt

    first.before = stop
    bench.go(first)

    def fail(job: TrialJob) -> None:
        if job.cell.name == "serial" and job.trial.block == 2:
            raise ModelError("weights are gone")

    told = Standings()
    stored = bench.store.load_plan(bench.run_id)
    planned = pending_trials(bench.matrix, stored, bench.models)
    loop = RunLoop(
        store=bench.store,
        target=Scripted(before=fail),
        progress=told,
        observe=condition,
    )
    loop.run(going_on(planned, bench.store.turns(bench.run_id), ""), [])
    assert told.through == sorted(told.through)
    assert told.through[-1] == pytest.approx(len(planned))
    kept = sum(len(item.told) / item.num_turns for item in going_on(planned, (), ""))
    assert told.through[0] == pytest.approx(kept)


class Standings(Unseen):
    """Remembers how far the run is said to be."""

    def __init__(self) -> None:
        self.through: list[float] = []

    def turn(self, label: str, planned_tokens: int, share: float, standing: Standing) -> None:
        self.through.append(standing.through)

    def done(self, label: str, outcome: str, seconds: float, standing: Standing) -> None:
        self.through.append(standing.through)


def test_a_trial_that_failed_in_its_second_turn_begins_anew(tmp_path: Path) -> None:
    """An interrupt keeps its first turn; that is of the first attempt alone."""
    bench = begin(tmp_path)

    def fail(job: TrialJob) -> None:
        if job.cell.name == "serial" and job.turn:
            raise ModelError("weights are gone")

    bench.go(Scripted(before=fail))
    assert not bench.store.turns(bench.run_id)
    second = Scripted()
    bench.go(second)
    failed = {trial.trial_id for trial in bench.data.trials if trial.failed_before}
    assert len(failed) == 3
    assert sorted(second.turns) == sorted((name, turn) for name in failed for turn in (0, 1))


def test_turns_are_kept_in_a_file_while_the_database_takes_nothing(tmp_path: Path) -> None:
    bench = begin(tmp_path)
    bench.store.close()
    speeds = dict.fromkeys(("serial", "serial+spec", "batch2"), 2 * SAVED_EVERY_S + 1)
    with (
        closing(sqlite3.connect(tmp_path / "fm.db", isolation_level=None)) as raw,
        EvalStore.open(tmp_path / "fm.db", lock_wait_s=0.1) as store,
    ):
        locked = Bench(store, bench.matrix, bench.models, store.resume_run(bench.run_id).run_id)

        def lock(job: TrialJob) -> None:
            if len(first.turns) == 1:
                raw.execute("BEGIN EXCLUSIVE")

        first = Scripted(speeds=speeds, before=lock)
        assert locked.go(first).ending == "spooled"
        raw.execute("ROLLBACK")
        assert len(store.spool_files(bench.run_id)) == 1
        store.resume_run(bench.run_id)
        second = Scripted(speeds=speeds)
        assert locked.go(second).ending == "finished"
        assert not set(first.turns) & set(second.turns)
        assert len(first.turns + second.turns) == 15


@pytest.mark.parametrize("at_turn", [0, 1])
def test_ctrl_c_on_a_locked_database_keeps_what_there_is_in_a_file(
    tmp_path: Path, at_turn: int
) -> None:
    bench, target = begin(tmp_path), Scripted()
    bench.store.close()

    def stop(job: TrialJob) -> None:
        if len(target.turns) == at_turn:
            raw.execute("BEGIN EXCLUSIVE")
            raise KeyboardInterrupt

    target.before = stop
    with (
        closing(sqlite3.connect(tmp_path / "fm.db", isolation_level=None)) as raw,
        EvalStore.open(tmp_path / "fm.db", lock_wait_s=0.1) as store,
    ):
        locked = Bench(store, bench.matrix, bench.models, store.resume_run(bench.run_id).run_id)
        assert locked.go(target).ending == "interrupted"
        raw.execute("ROLLBACK")
        lines = [line for path in store.spool_files() for line in path.read_text().splitlines()]
        assert len(lines) == at_turn
        store.resume_run(bench.run_id)
        assert len(store.turns(bench.run_id)) == at_turn


def test_a_trial_took_the_time_of_its_own_turns(tmp_path: Path) -> None:
    """From its first turn to its last other trials ran too; `fm plan` reckons with its own."""
    bench = begin(tmp_path)
    bench.go(Scripted(speeds={"serial": 10.0, "serial+spec": 20.0, "batch2": 40.0}))
    assert {trial.turns_s for trial in bench.data.trials} == {10.0, 20.0, 40.0}
    took = {past.cell: past.seconds for past in bench.store.past_cells(bench.run_id)}
    assert took == {"serial": 30.0, "serial+spec": 60.0, "batch2": 120.0}


@pytest.mark.parametrize("at_turn", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("ending", ["kill", "signal"])
def test_samples_of_the_machine_are_kept_with_the_turns_they_are_of(
    tmp_path: Path, ending: str, at_turn: int
) -> None:
    """A neighbour that slowed turns which are kept is not forgotten with the process."""
    bench = begin(tmp_path)
    waiting: list[ConditionRow] = []
    target = Scripted(speeds=dict.fromkeys(("serial", "serial+spec", "batch2"), 50.0))

    def sample(_job: TrialJob) -> None:
        if len(target.turns) == at_turn:
            if ending == "kill":
                raise KilledError
            os.kill(os.getpid(), signal.SIGINT)
        row = ConditionRow(run_id=bench.run_id, sampled_at=utc_now(), phase="running")
        waiting.append(replace(row, others_cores=float(len(target.turns))))

    def take() -> list[ConditionRow]:
        taken, waiting[:] = list(waiting), []
        return taken

    target.before = sample
    loop = RunLoop(
        store=bench.store,
        target=target,
        progress=LineProgress(io.StringIO()),
        observe=condition,
        clock=target.clock,
        sampled=take,
    )
    stored = bench.store.load_plan(bench.run_id)
    planned = pending_trials(bench.matrix, stored, bench.models)
    if ending == "kill":
        with pytest.raises(KilledError):
            loop.run(planned, [])
    else:
        assert loop.run(planned, []).ending == "interrupted"
    kept = [row.others_cores for row in bench.data.conditions if row.phase == "running"]
    assert sorted(kept) == list(range(at_turn))


def test_a_trial_that_caches_prefixes_runs_in_one_go() -> None:
    choices = replace(CHOICES, cells=("serial@prefix_cache_bytes=1000000", "batch2"), prompts=4)
    turns = {
        trial.pair.cell.name: (len(trial.places), len(trial.prompts), len(trial.prompts_of(0)))
        for trial in matrix_of(choices).trials()
    }
    assert turns["serial"] == (4, 4, 1)
    assert turns["batch2"] == (2, 4, 2)
    assert turns["serial@prefix_cache_bytes=1000000"] == (1, 4, 4)
