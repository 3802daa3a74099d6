"""Case ha-11 with whole runs: what a locked or full database does not take is not lost."""

from __future__ import annotations

import io
import os
import signal
import sqlite3
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from harness import exit_codes
from harness.machine import whereabouts
from harness.policy.judge import judge
from harness.policy.policy_file import load_policy
from harness.recovery import differences
from harness.report import build_report
from harness.running.claim import claimed
from harness.running.session import Session, matrix_of
from harness.store import DivergenceRow, EvalStore, RunData
from harness.trials.target import Parting, TrialJob
from tests.harness.nursery import CHOICES, Life, Nursery, Varied, session

MATRIX = matrix_of(CHOICES)
NUM_TRIALS = len(MATRIX.trials())


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())


class Lock:
    """Another process's transaction, which begins with a trial of a run."""

    def __init__(self, folder: Path, statement: str, at_trial: int) -> None:
        self.folder, self.statement, self.at_trial = folder, statement, at_trial
        self.raw: sqlite3.Connection | None = None
        self.target = Varied()
        self.target.before = self.take

    def take(self, job: TrialJob) -> None:
        if len(self.target.ran) == self.at_trial:
            self.take_now()

    def take_now(self) -> None:
        if self.raw is None:
            self.raw = sqlite3.connect(
                self.folder / "fm.db", isolation_level=None, check_same_thread=False
            )
            self.raw.execute(self.statement)
            self.raw.execute("SELECT COUNT(*) FROM trials").fetchone()

    def release(self) -> None:
        assert self.raw is not None
        self.raw.close()


def stored(folder: Path) -> RunData:
    with EvalStore.open(folder / "fm.db") as store:
        assert store.integrity_problems() == ()
        return store.load_run(store.find_run("latest").run_id)


def assert_complete(data: RunData) -> None:
    assert Counter(row.status for row in data.trials) == {"done": NUM_TRIALS}
    planned = sum(len(trial.prompts) for trial in MATRIX.trials())
    assert len(data.requests) == len({(r.trial_id, r.position) for r in data.requests}) == planned
    assert data.run.status == "finished"


def test_a_reader_that_keeps_its_read_open_stops_no_run(tmp_path: Path) -> None:
    lock = Lock(tmp_path, "BEGIN", 2)
    done = session(tmp_path, lock.target, lock_wait_s=0.1).start(MATRIX)
    assert done.exit_code == exit_codes.PASS, done.notes
    assert lock.raw is not None
    (seen,) = lock.raw.execute("SELECT COUNT(*) FROM trials WHERE status = 'done'").fetchone()
    lock.release()
    assert seen == 2
    assert_complete(stored(tmp_path))


def test_a_lock_that_goes_away_in_time_is_waited_for(tmp_path: Path) -> None:
    lock = Lock(tmp_path, "BEGIN EXCLUSIVE", 3)
    take = lock.take

    def take_and_release(job: TrialJob) -> None:
        is_held = lock.raw is not None
        take(job)
        if lock.raw is not None and not is_held:
            threading.Timer(0.3, lock.release).start()

    lock.target.before = take_and_release
    done = session(tmp_path, lock.target, lock_wait_s=120).start(MATRIX)
    assert done.exit_code == exit_codes.PASS, done.notes
    assert_complete(stored(tmp_path))


def test_a_lock_that_stays_ends_the_run_and_the_sample_comes_back(tmp_path: Path) -> None:
    lock = Lock(tmp_path, "BEGIN EXCLUSIVE", 3)
    done = session(tmp_path, lock.target, lock_wait_s=0.1).start(MATRIX)
    lock.release()
    assert done.exit_code == exit_codes.INCOMPLETE
    (spool,) = (tmp_path / "spool").glob("*.jsonl")
    assert f"kept in {spool}" in done.notes[0]
    assert f"go on with: fm run --resume {done.run_id} " in done.notes[1]
    assert len(lock.target.ran) == 4
    assert sum(row.status == "done" for row in stored(tmp_path).trials) == 3
    again = Varied()
    resumed = session(tmp_path, again).resume(done.run_id)
    assert resumed.exit_code == exit_codes.PASS, resumed.notes
    # What was spooled is taken in and not measured twice.
    assert sorted(lock.target.ran + again.ran) == sorted(
        row.trial_id for row in stored(tmp_path).trials
    )
    assert not spool.exists()
    assert_complete(stored(tmp_path))


@pytest.mark.parametrize("ends_by", ["a lock", "Ctrl-C"])
def test_a_run_that_ends_while_replies_are_judged_is_incomplete_and_not_wrong(
    tmp_path: Path, ends_by: str
) -> None:
    """A reply that differs and was not judged yet says nothing against the run."""
    lock = Lock(tmp_path, "BEGIN EXCLUSIVE", NUM_TRIALS)

    class EndsJudging(Varied):
        def judge(self, parting: Parting) -> Sequence[DivergenceRow]:
            if ends_by == "a lock":
                lock.take_now()
            else:
                raise KeyboardInterrupt
            return super().judge(parting)

    done = session(tmp_path, EndsJudging(), lock_wait_s=0.1).start(MATRIX)
    expected = exit_codes.INCOMPLETE if ends_by == "a lock" else exit_codes.INTERRUPTED
    assert done.exit_code == expected, done.notes
    assert any(f"--resume {done.run_id} " in note for note in done.notes)
    if lock.raw is not None:
        lock.release()
    data = stored(tmp_path)
    assert Counter(row.status for row in data.trials) == {"done": NUM_TRIALS}
    assert not data.divergences
    if ends_by == "Ctrl-C":
        assert {gate.status for gate in build_report(data).gates} == {"pass", "incomplete"}
        assert judge(data, load_policy()).exit_code == exit_codes.INCOMPLETE
    else:
        assert done.report is not None
        assert {gate.status for gate in done.report.gates} == {"pass", "incomplete"}
    resumed = session(tmp_path, Varied()).resume("latest")
    assert resumed.exit_code == exit_codes.PASS, resumed.notes
    assert_complete(stored(tmp_path))


