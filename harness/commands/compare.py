"""`fm compare`."""

from __future__ import annotations

from pathlib import Path

import click

from harness import exit_codes
from harness.commands import options


@click.command()
@click.argument("a")
@click.argument("b", default="latest")
@click.option("--format", "form", default="md", help="md or json")
@options.output
@options.database
def compare(a: str, b: str, form: str, output: Path | None, db: Path) -> int:
    """Show what differs between the stored runs A and B.

    That is settings, machine, gates and figures.
    """
    from engine.errors import SettingError, UnknownNameError
    from harness.report import write_report
    from harness.results.differences import compare_runs
    from harness.results.differences_text import compared_json, compared_markdown
    from harness.store import EvalStore

    writers = {"md": compared_markdown, "json": compared_json}
    if form not in writers:
        raise UnknownNameError("format", form, writers)
    with EvalStore.open_existing(db) as store:
        runs = [store.find_run(name).run_id for name in (a, b)]
        if runs[0] == runs[1]:
            raise SettingError(f"{a} and {b} are one run, {runs[0]}; name two of them")
        one, other = map(store.load_report, runs)
        text = writers[form](compare_runs(one, other))
    if output is None:
        click.echo(text, nl=False)
    else:
        write_report(output, text)
        click.echo(f"comparison: {output}")
    return exit_codes.PASS
