"""The `fm` command line: every command is thin, and every error is one line.

What a command needs is imported when it runs, so that `fm --help` is quick.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
from click.core import ParameterSource

from engine.config import EngineConfig
from engine.errors import FmError, SettingError
from engine.server.settings import ServerConfig
from harness.choices import DEFAULT_MODELS, PRESETS, TARGETS, Choices
from harness.flags import chosen_settings, setting_flags
from harness.serve_flags import (
    CACHE_FLAGS,
    DRAFT_FLAGS,
    ENGINE_FLAGS,
    SERVED_ROWS,
    SERVER_FLAGS,
)

if TYPE_CHECKING:
    from harness.session import Concluded

Command = Callable[..., int]

EXIT_OK = 0
EXIT_PROBLEM = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

DEFAULT_DB = Path("results/fm.db")
DEFAULT_REPORTS = Path("reports")

QUIET_LIBRARIES = {
    "TRANSFORMERS_VERBOSITY": "error",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Keeps the advice of libraries out of our output; a value that is set already is kept."""

LISTS = {
    "cells": "cells, words in any order: serial, batch4, spec+grammar, mlx-lm, ...",
    "models": "models: names that `fm models` lists, hf:OWNER/REPO, or paths",
    "workloads": "workloads to run the cells on",
}


NUMBERS = {"blocks": int, "prompts": int, "max_tokens": int, "temperature": float, "seed": int}

CHOSEN = "fm.chosen"
"""Key of the choices in a click context: flag name -> value."""


def _keep(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    """Keep one choice for `choices_of`, so that commands do not list every flag again."""
    name = str(parameter.name)
    kept = tuple(part.strip() for part in value.split(",")) if name in LISTS else value
    context.meta.setdefault(CHOSEN, {})[name] = kept


def choices_of(context: click.Context) -> Choices:
    """Return the choices of a command with matrix_options; FmError names one that is wrong.

    A target that is a server is asked for its model where none is named.
    """
    chosen = Choices(**context.meta[CHOSEN])
    is_named = context.get_parameter_source("models") is ParameterSource.COMMANDLINE
    if not chosen.is_remote or is_named:
        return chosen
    from harness.remote_target import only_model

    return replace(chosen, models=(only_model(chosen.target),))


def matrix_options(command: Command) -> Command:
    """Add the flags that choose a matrix, made from the fields of Choices."""
    known = {item.name: item for item in fields(Choices)}
    texts = {
        **LISTS,
        "preset": f"how much to measure: {', '.join(PRESETS)}",
        "target": f"what runs the cells: {', '.join(TARGETS)}, or a server's URL",
    }
    texts |= {name: known[name].metadata["help"] for name in NUMBERS}
    for name, text in reversed(texts.items()):
        default: Any = known[name].default
        flag = click.option(
            f"--{name.replace('_', '-')}",
            type=NUMBERS.get(name, str),
            default=",".join(default) if name in LISTS else default,
            help=text,
            callback=_keep,
            expose_value=False,
        )
        command = flag(command)
    return command


@click.group(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(package_name="feature-matrix", prog_name="fm")
def cli() -> None:
    """Measure what each inference feature, and each combination, costs or buys."""


@cli.command()
@matrix_options
@click.option("--db", type=click.Path(path_type=Path), default=DEFAULT_DB, help="eval database")
@click.option(
    "--out", type=click.Path(path_type=Path), default=DEFAULT_REPORTS, help="folder for reports"
)
@click.option("--resume", metavar="RUN", help="go on with a run: its id, or latest")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="also write this JSON")
@click.option("--quiet", is_flag=True, help="plain lines instead of a progress bar")
@click.pass_context
def run(
    context: click.Context,
    db: Path,
    out: Path,
    resume: str | None,
    json_path: Path | None,
    quiet: bool,
) -> int:
    """Run cells on workloads, store what was seen, judge it and write the report."""
    if resume is not None:
        _refuse_choices(context)
    chosen = choices_of(context)
    from engine.backend import require_backend
    from harness.session import Places, Session, matrix_of, stored_target

    matrix = matrix_of(chosen)
    require_backend()
    from harness.progress import fetching_to, progress_for
    from harness.targets import target_of

    target = chosen.target if resume is None else stored_target(db, resume)
    progress = progress_for(sys.stderr, quiet)
    session = Session(
        target=target_of(target, progress.note),
        places=Places(db=db, reports=out, json=json_path),
        progress=progress,
        fetching=fetching_to(sys.stderr),
    )
    concluded = session.start(matrix) if resume is None else session.resume(resume)
    _show(concluded, quiet)
    return concluded.exit_code


@cli.command()
@matrix_options
@click.pass_context
def plan(context: click.Context) -> int:
    """Show what `fm run` would run with the same flags, and why some of it would not."""
    from harness.plan_text import plan_lines
    from harness.session import checked, matrix_of
    from harness.targets import target_of

    chosen = choices_of(context)
    matrix = matrix_of(chosen)
    if chosen.is_remote:
        with closing(target_of(chosen.target, _say)) as target:
            for model in chosen.models:
                target.open(model)
                matrix = checked(matrix, model, target)
    for line in plan_lines(matrix):
        click.echo(line)
    return EXIT_OK


@cli.command()
@click.argument("run", default="latest")
@click.option("--format", "form", default="md", help="md or json")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="file instead of the screen")
@click.option("--db", type=click.Path(path_type=Path), default=DEFAULT_DB, help="eval database")
def report(run: str, form: str, output: Path | None, db: Path) -> int:
    """Write the report of a stored RUN (an id, its beginning, or latest) again."""
    from engine.errors import UnknownNameError
    from harness.report import build_report, to_json, to_markdown, write_report
    from harness.store import EvalStore

    writers = {"md": to_markdown, "json": to_json}
    if form not in writers:
        raise UnknownNameError("format", form, writers)
    with EvalStore.open_existing(db) as store:
        text = writers[form](build_report(store.load_run(store.find_run(run).run_id)))
    if output is None:
        click.echo(text, nl=False)
    else:
        write_report(output, text)
        click.echo(f"report: {output}")
    return EXIT_OK


