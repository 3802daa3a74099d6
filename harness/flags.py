"""Command line flags made from the fields of a settings dataclass: default, help and type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from typing import Any

import click
from click.core import ParameterSource

Command = Callable[..., int]


def setting_flags(
    config: type, names: Mapping[str, str], defaults: Mapping[str, Any] | None = None
) -> Callable[[Command], Command]:
    """Return a decorator that adds a flag for each named field of `config`.

    The values are kept in the click context (`chosen_settings`), so that commands do not list
    every flag again.

    Args:
        names: flag, without its dashes -> field.
        defaults: of fields that have another default in this command.
    """
    others = defaults or {}
    known = {item.name: item for item in fields(config)}

    def decorate(command: Command) -> Command:
        for flag, name in reversed(list(names.items())):
            command = _option(config, flag, known[name], others)(command)
        return command

    return decorate


def chosen_settings(context: click.Context, config: type) -> dict[str, Any]:
    """Return the flags of `config` that were given, or have a default of the command, by field."""
    found: dict[str, Any] = context.meta.get(_key(config), {})
    return found


def _option(
    config: type, flag: str, item: Field[Any], defaults: Mapping[str, Any]
) -> Callable[[Command], Command]:
    def keep(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        source = context.get_parameter_source(str(parameter.name))
        if source is not ParameterSource.DEFAULT or item.name in defaults:
            context.meta.setdefault(_key(config), {})[item.name] = value

    is_switch, is_list = item.type == "bool", "tuple" in str(item.type)
    own = item.default if item.default is not MISSING else None
    default = defaults.get(item.name, own)
    choices = item.metadata.get("choices")
    help = item.metadata["help"] + (f" ({', '.join(map(str, choices))})" if choices else "")
    return click.option(
        # A switch that is on unless told otherwise needs a way to tell it.
        f"--{flag}/--no-{flag}" if is_switch and default else f"--{flag}",
        type=_type_of(item),
        is_flag=is_switch,
        multiple=is_list,
        default=default,
        show_default=default not in (None, ()) and not is_switch,
        help=help,
        callback=keep,
        expose_value=False,
    )


def _type_of(item: Field[Any]) -> Any:
    """Return what click reads; bounds are checked where the config is made."""
    kinds = {"bool": bool, "int": int, "float": float}
    return next((kind for name, kind in kinds.items() if name in str(item.type)), str)


def _key(config: type) -> str:
    return f"fm.flags.{config.__name__}"
