"""What a run comes to: gates, ratios and its end are stored, reports written, a code returned."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from engine.errors import SettingError
from harness import exit_codes
from harness.judging import gates
from harness.report import (
    ReportError,
    RunReport,
    build_report,
    check_folder,
    comparison_rows,
    report_name,
    to_html,
    to_json,
    to_markdown,
    write_report,
)
from harness.running.interrupts import last_words
from harness.running.run import Outcome
from harness.store import EvalStore, RunData

RUN_COMMAND = "fm run"

EndStatus = Literal["finished", "failed"]
"""Statuses of a run that was not interrupted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where a run writes.

    Args:
        reports: folder of the dated reports.
        json: file of the JSON report, None for none.
        command: what goes on with an interrupted run.
        lock_wait_s: how long another process may keep the database locked.
    """

    db: Path
    reports: Path
    json: Path | None = None
    command: str = RUN_COMMAND
    lock_wait_s: float = 60.0

    def check(self) -> None:
        """Raise SettingError when a report could not be written after the run."""
        check_folder(self.reports, "--out")
        if self.json is not None:
            check_folder(self.json.absolute().parent, "--json")
            if self.json.is_dir():
                raise SettingError(f"--json names the folder {self.json}; name a file in it")


@dataclass(frozen=True, slots=True, kw_only=True)
class Concluded:
    """A run that has ended.

    Args:
        report: None where it was interrupted.
        notes: what a person should know, one line each.
    """

    run_id: str
    exit_code: int
    report: RunReport | None
    notes: tuple[str, ...] = ()


def conclude(store: EvalStore, run_id: str, outcome: Outcome, places: Places) -> Concluded:
    """Evaluate the gates, write the reports and the end of the run."""
    if outcome.ending == "interrupted":
        return interrupted(store, run_id, places)
    status: EndStatus = "finished" if outcome.save is None else "failed"
    data = _judged(store, run_id, status)
    unsaved = _stored_verdict(store, data, status)
    problems = unsaved if outcome.save is None else [outcome.save.reason]
    # Loaded anew, since which replies are shown depends on the gates and the end as stored.
    report = build_report(replace(store.load_report(run_id), gates=data.gates))
    code = gates.exit_code(report.gates, is_unsaved=bool(problems))
    report = replace(report, exit_code=code)
    has_failures = code == exit_codes.INCOMPLETE and "failed" in store.trial_counts(run_id)
    if problems or has_failures:
        problems.append(resume_hint(run_id, places))
    written = _written_reports(report, places)
    if any(isinstance(item, ReportError) for item in written):
        report = replace(report, exit_code=exit_codes.worst([code, exit_codes.INCOMPLETE]))
    if places.json is not None:
        # Last, since it tells programs how the process ends.
        written.append(_written("json", places.json, to_json(report)))
        if isinstance(written[-1], ReportError):
            report = replace(report, exit_code=exit_codes.worst([code, exit_codes.INCOMPLETE]))
    notes = (*problems, f"database: {places.db}", *map(str, written))
    return Concluded(run_id=run_id, exit_code=report.exit_code, report=report, notes=notes)


def interrupted(store: EvalStore, run_id: str, places: Places) -> Concluded:
    """Write that a run was interrupted, for programs too, and say how to go on with it."""
    code = exit_codes.INTERRUPTED
    notes: list[str] = []
    with last_words():
        store.finish_run(run_id, status="interrupted", exit_code=code, unquotable_reasons=[])
        if places.json is not None:
            report = replace(build_report(store.load_report(run_id)), exit_code=code)
            notes.append(str(_written("json", places.json, to_json(report))))
    again = resume_hint(run_id, places)
    return Concluded(run_id=run_id, exit_code=code, report=None, notes=(*notes, again))


def resume_hint(run_id: str, places: Places) -> str:
    """Return how to go on with a run."""
    database = shlex.quote(str(places.db))
    return f"go on with: {places.command} --resume {run_id} --db {database}"


def _judged(store: EvalStore, run_id: str, status: EndStatus) -> RunData:
    """Return a run with the gates of one that ends so: they ask whether it came to its end."""
    data = store.load_report(run_id)
    found = gates.evaluate(replace(data, run=replace(data.run, status=status)))
    return replace(data, gates=found)


def _stored_verdict(store: EvalStore, data: RunData, status: EndStatus) -> list[str]:
    """Store gates, ratios and the end of the run; return what the database did not take."""
    run_id, report = data.run.run_id, build_report(data)
    saves = [store.record_gates(run_id, data.gates)]
    saves.append(store.record_comparisons(run_id, comparison_rows(report)))
    saves.append(
        store.finish_run(
            run_id,
            status=status,
            exit_code=gates.exit_code(data.gates, is_unsaved=status == "failed"),
            unquotable_reasons=report.unquotable_reasons,
        )
    )
    return list(dict.fromkeys(save.reason for save in saves if not save.saved))


def _written_reports(report: RunReport, places: Places) -> list[str | ReportError]:
    """Write the dated reports; return a line for each, or why it could not be written."""
    dated = {"md": to_markdown, "html": to_html}
    return [
        _written("report", places.reports / report_name(report.run, ending), write(report))
        for ending, write in dated.items()
    ]


def _written(kind: str, path: Path, text: str) -> str | ReportError:
    try:
        write_report(path, text)
    except ReportError as error:
        return error
    return f"{kind}: {path}"
