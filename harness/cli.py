"""The `fm` command line: every command is thin, and every error is one line.

What a command needs is imported when it runs, so that `fm --help` is quick.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from engine.errors import FmError
from harness import exit_codes
from harness.commands.compare import compare
from harness.commands.db import db
from harness.commands.doctor import doctor
from harness.commands.gate import gate
from harness.commands.generate import generate
from harness.commands.models import models, pull
from harness.commands.places import DISK_FULL, drop_output, say_full
from harness.commands.promote import promote
from harness.commands.report import report
from harness.commands.run import plan, run
from harness.commands.serve import serve

QUIET_LIBRARIES = {
    "TRANSFORMERS_VERBOSITY": "error",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Keeps the advice of libraries out of our output; a value that is set already is kept."""

COMMANDS: tuple[click.Command, ...] = (
    run,
    plan,
    report,
    promote,
    gate,
    compare,
    db,
    models,
    pull,
    doctor,
    serve,
    generate,
)
"""Every command, in no order: help lists them by name."""


JUDGING = ("gate", "run")
"""Commands whose exit code is a verdict; one cut short, since nobody reads on, has none."""


class _Commands(click.Group):
    """The commands; a closed pipe is met here, since click answers it with 1, a regression."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was named."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # Whoever read our output has stopped; Python must not complain about it at exit.
            for stream in (sys.stdout, sys.stderr):
                drop_output(stream)
            judges = ctx.invoked_subcommand in JUDGING
            return exit_codes.INTERRUPTED if judges else exit_codes.PASS


@click.group(
    cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "show_default": True}
)
@click.version_option(package_name="feature-matrix", prog_name="fm")
def cli() -> None:
    """Measure what each inference feature, and each combination, costs or buys."""


for command in COMMANDS:
    cli.add_command(command)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit: 2 for every error of the caller, one line on standard error.

    A bug of ours exits with 6, after its traceback.
    """
    for name, value in QUIET_LIBRARIES.items():
        os.environ.setdefault(name, value)
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character must not end a run.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    sys.exit(_run_command(arguments))


def _run_command(arguments: Sequence[str] | None) -> int:
    try:
        code = cli.main(arguments, prog_name="fm", standalone_mode=False)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        return _complain(f"{error.format_message().rstrip('.')}; see {_command(error)} --help")
    except FmError as error:
        return _complain(str(error))
    except (KeyboardInterrupt, click.Abort):
        click.echo("fm: interrupted", err=True)
        return exit_codes.INTERRUPTED
    except Exception as error:  # noqa: BLE001  # Python would exit with 1, a regression's verdict
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            drop_output()
            say_full(error)
        else:
            traceback.print_exc()
        return exit_codes.INCOMPLETE
    return int(code or exit_codes.PASS)


def _command(error: click.ClickException) -> str:
    """Return the command that was used wrongly, with its words."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    return "fm" if context is None else context.command_path


def _complain(message: str) -> int:
    click.echo(f"fm: {' '.join(message.split())}", err=True)
    return exit_codes.USAGE


if __name__ == "__main__":
    main()
