"""`fm gate`."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from engine.errors import SettingError
from harness import exit_codes
from harness.commands import options
from harness.commands.matrix_flags import CHOSEN, choices_of, is_given, matrix_options
from harness.commands.places import DEFAULT_REPORTS, say, while_read
from harness.planning.choices import GATE_CELLS, GATE_PRESET, GATE_WORKLOADS

if TYPE_CHECKING:
    from harness.base.comparison import Comparison
    from harness.policy.gate_files import Files
    from harness.policy.judgement import Judgement
    from harness.running.conclusion import Concluded

USUAL = {"cells": GATE_CELLS, "workloads": GATE_WORKLOADS, "preset": GATE_PRESET}
"""What a gate measures without a word about it."""


@click.command()
@click.argument("run", required=False)
@click.option("--base", metavar="REF", help="run the cells of this commit and of the checkout")
@click.option("--resume", metavar="RUN", help="go on with a run of --base: its id, or latest")
@click.option("--policy", default="default", help="what fails: a file, default or shared-runner")
@click.option("--strict", is_flag=True, help="what could not be told fails too, with 4")
@click.option("--junit", type=options.FILE, help="also write JUnit XML")
@click.option("--summary", type=options.FILE, help="also write a Markdown summary")
@options.json_file
@partial(matrix_options, usual=USUAL)
@options.database
@click.option(
    "--out", type=options.FILE, default=DEFAULT_REPORTS, help="folder for reports of --base"
)
@options.force
@options.quiet
@click.pass_context
def gate(
    context: click.Context,
    run: str | None,
    base: str | None,
    resume: str | None,
    policy: str,
    strict: bool,
    junit: Path | None,
    summary: Path | None,
    json_path: Path | None,
    db: Path,
    out: Path,
    force: bool,
    quiet: bool,
) -> int:
    """Judge a stored RUN, or this checkout against a commit.

    The exit code says what came of it:

    0 passed, 1 regression, 2 wrong usage, 3 a correctness gate failed, 4 not to be told (0 without
    --strict), 5 the machine was not fit, 6 something was not seen, 130 interrupted.
    """
    from harness.policy.gate_files import Files
    from harness.policy.policy_file import load_policy

    files = Files(junit=junit, summary=summary, json=json_path)
    rules = load_policy(policy)
    files.check()
    _check_flags(context, run, base, resume, force)
    files.clear()
    if base is not None or resume is not None:
        comparison = _comparison(db, out, force, quiet)
        if base is not None:
            concluded = comparison.start(choices_of(context), base)
        else:
            assert resume is not None
            concluded = comparison.resume(resume)
        _tell(concluded)
        if concluded.report is None:
            return concluded.exit_code
        run = concluded.run_id
    from harness.policy.judge import judge
    from harness.store import EvalStore

    with EvalStore.open_existing(db) as store:
        # An empty name, as of a variable that CI did not set, is not the latest run.
        data = store.load_report(store.find_run("latest" if run is None else run).run_id)
        judgement = judge(data, rules, is_strict=strict)
    return _concluded(judgement, files)


def _comparison(db: Path, out: Path, force: bool, quiet: bool) -> Comparison:
    from engine.backend import require_backend
    from harness.base.comparison import Comparison
    from harness.downloads import fetching_to
    from harness.running.conclusion import Places
    from harness.running.progress import progress_for

    require_backend()
    return Comparison(
        places=Places(db=db, reports=out, command="fm gate"),
        progress=progress_for(sys.stderr, quiet),
        fetching=fetching_to(sys.stderr),
        is_forced=force,
    )


def _tell(concluded: Concluded) -> None:
    with while_read():
        for note in concluded.notes:
            click.echo(note)
    if concluded.exit_code == exit_codes.INTERRUPTED:
        say(f"run {concluded.run_id} was interrupted")


def _check_flags(
    context: click.Context, run: str | None, base: str | None, resume: str | None, force: bool
) -> None:
    given = [
        name
        for name, value in (("RUN", run), ("--base", base), ("--resume", resume))
        if value is not None
    ]
    if len(given) > 1:
        raise SettingError(f"{' and '.join(given)} exclude each other; give one of them")
    chosen = [name for name in context.meta[CHOSEN] if is_given(context, name)]
    chosen += ["force"] if force else []
    if chosen and base is None:
        flag = f"--{chosen[0].replace('_', '-')}"
        raise SettingError(f"{flag} chooses what --base runs; add --base REF or drop {flag}")


def _concluded(judgement: Judgement, files: Files) -> int:
    """Write the files, show the lines, and return the exit code."""
    from harness.policy.summary import to_lines
    from harness.report import ReportError

    written = list(files.write(judgement))
    with while_read():
        for line in (*to_lines(judgement), *map(str, written)):
            click.echo(line)
    is_whole = not any(isinstance(item, ReportError) for item in written)
    return exit_codes.worst(
        [judgement.exit_code, exit_codes.PASS if is_whole else exit_codes.INCOMPLETE]
    )
