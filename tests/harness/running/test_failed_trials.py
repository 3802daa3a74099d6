"""A run that goes on runs its failed trials again; that they failed is told, and counts nowhere."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from engine.errors import ModelError, SettingError
from harness import exit_codes
from harness.judging.gates import evaluate
from harness.report import to_html, to_json, to_markdown
from harness.running import session as sessions
from harness.running.conclusion import Concluded
from harness.running.session import matrix_of
from harness.store import EvalStore, RequestRow, RunData, TrialRecord, TrialRow
from harness.trials.target import OnTokens, TrialJob
from harness.workloads.workload import Prompt
from tests.harness.nursery import session
from tests.harness.running.test_session import CHOICES, Supply
from tests.harness.scripted import Scripted

MATRIX = matrix_of(CHOICES)
NUM_TRIALS = len(MATRIX.trials())
SPEC, SERIAL = "serial+spec", "serial"

Place = tuple[str, int]
"""A cell and a block, from 0."""


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    hours = iter(range(1, 24))
    monkeypatch.setattr(
        sessions, "watch_of", lambda _target: Supply(False, hour=next(hours)).watch("")
    )


def place_of(job: TrialJob) -> Place:
    return (job.cell.name, job.trial.block)


class Failing(Scripted):
    """A target some of whose trials fail; those that run are told by cell and block."""

    def __init__(self, *places: Place, why: str = "the engine is gone") -> None:
        super().__init__(before=self._fail)
        self.places, self.why = places, why
        self.tried: list[Place] = []

    def _fail(self, job: TrialJob) -> None:
        if place_of(job) not in self.tried:
            self.tried.append(place_of(job))
        if place_of(job) in self.places:
            raise ModelError(self.why)


class LosesItsServer(Failing):
    """Requests of a trial that fails are rows all the same, as over HTTP; it fails at its end."""

    def run(self, job: TrialJob, on_tokens: OnTokens) -> TrialRecord:
        lost, self.places = self.places, ()
        record = super().run(job, on_tokens)
        self.places = lost
        if place_of(job) not in lost or job.turn < job.num_turns - 1:
            return record
        rows = tuple(
            replace(row, status="error", error="gone", conformance=row.conformance and "error")
            for row in record.requests
        )
        trial = replace(job.trial, status="failed", reason="the server ended")
        return TrialRecord(trial=trial, requests=rows)


def start(folder: Path, target: Scripted) -> Concluded:
    return session(folder, target).start(MATRIX)


def resume(folder: Path, target: Scripted) -> Concluded:
    return session(folder, target).resume("latest")


def stored(folder: Path) -> RunData:
    with EvalStore.open_existing(folder / "fm.db") as store:
        assert store.integrity_problems() == ()
        return store.load_run(store.find_run("latest").run_id)


def trial(data: RunData, place: Place) -> TrialRow:
    (cell,) = [row.content_hash for row in data.cells if row.name == place[0]]
    (found,) = [row for row in data.trials if (row.cell, row.block) == (cell, place[1])]
    return found


def seen(data: RunData) -> object:
    """All that a run observed and came to, without its ids, instants and earlier attempts."""
    trials = {row.trial_id: (row.cell, row.block) for row in data.trials}
    return (
        [
            replace(
                row,
                trial_id="",
                run_id="",
                started_at=None,
                finished_at=None,
                turns_s=None,
                failed_before=(),
            )
            for row in data.trials
        ],
        Counter((trials[row.trial_id], str(replace(row, trial_id=""))) for row in data.requests),
        data.figures,
        data.totals,
        data.replies,
        [(gate.name, gate.cell, gate.status, gate.n) for gate in data.gates],
    )


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> object:
    folder = tmp_path_factory.mktemp("undisturbed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sessions, "watch_of", Supply(False).watch)
        start(folder, Scripted())
    return seen(stored(folder))


@pytest.mark.parametrize("kind", [Failing, LosesItsServer])
def test_a_failed_trial_is_run_again_and_counts_once(
    tmp_path: Path, undisturbed: object, kind: type[Failing]
) -> None:
    places = ((SERIAL, 4), (SPEC, 1))
    done = start(tmp_path, kind(*places))
    assert done.exit_code == exit_codes.INCOMPLETE
    assert any(f"go on with: fm run --resume {done.run_id} " in note for note in done.notes)
    again = Failing()
    resumed = resume(tmp_path, again)
    assert resumed.exit_code == exit_codes.PASS, resumed.notes
    # In the order of the plan.
    assert again.tried == [(SPEC, 1), (SERIAL, 4)]
    assert seen(stored(tmp_path)) == undisturbed


def test_that_a_trial_failed_before_is_told_and_the_json_keeps_its_form(tmp_path: Path) -> None:
    whole = start(tmp_path / "whole", Scripted()).report
    start(tmp_path, Failing((SPEC, 1)))
    report = resume(tmp_path, Scripted()).report
    data = stored(tmp_path)
    assert report is not None
    assert whole is not None
    assert trial(data, (SPEC, 1)).failed_before == ("the engine is gone",)
    (told,) = report.failures
    assert (told.place.cell, told.block) == (SPEC, 1)
    for write in (to_markdown, to_html):
        assert "the engine is gone (run again since)" in write(report).replace("\\", "")
    (completeness,) = [gate for gate in data.gates if gate.name == "completeness"]
    assert completeness.status == "pass"
    assert "1 trial of tiny-thinking short-chat serial+spec has failed before" in (
        completeness.detail
    )
    assert to_json(report).count("\n") == to_json(whole).count("\n")


def test_a_trial_that_fails_again_leaves_the_run_incomplete_and_both_reasons_are_kept(
    tmp_path: Path, undisturbed: object
) -> None:
    start(tmp_path, Failing((SPEC, 1), why="once"))
    done = resume(tmp_path, Failing((SPEC, 1), why="twice"))
    assert done.exit_code == exit_codes.INCOMPLETE
    assert any("go on with: fm run --resume" in note for note in done.notes)
    failed = trial(stored(tmp_path), (SPEC, 1))
    assert (failed.status, failed.reason, failed.failed_before) == ("failed", "twice", ("once",))
    assert resume(tmp_path, Scripted()).exit_code == exit_codes.PASS
    assert trial(stored(tmp_path), (SPEC, 1)).failed_before == ("once", "twice")
    assert seen(stored(tmp_path)) == undisturbed


class KilledError(BaseException):
    """Ends a session without any handler of it."""


@pytest.mark.parametrize("error", [KilledError, KeyboardInterrupt])
def test_a_resume_that_ends_midway_leaves_the_failure_as_it_was_until_it_has_run_again(
    tmp_path: Path, undisturbed: object, error: type[BaseException]
) -> None:
    start(tmp_path, Failing((SPEC, 1), (SERIAL, 4)))

    class Ends(Failing):
        def _fail(self, job: TrialJob) -> None:
            if place_of(job) == (SERIAL, 4):
                raise error

    if error is KilledError:
        with pytest.raises(KilledError):
            resume(tmp_path, Ends())
    else:
        assert resume(tmp_path, Ends()).exit_code == exit_codes.INTERRUPTED
    data = stored(tmp_path)
    assert trial(data, (SPEC, 1)).status == "done"
    left = trial(data, (SERIAL, 4))
    assert (left.status, left.reason) == ("failed", "the engine is gone")
    again = Failing()
    assert resume(tmp_path, again).exit_code == exit_codes.PASS
    assert again.tried == [(SERIAL, 4)]
    assert seen(stored(tmp_path)) == undisturbed


def test_a_second_attempt_that_the_database_does_not_take_comes_back_from_its_file(
    tmp_path: Path, undisturbed: object
) -> None:
    start(tmp_path, LosesItsServer((SPEC, 1)))
    with closing(sqlite3.connect(tmp_path / "fm.db", isolation_level=None)) as raw:

        def lock(job: TrialJob) -> None:
            if job.turn == job.num_turns - 1:
                raw.execute("BEGIN EXCLUSIVE")

        target = Scripted(before=lock)
        done = session(tmp_path, target, lock_wait_s=0.1).resume("latest")
    assert done.exit_code == exit_codes.INCOMPLETE
    (spool,) = (tmp_path / "spool").glob("*.jsonl")
    lines = spool.read_text()
    again = Failing()
    assert resume(tmp_path, again).exit_code == exit_codes.PASS
    assert again.tried == []
    assert seen(stored(tmp_path)) == undisturbed
    spool.write_text(lines)
    with EvalStore.open(tmp_path / "fm.db") as store:
        assert store.import_spool(spool).imported == 0


def test_a_side_that_knows_of_one_attempt_only_does_not_make_a_trial_forget_the_others(
    tmp_path: Path,
) -> None:
    class Older(Scripted):
        def run(self, job: TrialJob, on_tokens: OnTokens) -> TrialRecord:
            record = super().run(job, on_tokens)
            return replace(record, trial=replace(record.trial, failed_before=()))

    start(tmp_path, Failing((SPEC, 1)))
    assert resume(tmp_path, Older()).exit_code == exit_codes.PASS
    assert trial(stored(tmp_path), (SPEC, 1)).attempt == 1


def wrong(job: TrialJob, _prompt: Prompt) -> tuple[int, ...]:
    return (9,) if job.cell.name == SPEC else (1,)


def test_a_run_whose_correctness_failed_stays_finished(tmp_path: Path) -> None:
    target = Failing((SPEC, 1))
    target.answer, target.gap = wrong, 1.0
    assert start(tmp_path, target).exit_code == exit_codes.CORRECTNESS
    before = stored(tmp_path)
    with pytest.raises(SettingError, match="is finished"):
        resume(tmp_path, Scripted())
    assert stored(tmp_path) == before


def test_what_speaks_against_a_run_is_not_run_again_until_it_speaks_no_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The server was lost behind a reply in the wrong lane, and then came Ctrl-C."""

    class Misroutes(LosesItsServer):
        def _row(self, job: TrialJob, place: int, prompt: Prompt) -> RequestRow:
            row = super()._row(job, place, prompt)
            return replace(row, lane_taken="batch") if place_of(job) == (SPEC, 0) else row

        def _fail(self, job: TrialJob) -> None:
            if job.trial.block == 2:
                raise KeyboardInterrupt

    assert start(tmp_path, Misroutes((SPEC, 0))).exit_code == exit_codes.INTERRUPTED
    again = Failing()
    assert resume(tmp_path, again).exit_code == exit_codes.CORRECTNESS
    assert (SPEC, 0) not in again.tried
    assert trial(stored(tmp_path), (SPEC, 0)).status == "failed"
    assert "are not run again" in capsys.readouterr().out