@cli.command()
@click.option("--model", default=DEFAULT_MODELS[0], help="a name of `fm models`, hf:..., a path")
@setting_flags(EngineConfig, ENGINE_FLAGS, {"max_rows": SERVED_ROWS})
@setting_flags(ServerConfig, SERVER_FLAGS)
@click.pass_context
def serve(context: click.Context, model: str) -> int:
    """Serve a model over HTTP, the way OpenAI's API is spoken."""
    settings = {"api_key": os.environ.get("FM_API_KEY") or None}
    server = ServerConfig(**settings | chosen_settings(context, ServerConfig))
    from engine.backend import require_backend
    from engine.server.model_ids import check_ids
    from harness.opening import engine_config, open_engine, served_name

    config, name = engine_config(chosen_settings(context, EngineConfig)), served_name(model)
    check_ids(name, config)
    require_backend()
    from engine.server import listen

    listen.log_to_stderr(server.log_level)
    listen.serve(server, name, lambda: open_engine(model, config), _say)
    return EXIT_OK


@cli.command()
@click.argument("prompt")
@click.option("--model", default=DEFAULT_MODELS[0], help="a name of `fm models`, hf:..., a path")
@click.option("--schema", type=click.Path(path_type=Path), help="JSON Schema the reply must meet")
@click.option("--max-tokens", type=int, default=256, help="most tokens of the reply")
@click.option("--temperature", type=float, default=0.0, help="0 takes likeliest tokens")
@click.option("--seed", type=int, default=0, help="of the draws")
@click.option(
    "--reasoning/--no-reasoning",
    default=None,
    help="whether the model reasons first, if it can; as its template says, or not with --schema",
)
@setting_flags(EngineConfig, {**DRAFT_FLAGS, **CACHE_FLAGS})
@click.pass_context
def generate(
    context: click.Context,
    prompt: str,
    model: str,
    schema: Path | None,
    max_tokens: int,
    temperature: float,
    seed: int,
    reasoning: bool | None,
) -> int:
    """Answer one PROMPT: text as it comes; reasoning, and what it took, on standard error."""
    from engine.backend import require_backend
    from engine.request import SamplingParams
    from harness import generate as shell
    from harness.opening import engine_config, open_engine

    constraint = None if schema is None else shell.read_schema(schema)
    sampling = SamplingParams(temperature=temperature, seed=seed)
    config = engine_config(chosen_settings(context, EngineConfig))
    require_backend()
    engine = open_engine(model, config)
    request = shell.request_for(engine.model, prompt, max_tokens, sampling, constraint, reasoning)
    return shell.generate(engine, request, sys.stdout, sys.stderr)


@cli.command()
def models() -> int:
    """List the models known by name."""
    from engine.models.registry import model_rows
    from harness.plan_text import aligned, model_table

    for line in aligned(model_table(model_rows())):
        click.echo(line)
    return EXIT_OK


@cli.command()
@click.argument("name")
def pull(name: str) -> int:
    """Fetch, verify and convert the model NAME ahead of its use."""
    from engine.backend import require_backend

    require_backend()
    from engine.models.registry import pull as fetch
    from harness.progress import fetching_to

    click.echo(fetch(name, fetching_to(sys.stderr)(name)))
    return EXIT_OK


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="for scripts")
def doctor(as_json: bool) -> int:
    """Say which device, BLAS, threads, memory and versions are used, and what is missing."""
    import json

    from harness.doctor import examine

    found = examine()
    for line in [json.dumps(found.as_dict(), indent=2)] if as_json else found.lines():
        click.echo(line)
    return EXIT_OK if found.is_healthy else EXIT_PROBLEM


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit: 2 for every error of the caller, one line on standard error."""
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
        return _complain(f"{error.format_message().rstrip('.')}; see fm --help")
    except FmError as error:
        return _complain(str(error))
    except (KeyboardInterrupt, click.Abort):
        click.echo("fm: interrupted", err=True)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has stopped; Python must not complain about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK
    return int(code or EXIT_OK)


def _complain(message: str) -> int:
    click.echo(f"fm: {' '.join(message.split())}", err=True)
    return EXIT_USAGE


def _say(line: str) -> None:
    click.echo(f"fm: {line}", err=True)


def _refuse_choices(context: click.Context) -> None:
    """A resumed run goes on as planned: flags that would change the plan are an error."""
    for name in context.meta[CHOSEN]:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            flag = f"--{name.replace('_', '-')}"
            raise SettingError(f"--resume goes on as planned; drop {flag} or start a new run")


def _show(concluded: Concluded, quiet: bool) -> None:
    """Print the composition tables and where everything is."""
    from rich.console import Console

    from harness.report import plain_report, print_report

    if concluded.report is not None:
        if quiet or not sys.stdout.isatty():
            click.echo(plain_report(concluded.report), nl=False)
        else:
            print_report(concluded.report, Console())
    for note in concluded.notes:
        click.echo(note)
    if concluded.exit_code == EXIT_INTERRUPTED:
        click.echo(f"fm: run {concluded.run_id} was interrupted", err=True)


if __name__ == "__main__":
    main()
