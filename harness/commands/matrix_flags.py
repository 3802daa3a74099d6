"""The flags that choose a matrix, made from the fields of Choices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from engine.errors import SettingError
from harness.cells.sweep import expanded, parse_sweep, split_names, swept
from harness.planning.choices import PRESETS, TARGETS, Choices

Command = Callable[..., int]

LISTS = {
    "cells": "cells, words in any order: serial, batch4, spec+grammar, mlx-lm, ...",
    "models": "models: names that `fm models` lists, hf:OWNER/REPO, or paths",
    "workloads": "workloads to run the cells on",
}


NUMBERS = {"blocks": int, "prompts": int, "max_tokens": int, "temperature": float, "seed": int}

MATRIX, SWEEP = "matrix", "sweep"
"""Flags that say choices in other words: a file of them, and settings of the cells."""

CHOSEN = "fm.chosen"
"""Key of the choices in a click context: flag name -> value."""


def _keep(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    """Keep one choice for `choices_of`, so that commands do not list every flag again."""
    name = str(parameter.name)
    kept = split_names(value) if name in LISTS else value
    context.meta.setdefault(CHOSEN, {})[name] = expanded(kept) if name == "cells" else kept


def choices_of(context: click.Context) -> Choices:
    """Return the choices of a command with matrix_options; FmError names one that is wrong.

    Flags that were given win over a matrix file, and that wins over defaults. A target that is a
    server is asked for its model where none is named.
    """
    from harness.planning.matrix_file import MatrixFile, read_matrix_file

    flags = dict(context.meta[CHOSEN])
    path, texts = flags.pop(MATRIX), flags.pop(SWEEP)
    file = MatrixFile() if path is None else read_matrix_file(path)
    given = {name: value for name, value in flags.items() if is_given(context, name)}
    chosen = Choices(**{**flags, **file.values, **given})
    sweeps = [parse_sweep(text) for text in texts] or file.sweeps
    chosen = replace(chosen, cells=swept(chosen.cells, sweeps))
    if not chosen.is_remote or "models" in file.values or "models" in given:
        return chosen
    from harness.targets.remote import only_model

    return replace(chosen, models=(only_model(chosen.target),))


def is_given(context: click.Context, name: str) -> bool:
    """Return whether a flag stands on the command line."""
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def matrix_options(command: Command, usual: Mapping[str, Any] | None = None) -> Command:
    """Add the flags that choose a matrix, made from the fields of Choices.

    Args:
        usual: defaults of this command in place of those of Choices.
    """
    known = {item.name: item for item in fields(Choices)}
    texts = {
        **LISTS,
        "preset": f"how much to measure: {', '.join(PRESETS)}",
        "tag": known["tag"].metadata["help"],
        "target": f"what runs the cells: {', '.join(TARGETS)}, or a server's URL",
    }
    texts |= {name: known[name].metadata["help"] for name in NUMBERS}
    for name, text in reversed(texts.items()):
        default: Any = (usual or {}).get(name, known[name].default)
        flag = click.option(
            f"--{name.replace('_', '-')}",
            type=NUMBERS.get(name, str),
            default=",".join(default) if name in LISTS else default,
            show_default=default != "",
            help=text,
            callback=_keep,
            expose_value=False,
        )
        command = flag(command)
    return _in_other_words(command)


def _in_other_words(command: Command) -> Command:
    sweep = click.option(
        f"--{SWEEP}",
        multiple=True,
        metavar="SETTING=V,V",
        help="a cell for each value, in place of the cells that have the setting",
        callback=_keep,
        expose_value=False,
    )
    matrix = click.option(
        f"--{MATRIX}",
        type=click.Path(path_type=Path),
        help="TOML file with what these flags say; flags that are given win",
        callback=_keep,
        expose_value=False,
    )
    return matrix(sweep(command))


def refuse_choices(context: click.Context) -> None:
    """A resumed run goes on as planned: flags that would change the plan are an error."""
    for name in context.meta[CHOSEN]:
        if is_given(context, name):
            flag = f"--{name.replace('_', '-')}"
            raise SettingError(f"--resume goes on as planned; drop {flag} or start a new run")
