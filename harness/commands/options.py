"""Options that several commands have, each written once."""

from __future__ import annotations

from pathlib import Path

import click

from harness.commands.places import DEFAULT_DB
from harness.planning.choices import DEFAULT_MODELS

FILE = click.Path(path_type=Path)

database = click.option("--db", type=FILE, default=DEFAULT_DB, help="eval database")
force = click.option(
    "--force", is_flag=True, help="verdicts also on a machine that is not clean; marked"
)
json_file = click.option("--json", "json_path", type=FILE, help="also write this JSON")
model = click.option(
    "--model", default=DEFAULT_MODELS[0], help="a name of `fm models`, hf:..., a path"
)
output = click.option("-o", "--output", type=FILE, help="file instead of the screen")
quiet = click.option("--quiet", is_flag=True, help="plain lines instead of a progress bar")