def ratio_blocks(report: Concluded, cell: str) -> int:
    assert report.report is not None
    (found,) = [item for item in report.report.cells if item.place.cell == cell]
    assert found.main is not None
    return found.main.ratio.n


def test_two_trials_of_a_block_give_a_ratio_only_when_they_ran_side_by_side(
    tmp_path: Path,
) -> None:
    start(tmp_path / "one", Failing((SPEC, 1)))
    apart = resume(tmp_path / "one", Scripted())
    assert ratio_blocks(apart, SPEC) == CHOICES.amounts().blocks - 1
    assert apart.report is not None
    assert "apart from the other: serial+spec against serial 1 block." in to_markdown(
        apart.report
    ).replace("\\", "")
    start(tmp_path / "block", Failing((SPEC, 1), (SERIAL, 1), ("serial@aa", 1)))
    together = resume(tmp_path / "block", Scripted())
    assert ratio_blocks(together, SPEC) == CHOICES.amounts().blocks
    ratios = [row.ratio for row in stored(tmp_path / "one").blocks if row.baseline is not None]
    assert ratios.count(None) == 1


def test_requests_that_were_lost_with_their_trial_are_no_wrong_documents(tmp_path: Path) -> None:
    """A lost server is incomplete and can be gone on with, under a grammar too."""
    matrix = matrix_of(replace(CHOICES, cells=("grammar",), workloads=("json-extract",), blocks=1))
    target = LosesItsServer(("serial+grammar", 0))
    done = session(tmp_path, target).start(matrix)
    assert done.exit_code == exit_codes.INCOMPLETE
    data = stored(tmp_path)
    assert any(row.status == "error" for row in data.requests)
    assert {gate.status for gate in evaluate(data)} == {"pass", "incomplete"}
    assert resume(tmp_path, Scripted()).exit_code == exit_codes.PASS
