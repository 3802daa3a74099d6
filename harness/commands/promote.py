"""`fm promote`."""

from __future__ import annotations

from pathlib import Path

import click

from harness import exit_codes
from harness.commands import options
from harness.commands.places import DEFAULT_RESULTS, say


@click.command()
@click.argument("run", default="latest")
@click.option("--unquotable", is_flag=True, help="also rows that are not quotable, marked so")
@click.option("--to", type=options.FILE, default=DEFAULT_RESULTS, help="results page")
@options.database
def promote(run: str, unquotable: bool, to: Path, db: Path) -> int:
    """Write what a stored RUN found to the results page.

    Its quotable rows alone, unless told otherwise.
    """
    from harness.report.visible import one_line
    from harness.results import promote as write
    from harness.store import EvalStore

    with EvalStore.open_existing(db) as store:
        done = write(store, run, to, with_unquotable=unquotable)
    for note in done.notes:
        say(one_line(note))
    click.echo(f"results: {to}{'' if done.is_changed else ' (as it was)'}")
    return exit_codes.PASS
