"""`fm models` and `fm pull`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from harness import exit_codes

if TYPE_CHECKING:
    from engine.models.registry import ModelRow

HEADINGS = ("name", "size", "here", "licence", "source", "drafters")


@click.command()
def models() -> int:
    """List the models known by name."""
    from engine.models.registry import model_rows
    from harness.commands.columns import aligned

    for line in aligned([HEADINGS, *map(_shown, model_rows())]):
        click.echo(line)
    return exit_codes.PASS


@click.command()
@click.argument("name")
def pull(name: str) -> int:
    """Fetch, verify and convert the model NAME ahead of its use."""
    from engine.backend import require_backend

    require_backend()
    from engine.models.registry import pull as fetch
    from harness.downloads import fetching_to

    click.echo(fetch(name, fetching_to(sys.stderr)(name)))
    return exit_codes.PASS


def _shown(row: ModelRow) -> tuple[str, ...]:
    size = "?" if row.size_bytes is None else f"{row.size_bytes / 1e6:,.0f} MB"
    return (
        row.name,
        size if row.size_bytes != 0 else "made here",
        "yes" if row.cached else "no",
        row.licence,
        row.source,
        ", ".join(row.drafters),
    )
