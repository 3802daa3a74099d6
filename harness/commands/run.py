"""`fm run` and `fm plan`."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from engine.errors import SettingError
from harness import exit_codes
from harness.commands import options
from harness.commands.matrix_flags import choices_of, matrix_options, refuse_choices
from harness.commands.places import DEFAULT_DB, DEFAULT_REPORTS, say, while_read

if TYPE_CHECKING:
    from harness.running.conclusion import Concluded


@click.command()
@matrix_options
@options.database
@click.option("--out", type=options.FILE, default=DEFAULT_REPORTS, help="folder for reports")
@click.option("--resume", metavar="RUN", help="go on with a run: its id, or latest")
@options.json_file
@options.quiet
@options.force
@click.pass_context
def run(
    context: click.Context,
    db: Path,
    out: Path,
    resume: str | None,
    json_path: Path | None,
    quiet: bool,
    force: bool,
) -> int:
    """Run cells on workloads, and judge what was seen.

    Every observation is stored, and a report is written.
    """
    if resume is not None:
        refuse_choices(context)
        if force:
            raise SettingError("--resume goes on as planned; drop --force or start a new run")
    chosen = choices_of(context)
    from engine.backend import require_backend
    from harness.running.conclusion import Places
    from harness.running.session import Session, matrix_of, stored_target

    matrix = matrix_of(chosen)
    require_backend()
    from harness.downloads import fetching_to
    from harness.running.progress import progress_for
    from harness.targets.names import target_of

    target = chosen.target if resume is None else stored_target(db, resume)
    progress = progress_for(sys.stderr, quiet)
    session = Session(
        target=target_of(target, progress.note),
        places=Places(db=db, reports=out, json=json_path),
        progress=progress,
        fetching=fetching_to(sys.stderr),
        is_forced=force,
    )
    concluded = session.start(matrix) if resume is None else session.resume(resume)
    with while_read():
        _show(concluded, quiet)
    return concluded.exit_code


@click.command()
@matrix_options
@click.option(
    "--db",
    type=options.FILE,
    default=DEFAULT_DB,
    help="eval database, whose past runs say how long trials take",
)
@options.json_file
@click.pass_context
def plan(context: click.Context, db: Path, json_path: Path | None) -> int:
    """Show what `fm run` would run with the same flags.

    Also what it leaves out and why, and how long it takes.
    """
    from harness.commands.plan_text import plan_json, plan_lines
    from harness.planning.forecast import forecast, read_past
    from harness.report import write_report
    from harness.running.session import checked, matrix_of
    from harness.targets.names import target_of

    chosen = choices_of(context)
    matrix = matrix_of(chosen)
    if chosen.is_remote:
        with closing(target_of(chosen.target, say)) as target:
            for model in chosen.models:
                target.open(model)
                matrix = checked(matrix, model, target)
    found = forecast(matrix, read_past(db, chosen.target))
    if json_path is not None:
        write_report(json_path, plan_json(found))
    for line in plan_lines(found):
        click.echo(line)
    if json_path is not None:
        click.echo(f"json: {json_path}")
    return exit_codes.PASS


def _show(concluded: Concluded, quiet: bool) -> None:
    """Print the composition tables and where everything is."""
    from rich.console import Console

    from harness.report import plain_report, print_report

    if concluded.exit_code == exit_codes.INTERRUPTED:
        say(f"run {concluded.run_id} was interrupted")
    if concluded.report is not None:
        if quiet or not sys.stdout.isatty():
            click.echo(plain_report(concluded.report), nl=False)
        else:
            print_report(concluded.report, Console())
    for note in concluded.notes:
        click.echo(note)
