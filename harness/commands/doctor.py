"""`fm doctor`."""

from __future__ import annotations

import click

from harness import exit_codes


@click.command()
@click.option("--json", "as_json", is_flag=True, help="for scripts")
def doctor(as_json: bool) -> int:
    """Say what is used here, what is missing and what is busy.

    That is device, BLAS, threads, memory and versions, and what makes timing mean nothing.
    """
    import json

    from harness.doctor import examine

    found = examine()
    for line in [json.dumps(found.as_dict(), indent=2)] if as_json else found.lines():
        click.echo(line)
    return exit_codes.PASS if found.is_healthy else exit_codes.PROBLEM