def test_an_interrupt_while_a_trial_is_saved_waits_until_it_is(tmp_path: Path) -> None:
    target = Varied()
    seen: list[str] = []

    class Watched(Session):
        """Sends Ctrl-C from inside the transaction that saves the third trial."""

        def _looped(self, store: EvalStore, *rest: object) -> object:  # type: ignore[override]  # watches
            def look(statement: str) -> None:
                if statement.startswith("UPDATE trials") and len(target.ran) == 3 and not seen:
                    seen.append(statement)
                    os.kill(os.getpid(), signal.SIGINT)

            store._connection._raw.set_trace_callback(look)
            return super()._looped(store, *rest)  # type: ignore[arg-type]  # as they came

    plain = session(tmp_path, target)
    watched = Watched(
        target=target, places=plain.places, progress=plain.progress, fetching=plain.fetching
    )
    done = watched.start(MATRIX)
    assert seen
    assert done.exit_code == exit_codes.INTERRUPTED
    data = stored(tmp_path)
    assert sum(row.status == "done" for row in data.trials) == 3
    assert data.run.status == "interrupted"
    assert session(tmp_path, Varied()).resume("latest").exit_code == exit_codes.PASS
    assert_complete(stored(tmp_path))


def test_a_run_belongs_to_one_process_at_a_time(tmp_path: Path, nursery: Nursery) -> None:
    lock = Lock(tmp_path, "BEGIN EXCLUSIVE", 1)
    done = session(tmp_path, lock.target, lock_wait_s=0.1).start(MATRIX)
    lock.release()
    life = Life(folder=str(tmp_path), resume=done.run_id)
    with claimed(tmp_path / "fm.db", done.run_id):
        (other,) = nursery.run(life)
        assert other.code == exit_codes.USAGE
        assert "is being run by another process" in other.out
    (free,) = nursery.run(life)
    assert free.code == exit_codes.PASS, free.out
    assert_complete(stored(tmp_path))


def test_a_claim_of_one_run_leaves_others_free(tmp_path: Path, nursery: Nursery) -> None:
    with claimed(tmp_path / "fm.db", "01OTHER"):
        (end,) = nursery.run(Life(folder=str(tmp_path)))
    assert end.code == exit_codes.PASS, end.out


def test_a_disk_that_is_full_from_the_start_refuses_the_run(
    tmp_path: Path, nursery: Nursery
) -> None:
    (end,) = nursery.run(Life(folder=str(tmp_path), file_limit=20_000))
    assert end.code == exit_codes.USAGE
    assert "fm.db" in end.out
    assert "--db" in end.out
    assert len(end.out.splitlines()) == 1


def test_a_disk_that_fills_up_ends_the_run_and_nothing_is_lost(
    tmp_path: Path, nursery: Nursery
) -> None:
    with EvalStore.open(tmp_path / "fm.db"):
        """An empty database, whose pages are no news to the disk."""
    empty = (tmp_path / "fm.db").stat().st_size
    (end,) = nursery.run(Life(folder=str(tmp_path), file_limit=empty + 150_000))
    assert end.code == exit_codes.INCOMPLETE, end.out
    assert "kept in" in end.out
    data = stored(tmp_path)
    saved = {row.trial_id for row in data.trials if row.status == "done"}
    assert 0 < len(saved) < NUM_TRIALS
    (again,) = nursery.run(Life(folder=str(tmp_path), resume=data.run.run_id))
    assert again.code == exit_codes.PASS, again.out
    # One was spooled, so it is not among those that were still to do.
    assert f"1/{NUM_TRIALS - len(saved) - 1} " in again.out
    assert_complete(stored(tmp_path))


def test_what_a_recovered_run_lacks_has_twice_or_says_otherwise_is_told(tmp_path: Path) -> None:
    session(tmp_path, Varied()).start(MATRIX)
    data = stored(tmp_path)
    assert differences(data, data) == []
    lost = replace(data, requests=data.requests[1:])
    doubled = replace(data, requests=(*data.requests, data.requests[0]))
    undone = replace(data, trials=(replace(data.trials[0], status="pending"), *data.trials[1:]))
    judged = replace(data, gates=(replace(data.gates[0], status="fail"), *data.gates[1:]))
    assert "1 replies are lost or differ" in differences(lost, data)[0]
    assert "1 replies are there twice" in differences(doubled, data)[0]
    assert "1 of 12 trials are not done" in differences(undone, data)[0]
    assert differences(judged, data) == ["the gates differ"]


def test_every_part_of_a_run_knows_on_which_machine_and_with_which_code_it_was(
    tmp_path: Path,
) -> None:
    lock = Lock(tmp_path, "BEGIN EXCLUSIVE", 1)
    done = session(tmp_path, lock.target, lock_wait_s=0.1).start(MATRIX)
    lock.release()
    session(tmp_path, Varied()).resume(done.run_id)
    parts = [row.standing for row in stored(tmp_path).conditions if row.phase == "preflight"]
    assert len(parts) == 2
    here = whereabouts("in-process")
    assert all(here.items() <= standing.items() for standing in parts)
