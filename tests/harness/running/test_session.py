"""A run on a machine that is not clean: no verdict, unless it is forced, and then it is marked."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from harness import exit_codes
from harness.conditions.reading import Reading, Standing
from harness.conditions.watch import Watch
from harness.downloads import fetching_to
from harness.machine import GitState
from harness.planning.choices import Choices
from harness.running import session
from harness.running.conclusion import Concluded, Places
from harness.running.progress import LineProgress
from harness.running.session import Session, matrix_of
from harness.store import EvalStore, RunData
from harness.trials.target import TrialJob
from tests.harness.scripted import Scripted

CHOICES = Choices(
    cells=("spec",), models=("tiny-thinking",), workloads=("short-chat",), blocks=6, prompts=2
)
BATTERY = "the machine runs on battery; plug it in"


class Supply:
    """A machine whose only trouble can be its supply; every reading is five seconds later."""

    def __init__(self, *on_battery: bool, hour: int = 5) -> None:
        self.now_s = 0.0
        self.hour = hour
        self.on_battery = iter(on_battery)
        self.last = on_battery[-1]

    def read(self, _roots: object) -> Reading:
        self.now_s += 5.0
        return Reading(at=f"2026-03-04T{self.hour:02}:{self.now_s:07.1f}Z", at_s=self.now_s, cpus=4)

    def read_standing(self, _reading: Reading) -> Standing:
        return Standing(on_battery=next(self.on_battery, self.last))

    def watch(self, _target: str) -> Watch:
        return Watch(
            read=self.read,
            read_standing=self.read_standing,
            interval_s=3600.0,
            preflight_s=0.0,
        )


@pytest.fixture(autouse=True)
def committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tree these tests run in may hold changes; what is asked here is another question."""
    monkeypatch.setattr(session, "git_state", lambda: GitState("a" * 40, is_dirty=False))


@dataclass
class Ran:
    """A run that came to its end, or was interrupted."""

    concluded: Concluded
    data: RunData
    told: str


def carried_out(
    supply: Supply,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    go: Callable[[Session], Concluded],
    *,
    is_forced: bool = False,
    target: Scripted | None = None,
) -> Ran:
    monkeypatch.setattr(session, "watch_of", supply.watch)
    told, target = io.StringIO(), target or Scripted()
    concluded = go(
        Session(
            target=target,
            places=Places(db=folder / "fm.db", reports=folder / "reports"),
            progress=LineProgress(told),
            fetching=fetching_to(io.StringIO()),
            is_forced=is_forced,
        )
    )
    with EvalStore.open_existing(folder / "fm.db") as store:
        return Ran(concluded, store.load_run(concluded.run_id), told.getvalue())


def run_on(
    supply: Supply, folder: Path, monkeypatch: pytest.MonkeyPatch, *, is_forced: bool = False
) -> tuple[Concluded, RunData, str]:
    ran = carried_out(
        supply, folder, monkeypatch, lambda s: s.start(matrix_of(CHOICES)), is_forced=is_forced
    )
    return ran.concluded, ran.data, ran.told


def stopped_and_resumed(
    first: Supply, second: Supply, folder: Path, monkeypatch: pytest.MonkeyPatch, *, is_forced: bool
) -> tuple[Ran, Ran]:
    """Run until Ctrl-C before the fourth trial, then go on with it."""
    target = Scripted()

    def stop(_job: TrialJob) -> None:
        if len(target.ran) == 3:
            raise KeyboardInterrupt

    target.before = stop
    matrix = matrix_of(CHOICES)
    stopped = carried_out(
        first, folder, monkeypatch, lambda s: s.start(matrix), is_forced=is_forced, target=target
    )
    assert stopped.concluded.exit_code == exit_codes.INTERRUPTED
    return stopped, carried_out(second, folder, monkeypatch, lambda s: s.resume("latest"))


def verdicts(concluded: Concluded) -> set[str | None]:
    assert concluded.report is not None
    return {item.ratio.verdict for cell in concluded.report.cells for item in cell.ratios}


def reasons(concluded: Concluded) -> tuple[str, ...]:
    assert concluded.report is not None
    return concluded.report.unquotable_reasons


def test_a_clean_machine_gives_verdicts_and_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    concluded, data, told = run_on(Supply(False), tmp_path, monkeypatch)

    assert None not in verdicts(concluded)
    assert not any("machine" in reason or "battery" in reason for reason in reasons(concluded))
    assert "machine: " not in told
    assert "forced" not in data.run.settings


