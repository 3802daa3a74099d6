"""What `fm db` shows of stored runs: plain lines, and rows of views as CSV or JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from shlex import quote

from harness.commands.columns import aligned
from harness.exit_codes import WORDS
from harness.report.markdown import flatten
from harness.report.numbers import DASH
from harness.revision import revision_text
from harness.store import EvalStore, RunFilter, RunRow
from harness.store.store import ViewRow

HEADINGS = ("run", "created", "status", "quotable", "trials", "models", "tag")


def list_lines(store: EvalStore, limit: int, wanted: RunFilter) -> list[str]:
    """Return the newest runs that are wanted, a line each, headings first."""
    runs = store.list_runs(limit, wanted)
    return aligned([HEADINGS, *(_list_row(store, run) for run in runs)])


def show_lines(store: EvalStore, run: RunRow) -> list[str]:
    """Return what a run is and what became of it, a line for each thing."""
    names, counts = store.run_names(run.run_id), store.trial_counts(run.run_id)
    told = [
        ("run", run.run_id),
        ("created", run.created_at),
        ("finished", run.finished_at or DASH),
        ("tag", run.tag),
        ("command", run.command),
        ("status", run.status),
        ("exit code", DASH if run.exit_code is None else _exit(run.exit_code)),
        ("quotable", _quotable(run)),
        *_under("unquotable because", run.unquotable_reasons or (DASH,)),
        ("trials", ", ".join(f"{count} {status}" for status, count in counts.items()) or DASH),
        ("models", ", ".join(names.models)),
        ("workloads", ", ".join(names.workloads)),
        ("cells", ", ".join(names.cells)),
        ("revision", revision_text(run.git_sha, is_dirty=run.git_dirty)),
        ("plan", run.plan_hash or "unknown"),
        *((f"setting {name}", value) for name, value in flatten(run.settings)),
        *((f"environment {name}", value) for name, value in flatten(run.environment)),
    ]
    for row in store.promotions(run.run_id):
        told.append(("promoted", f"{row.promoted_at} to {row.destination}"))
        told += _under("promoted as unquotable because", () if row.quotable else row.reasons)
    lines = aligned(told)
    return lines + [f"waits to be imported: {path}" for path in store.spool_files(run.run_id)]


def check_lines(store: EvalStore) -> tuple[str, ...]:
    """Return what is wrong with a database, a line each; empty when it is sound."""
    waiting = [
        f"{path} waits to be taken in; run: fm db import {quote(str(path))} "
        f"--db {quote(str(store.path))}"
        for path in store.spool_files()
    ]
    return (*store.integrity_problems(), *waiting)


def csv_lines(columns: Sequence[str], rows: Iterable[ViewRow]) -> Iterator[str]:
    """Yield the lines of a CSV file: UTF-8, quoted as RFC 4180 says, nothing for NULL."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    yield _taken(buffer)
    for row in rows:
        writer.writerow(row)
        yield _taken(buffer)


def json_lines(columns: Sequence[str], rows: Iterable[ViewRow]) -> Iterator[str]:
    """Yield the lines of a JSON array with one object a line."""
    start = "[\n"
    for row in rows:
        item = dict(zip(columns, row, strict=True))
        yield start + json.dumps(item, ensure_ascii=False, allow_nan=False)
        start = ",\n"
    yield "[]\n" if start == "[\n" else "\n]\n"


FORMS: Mapping[str, Callable[[Sequence[str], Iterable[ViewRow]], Iterator[str]]] = {
    "csv": csv_lines,
    "json": json_lines,
}
"""How the rows of a view are written, by the name of the form."""


def _list_row(store: EvalStore, run: RunRow) -> tuple[str, ...]:
    counts = store.trial_counts(run.run_id)
    planned = sum(count for status, count in counts.items() if status != "skipped")
    return (
        run.run_id,
        run.created_at[:16].replace("T", " "),
        run.status if run.exit_code is None else f"{run.status}: {_exit(run.exit_code)}",
        _quotable(run),
        f"{counts.get('done', 0)}/{planned}",
        ",".join(store.run_names(run.run_id).models),
        run.tag,
    )


def _exit(code: int) -> str:
    return f"{code} ({WORDS.get(code, 'unknown')})"


def _under(heading: str, lines: Sequence[str]) -> list[tuple[str, str]]:
    """Return lines in the column beside their heading, which stands once."""
    return [("" if number else heading, line) for number, line in enumerate(lines)]


def _quotable(run: RunRow) -> str:
    return DASH if run.quotable is None else "yes" if run.quotable else "no"


def _taken(buffer: io.StringIO) -> str:
    text = buffer.getvalue()
    buffer.seek(0)
    buffer.truncate()
    return text
