"""`fm report`."""

from __future__ import annotations

from pathlib import Path

import click

from harness import exit_codes
from harness.commands import options


@click.command()
@click.argument("run", default="latest")
@click.option("--format", "form", default="md", help="md, html or json")
@options.output
@options.database
def report(run: str, form: str, output: Path | None, db: Path) -> int:
    """Write the report of a stored RUN again.

    RUN is an id, its beginning, or latest.
    """
    from engine.errors import UnknownNameError
    from harness.report import build_report, to_html, to_json, to_markdown, write_report
    from harness.store import EvalStore

    writers = {"md": to_markdown, "html": to_html, "json": to_json}
    if form not in writers:
        raise UnknownNameError("format", form, writers)
    with EvalStore.open_existing(db) as store:
        text = writers[form](build_report(store.load_report(store.find_run(run).run_id)))
    if output is None:
        click.echo(text, nl=False)
    else:
        write_report(output, text)
        click.echo(f"report: {output}")
    return exit_codes.PASS