def test_a_machine_that_is_not_clean_runs_and_gets_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    concluded, data, told = run_on(Supply(True), tmp_path, monkeypatch)

    assert concluded.exit_code == 0
    assert verdicts(concluded) == {None}
    assert BATTERY in reasons(concluded)
    assert data.run.machine_refusals == (BATTERY,)
    assert concluded.report is not None
    assert concluded.report.machine_refusals[0] == BATTERY
    opening, *lines = told.splitlines()
    assert opening.startswith("opening ")
    assert lines[0] == f"machine: {BATTERY}"
    assert "--force" in lines[1]
    assert all("/" in line.split(" ")[0] for line in lines[2:])


def test_a_forced_run_gets_verdicts_and_is_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    concluded, data, told = run_on(Supply(True), tmp_path, monkeypatch, is_forced=True)

    assert None not in verdicts(concluded)
    (mark,) = [reason for reason in reasons(concluded) if "machine" in reason]
    assert mark.startswith(f"forced on a machine that was not clean: {BATTERY}")
    assert data.run.settings["forced"] is True
    assert data.run.command.endswith(" --force")
    assert data.run.quotable is False
    assert concluded.report is not None
    assert concluded.report.run.is_forced
    assert concluded.report.machine_refusals == ()
    assert "the run is marked" in told


def test_a_forced_run_on_a_clean_machine_is_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    concluded, data, _ = run_on(Supply(False), tmp_path, monkeypatch, is_forced=True)

    assert data.run.settings["forced"] is True
    assert not any("forced" in reason for reason in reasons(concluded))


def test_a_plug_that_is_pulled_during_the_run_keeps_it_from_being_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    concluded, data, _ = run_on(Supply(False, True), tmp_path, monkeypatch)

    assert data.run.machine_refusals == ()
    assert None not in verdicts(concluded)
    assert any(f"during the run {BATTERY}" in reason for reason in reasons(concluded))
    assert "the power supply changed during the run: mains, then battery" in reasons(concluded)


def test_samples_of_the_whole_run_are_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, data, _ = run_on(Supply(False), tmp_path, monkeypatch)

    done = [trial.trial_id for trial in data.trials if trial.status == "done"]
    assert len(done) == 18
    behind = [row.trial_id for row in data.conditions if row.phase == "trial"]
    assert sorted(map(str, behind)) == sorted(done)
    phases = [row.phase for row in data.conditions]
    assert phases[0] == "preflight"
    assert phases[-1] == "end"
    assert all(row.window_s == 5.0 for row in data.conditions)


def test_a_stored_run_is_judged_by_its_samples_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness.report import build_report

    concluded, data, _ = run_on(Supply(True), tmp_path, monkeypatch)
    assert concluded.report is not None

    again = build_report(data)
    assert again.refusals == concluded.report.refusals
    assert again.unquotable_reasons == concluded.report.unquotable_reasons
    quiet = build_report(
        replace(
            data, conditions=(), run=replace(data.run, machine_refusals=(), unquotable_reasons=())
        )
    )
    assert quiet.refusals == ()


def test_samples_taken_before_ctrl_c_are_kept_and_no_trial_has_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped, resumed = stopped_and_resumed(
        Supply(False), Supply(False, hour=6), tmp_path, monkeypatch, is_forced=False
    )
    phases = [row.phase for row in stopped.data.conditions]
    assert phases == ["preflight", "trial", "trial", "trial", "end"]
    behind = [row.trial_id for row in resumed.data.conditions if row.phase == "trial"]
    assert len(behind) == len(set(behind)) == 18
    assert None not in verdicts(resumed.concluded)


def test_a_run_that_goes_on_when_the_machine_is_not_clean_gets_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, resumed = stopped_and_resumed(
        Supply(False), Supply(True, hour=6), tmp_path, monkeypatch, is_forced=False
    )
    assert resumed.told.partition(f"machine: {BATTERY}\n")[0].startswith("opening ")
    assert verdicts(resumed.concluded) == {None}
    assert BATTERY in reasons(resumed.concluded)


def test_a_forced_run_goes_on_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, resumed = stopped_and_resumed(
        Supply(True), Supply(True, hour=6), tmp_path, monkeypatch, is_forced=True
    )
    assert "the run is marked" in resumed.told
    assert None not in verdicts(resumed.concluded)
    assert any(reason.startswith("forced on") for reason in reasons(resumed.concluded))
