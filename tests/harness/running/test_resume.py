"""What going on with a run keeps as it was planned, and what the end of a run says of itself."""

from __future__ import annotations

import io
import json
import shlex
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from engine.errors import DownloadError, SettingError
from harness import exit_codes, machine
from harness.downloads import fetching_to
from harness.machine import GitState
from harness.planning.choices import Choices
from harness.running import session
from harness.running.claim import lock_file
from harness.running.conclusion import Places, resume_hint
from harness.running.progress import LineProgress
from harness.running.session import Session, command_of, matrix_of
from harness.store import EvalStore
from harness.store.connection import Connection
from harness.trials.target import TrialJob
from tests.harness.running.test_session import CHOICES, Supply, carried_out, reasons
from tests.harness.scripted import Scripted

CLEAN, DIRTY = (GitState("a" * 40, is_dirty=is_dirty) for is_dirty in (False, True))
FAR = "hf:somebody/far"
TWO_MODELS = replace(CHOICES, models=("tiny-thinking", FAR), blocks=2)


@pytest.fixture(autouse=True)
def committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tree these tests run in may hold changes; what is asked here is another question."""
    for module in (machine, session):
        monkeypatch.setattr(module, "git_state", lambda: CLEAN)


def test_a_finished_run_is_not_gone_on_with_and_keeps_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = carried_out(
        Supply(False), tmp_path, monkeypatch, lambda work: work.start(matrix_of(CHOICES))
    )
    assert ran.data.run.quotable
    with pytest.raises(SettingError, match=r"is finished; see it with: fm report"):
        carried_out(Supply(True, hour=6), tmp_path, monkeypatch, lambda s: s.resume("latest"))
    with EvalStore.open_existing(tmp_path / "fm.db") as store:
        assert store.load_run(ran.concluded.run_id) == ran.data


def test_a_model_that_was_out_of_reach_stays_out_of_the_run_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Scripted(broken={FAR: DownloadError(f"{FAR} cannot be reached")})
    monkeypatch.setattr(session, "pull", lambda _name, _progress: None)

    def stop(_job: TrialJob) -> None:
        if len(first.ran) == 3:
            raise KeyboardInterrupt

    first.before = stop
    matrix = matrix_of(TWO_MODELS)
    stopped = carried_out(
        Supply(False), tmp_path, monkeypatch, lambda work: work.start(matrix), target=first
    )
    assert stopped.concluded.exit_code == exit_codes.INTERRUPTED
    second = Scripted()
    resumed = carried_out(
        Supply(False, hour=6), tmp_path, monkeypatch, lambda s: s.resume("latest"), target=second
    )
    assert {trial.status for trial in resumed.data.trials} == {"done", "skipped"}
    assert len(resumed.data.trials) == len(stopped.data.trials)
    assert set(second.opened) == {"tiny-thinking"}


def test_code_that_changed_during_a_run_keeps_it_from_being_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = iter([CLEAN, DIRTY])
    monkeypatch.setattr(machine, "git_state", lambda: next(states))
    ran = carried_out(
        Supply(False), tmp_path, monkeypatch, lambda work: work.start(matrix_of(CHOICES))
    )
    sha = CLEAN.sha
    assert reasons(ran.concluded) == (
        f"fm's own code changed during the run: {sha}, then {sha} with uncommitted changes",
    )
    assert not ran.data.run.quotable


def test_the_json_says_how_the_process_ends_also_when_a_report_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "watch_of", Supply(False).watch)
    reports, target = tmp_path / "reports", Scripted()

    def stand_in_the_way(_job: TrialJob) -> None:
        if reports.is_dir():
            reports.rmdir()
            reports.write_text("not a folder")

    target.before = stand_in_the_way
    work = Session(
        target=target,
        places=Places(db=tmp_path / "fm.db", reports=reports, json=tmp_path / "out.json"),
        progress=LineProgress(io.StringIO()),
        fetching=fetching_to(io.StringIO()),
    )
    done = work.start(matrix_of(CHOICES))
    assert done.exit_code == exit_codes.INCOMPLETE
    told = json.loads((tmp_path / "out.json").read_text())
    assert told["exit_code"] == exit_codes.INCOMPLETE


def test_a_shell_reads_the_command_of_a_run_as_it_was_given() -> None:
    chosen = Choices(
        cells=("serial", "spec@num_draft_tokens=3"),
        models=("/a b/$(model)",),
        target="http://127.0.0.1:1/v1;x",
        tag="it's; here",
        temperature=0.5,
    )
    words = shlex.split(command_of(chosen))
    assert words[:2] == ["fm", "run"]
    given = dict(zip(words[2::2], words[3::2], strict=True))
    assert given["--cells"] == "serial,spec@num_draft_tokens=3"
    assert given["--models"] == "/a b/$(model)"
    assert given["--target"] == "http://127.0.0.1:1/v1;x"
    assert given["--tag"] == "it's; here"
    assert given["--temperature"] == "0.5"


def test_a_shell_reads_how_to_go_on_as_it_is_meant() -> None:
    places = Places(db=Path("my runs/fm.db"), reports=Path("reports"))
    words = shlex.split(resume_hint("01A", places))
    assert words == ["go", "on", "with:", "fm", "run", "--resume", "01A", "--db", "my runs/fm.db"]


def test_a_database_has_one_claim_by_whatever_name_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link.db").symlink_to(tmp_path / "real" / "fm.db")
    monkeypatch.chdir(tmp_path / "real")
    names = (Path("fm.db"), tmp_path / "real" / "fm.db", tmp_path / "link.db")
    assert {lock_file(name) for name in names} == {tmp_path / "real" / "fm.db-runs.lock"}


def test_no_moment_leaves_a_trial_without_the_samples_of_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the database holds after each transaction is what a kill there leaves behind."""
    unwatched = []

    def look() -> None:
        query = """
            SELECT COUNT(*) FROM trials AS t WHERE t.status = 'done'
            AND t.trial_id NOT IN (SELECT trial_id FROM conditions WHERE trial_id IS NOT NULL)
        """
        with closing(sqlite3.connect(tmp_path / "fm.db")) as raw:
            unwatched.append(raw.execute(query).fetchone()[0])

    write = Connection.write

    def write_and_look(store: Connection, change: Callable[[sqlite3.Connection], object]) -> object:
        done = write(store, change)
        look()
        return done

    monkeypatch.setattr(Connection, "write", write_and_look)
    carried_out(Supply(False), tmp_path, monkeypatch, lambda work: work.start(matrix_of(CHOICES)))
    assert len(unwatched) > 18
    assert set(unwatched) == {0}
