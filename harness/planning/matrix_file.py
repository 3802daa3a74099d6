"""Matrix files: what the flags of `fm run` choose, written down in TOML.

`[run]` takes the names of the flags. A `[[cell]]` table is one more cell, by name, with settings
that differ from its own; a setting that is a list gives a cell for each value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from engine.errors import FmError, SettingError, UnknownNameError
from harness.cells.cell import load_cells
from harness.cells.sweep import Sweep, expanded, parse_sweep, split_names, with_lists
from harness.planning.choices import Choices
from harness.resources import cells_dir
from harness.toml_file import TomlFile, read_toml
from harness.workloads.workload import list_workloads

NOT_IN_FILES = frozenset({"base"})
"""Choices that are made on the command line alone: a commit says nothing another day."""

LISTS = tuple(item.name for item in fields(Choices) if isinstance(item.default, tuple))
TEXTS = ("preset", "target", "tag")


@dataclass(frozen=True, slots=True)
class MatrixFile:
    """What a file chooses.

    Args:
        values: fields of Choices that it sets.
        sweeps: what it sweeps, beside the lists of its cells.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    sweeps: tuple[Sweep, ...] = ()


def read_matrix_file(path: Path) -> MatrixFile:
    """Read a matrix file; every name in it is looked up.

    Raises:
        SettingError: something is wrong with it; the text names the file and the line.
    """
    file = read_toml(path)
    with file.locating():
        return _matrix_from(file)


def _matrix_from(file: TomlFile) -> MatrixFile:
    _check_words(file.table, ("run", "cell"), "the file")
    run, tables = file.table.get("run", {}), file.table.get("cell", [])
    if not isinstance(run, dict):
        raise SettingError(f"run is {run!r}; it must be a table, [run]")
    if not isinstance(tables, list) or not all(isinstance(item, dict) for item in tables):
        raise SettingError("cell must be a table for each cell, [[cell]]")
    known = [item.name for item in fields(Choices) if item.name not in NOT_IN_FILES]
    _check_words(run, (*known, "sweep"), "[run]")
    values = {name: _value(name, run[name]) for name in known if name in run}
    if "cells" in run or tables:
        named = [*values.get("cells", ()), *(name for item in tables for name in _cell(item))]
        values["cells"] = tuple(named)
    sweeps = tuple(_sweeps(run.get("sweep", {})))
    choices = Choices(**values)
    _look_up(choices)
    return MatrixFile(values, sweeps)


def _value(name: str, value: Any) -> Any:
    if name in LISTS:
        return _names(name, value)
    if name in TEXTS and not isinstance(value, str):
        raise SettingError(f"{name} is {value!r}; it must be a text")
    return value


def _names(name: str, value: Any) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise SettingError(f"{name} is {value!r}; it must be a list of texts")
    parts = [part for text in texts for part in split_names(text)]
    return expanded(parts) if name == "cells" else tuple(parts)


def _cell(table: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of one [[cell]] table."""
    _check_words(table, ("name", "settings"), "[[cell]]")
    name, settings = table.get("name"), table.get("settings", {})
    if not isinstance(name, str):
        raise SettingError(f"name of a [[cell]] is {name!r}; it must be a cell name")
    if not isinstance(settings, dict):
        raise SettingError(f"settings is {settings!r}; it must be a table")
    lists = {key: value if isinstance(value, list) else [value] for key, value in settings.items()}
    return tuple(found for part in expanded([name]) for found in with_lists(part, lists))


def _sweeps(table: Any) -> list[Sweep]:
    if not isinstance(table, dict) or not all(isinstance(item, list) for item in table.values()):
        raise SettingError("sweep must be a table of lists, e.g. { num_draft_tokens = [1, 2, 3] }")
    texts = {name: ",".join(map(_text, values)) for name, values in table.items()}
    return [parse_sweep(f"{name}={values}") for name, values in texts.items()]


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check_words(table: Mapping[str, Any], known: tuple[str, ...], place: str) -> None:
    for word in table:
        if word not in known:
            raise SettingError(f"unknown key {word!r} in {place}; known: {', '.join(known)}")


def _look_up(choices: Choices) -> None:
    """See that every name stands for something; errors quote it as it is written."""
    from engine.models.entry import find_entry

    catalogue = load_cells(cells_dir())
    for name in choices.cells:
        _quoting(name, lambda name: catalogue.get_all([name]))
    for name in choices.workloads:
        if name not in list_workloads():
            raise UnknownNameError("workload", name, list_workloads())
    for name in () if choices.is_remote else choices.models:
        _quoting(name, find_entry)


def _quoting(name: str, look_up: Callable[[str], object]) -> None:
    try:
        look_up(name)
    except FmError as error:
        if f"'{name}'" in str(error):
            raise
        raise SettingError(f"{name!r}: {error}") from error
