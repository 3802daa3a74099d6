"""The flags that choose a matrix, made from the fields of Choices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import click
from click.core import ParameterSource

from engine.errors import SettingError
from harness.choices import PRESETS, TARGETS, Choices

Command = Callable[..., int]

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


def refuse_choices(context: click.Context) -> None:
    """A resumed run goes on as planned: flags that would change the plan are an error."""
    for name in context.meta[CHOSEN]:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            flag = f"--{name.replace('_', '-')}"
            raise SettingError(f"--resume goes on as planned; drop {flag} or start a new run")
