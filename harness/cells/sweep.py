"""Sweeps: one name or flag that stands for several cells.

`batch{1,2,4}` is a cell for each value in braces, and `num_draft_tokens=1,2,3` replaces each cell
that has the setting's mechanism by one for each value. What comes out are ordinary cell names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from engine.errors import SettingError
from harness.cells.name import CellName, parse_cell_name
from harness.cells.settings import MAX_SWEPT, OWNERS, Settings, combinations, spelled

_BRACES = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True, slots=True)
class Sweep:
    """A setting and the values it takes in turn, as they are spelled."""

    name: str
    values: tuple[str, ...]


def split_names(text: str) -> tuple[str, ...]:
    """Return the names of a list: commas part them, but not within braces."""
    return tuple(part.strip() for part in re.split(r",(?![^{}]*\})", text))


def expanded(names: Iterable[str]) -> tuple[str, ...]:
    """Return names with every choice among values in braces written out; others stay as they are.

    Raises:
        SettingError: braces that do not close, hold nothing or give too many names.
    """
    return tuple(name for text in names for name in _expand(text))


def parse_sweep(text: str) -> Sweep:
    """Read `name=value,value`; FmError says what is wrong with it."""
    name, sign, values = text.partition("=")
    if not sign or not values.strip():
        raise SettingError(f"sweep {text!r} has no values; write e.g. num_draft_tokens=1,2,3")
    spellings = [spelled(name.strip(), value.strip()) for value in values.split(",")]
    return Sweep(name.strip(), tuple(dict.fromkeys(spellings)))


def swept(names: Sequence[str], sweeps: Sequence[Sweep]) -> tuple[str, ...]:
    """Return cell names with those that a sweep speaks of replaced by one for each value.

    Several sweeps give every combination. A cell without the mechanism of a setting stays as it is.

    Raises:
        FmError: a name is wrong, sets a swept setting itself, or no cell has the mechanism.
    """
    if not sweeps:
        return tuple(names)
    keys = [parse_cell_name(name) for name in names]
    for sweep in sweeps:
        if [item.name for item in sweeps].count(sweep.name) > 1:
            raise SettingError(f"{sweep.name} is swept twice; name it once, with all its values")
        if not any(_is_for(sweep.name, key) for key in keys):
            owner = OWNERS[sweep.name]
            raise SettingError(f"{sweep.name} is swept, and no cell has {owner}; name one that has")
    lists = {sweep.name: sweep.values for sweep in sweeps}
    return tuple(dict.fromkeys(name for key in keys for name in _variants(key, lists)))


def with_lists(name: str, lists: Mapping[str, Sequence[object]]) -> tuple[str, ...]:
    """Return the names of a cell with settings that are lists, one for each choice."""
    key = parse_cell_name(name)
    return tuple(_set(key, chosen) for chosen in combinations(lists))


def _variants(key: CellName, lists: Mapping[str, Sequence[object]]) -> list[str]:
    own = {name: values for name, values in lists.items() if _is_for(name, key)}
    return [_set(key, chosen) for chosen in combinations(own)]


def _is_for(setting: str, key: CellName) -> bool:
    """True for a cell with the setting's mechanism; settings of all cells are for ours alone."""
    owner = OWNERS[setting]
    return key.has(owner) if owner else not key.is_peer


def _set(key: CellName, chosen: Settings) -> str:
    """Return the name with settings added, checked as every name is."""
    for name, _ in chosen:
        if name in dict(key.settings):
            raise SettingError(f"cell {str(key)!r} sets {name}, which is swept; drop one of them")
    settings = tuple(sorted((*key.settings, *chosen)))
    return str(parse_cell_name(str(replace(key, settings=settings))))


def _expand(text: str) -> list[str]:
    parts = _BRACES.split(text)
    if any(mark in part for part in parts[::2] for mark in "{}"):
        raise SettingError(f"cell {text!r} has braces that do not close; write e.g. batch{{1,2,4}}")
    choices = [[value.strip() for value in part.split(",")] for part in parts[1::2]]
    if not all(value for values in choices for value in values):
        raise SettingError(f"cell {text!r} has an empty value in braces; write e.g. batch{{1,2,4}}")
    found: list[str] = []
    for chosen in product(*choices):
        if len(found) == MAX_SWEPT:
            raise SettingError(f"cell {text!r} gives more than {MAX_SWEPT} cells; shorten it")
        between = (*chosen, "")
        found.append("".join(map("".join, zip(parts[::2], between, strict=True))))
    return found
