"""`fm db`: what the eval database holds, and copies of it in and out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from harness import exit_codes
from harness.commands import options

MAX_LISTED = 1_000_000


@click.group()
def db() -> None:
    """Browse the eval database, export from it, merge others into it."""


@db.command("list")
@click.option("--tag", default="", show_default=False, help="runs with this in their tag")
@click.option("--model", default="", show_default=False, help="runs of this model")
@click.option(
    "--status",
    default="",
    show_default=False,
    help="runs of this status, e.g. finished, interrupted",
)
@click.option("--limit", type=click.IntRange(1, MAX_LISTED), default=20, help="most runs shown")
@options.database
def list_runs(tag: str, model: str, status: str, limit: int, db: Path) -> int:
    """List the newest runs."""
    from harness.commands.db_text import list_lines
    from harness.store import EvalStore, RunFilter

    wanted = RunFilter(tag=tag, model=model, status=status)
    with EvalStore.open_existing(db) as store:
        _echo(list_lines(store, limit, wanted))
    return exit_codes.PASS


@db.command()
@click.argument("run", default="latest")
@options.database
def show(run: str, db: Path) -> int:
    """Show what a stored RUN is and what became of it."""
    from harness.commands.db_text import show_lines
    from harness.store import EvalStore

    with EvalStore.open_existing(db) as store:
        _echo(show_lines(store, store.find_run(run)))
    return exit_codes.PASS


@db.command()
@click.option(
    "--run", default="", show_default=False, help="one run: an id, its beginning, or latest"
)
@click.option(
    "--view",
    default="",
    show_default=False,
    help="rows of a view, e.g. v_cell, v_composition, v_history",
)
@click.option("--format", "form", default="csv", help="of the rows of a view: csv or json")
@click.option(
    "-o", "--output", type=options.FILE, help="file; a view without one goes to the screen"
)
@options.database
def export(run: str, view: str, form: str, output: Path | None, db: Path) -> int:
    """Write the rows of a view, or one run as a database of its own that `fm db merge` takes."""
    from engine.errors import SettingError, UnknownNameError
    from harness.commands.db_text import FORMS
    from harness.report.outcome import write_pieces
    from harness.store import EvalStore

    if form not in FORMS:
        raise UnknownNameError("format", form, FORMS)
    if not view and (not run or output is None):
        raise SettingError("nothing to export: give --view NAME, or --run RUN with -o FILE")
    with EvalStore.open_existing(db) as store:
        run_id = store.find_run(run).run_id if run else ""
        if view:
            write = _to_screen if output is None else _to_file(output, write_pieces)
            store.read_view(view, run_id, lambda columns, rows: write(FORMS[form](columns, rows)))
        elif output is not None:
            _require_free(output)
            store.export_run(run_id, output)
    if output is not None:
        click.echo(f"exported: {output}")
    return exit_codes.PASS


@db.command()
@click.argument("others", metavar="DB...", type=options.FILE, nargs=-1, required=True)
@options.database
def merge(others: tuple[Path, ...], db: Path) -> int:
    """Take the runs of other databases into this one.

    Twice is the same as once.
    """
    from harness.store import EvalStore

    with EvalStore.open(db) as store:
        for path in others:
            found = store.merge(path)
            click.echo(
                f"{path}: {found.added} runs added, {found.advanced} gone on with, "
                f"{found.known} known already"
            )
    return exit_codes.PASS


@db.command()
@click.argument("file", type=options.FILE)
@options.database
def copy(file: Path, db: Path) -> int:
    """Copy the database, also during a run, into one FILE that holds all of it."""
    from harness.store import EvalStore

    with EvalStore.open_existing(db) as store:
        _require_free(file)
        store.consistent_copy(file)
    click.echo(f"copied: {file}")
    return exit_codes.PASS


@db.command()
@options.database
def check(db: Path) -> int:
    """Check that the database is sound, and that nothing waits to be imported."""
    from harness.commands.db_text import check_lines
    from harness.store import EvalStore

    with EvalStore.open_existing(db) as store:
        problems = check_lines(store)
    _echo(problems or [f"{db} is sound"])
    return exit_codes.INCOMPLETE if problems else exit_codes.PASS


@db.command("import")
@click.argument("files", metavar="FILE...", type=options.FILE, nargs=-1, required=True)
@options.database
def import_spool(files: tuple[Path, ...], db: Path) -> int:
    """Take in spool files: what a run measured while the database was locked or full."""
    from harness.store import EvalStore

    damaged = 0
    with EvalStore.open_existing(db) as store:
        for path in files:
            found = store.import_spool(path)
            damaged += found.damaged
            kept = f"; kept as {found.kept.name}" if found.kept else ""
            click.echo(
                f"{path}: {found.imported} taken in, {found.known} known already, "
                f"{found.damaged} unreadable{kept}"
            )
    return exit_codes.INCOMPLETE if damaged else exit_codes.PASS


def _require_free(path: Path) -> None:
    """Make the folder of a new file; SettingError where there is such a file, or no such folder."""
    from engine.errors import SettingError

    if path.exists():
        raise SettingError(f"{path} exists already; remove it or name another file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingError(
            f"{path.parent} cannot be made ({error.strerror}); name another file"
        ) from error


def _to_file(path: Path, write: Callable[[Path, Iterator[str]], None]) -> Callable[..., None]:
    return lambda pieces: write(path, pieces)


def _to_screen(pieces: Iterator[str]) -> None:
    """Write to standard output as it is; a terminal gets no control character of a reply."""
    from harness.report.visible import visible

    for piece in pieces:
        sys.stdout.write(visible(piece) if sys.stdout.isatty() else piece)


def _echo(lines: Any) -> None:
    for line in lines:
        click.echo(line)
