"""`fm models` and `fm pull`."""

from __future__ import annotations

import sys

import click

from harness import exit_codes


@click.command()
def models() -> int:
    """List the models known by name."""
    from engine.models.registry import model_rows
    from harness.commands.columns import aligned
    from harness.commands.plan_text import model_table

    for line in aligned(model_table(model_rows())):
        click.echo(line)
    return exit_codes.PASS


@click.command()
@click.argument("name")
def pull(name: str) -> int:
    """Fetch, verify and convert the model NAME ahead of its use."""
    from engine.backend import require_backend

    require_backend()
    from engine.models.registry import pull as fetch
    from harness.running.progress import fetching_to

    click.echo(fetch(name, fetching_to(sys.stderr)(name)))
    return exit_codes.PASS
