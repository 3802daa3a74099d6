"""Policies: TOML files that say what fails a gate, laid over the one that fm brings along."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from engine.config import check_settings, setting
from engine.errors import FmError, SettingError, UnknownNameError
from harness.cells.name import parse_cell_name
from harness.judging import gates
from harness.policy.counters import COUNTERS
from harness.policy.measures import METRICS
from harness.resources import policies_dir
from harness.toml_file import read_toml

T = TypeVar("T")

DEFAULT_POLICY = "default"
MODES = ("hard", "advisory", "off")
FLOOR_METRICS = ("ratio", "tok_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRule:
    """What becomes of a metric that is worse than the base's."""

    mode: str = setting("hard", "whether it decides", choices=MODES)
    delta: float = setting(
        0.0, "relative change for the worse that is no regression", low=0, high=1
    )
    ignore_below: float = setting(0.0, "change in its own unit that is none either", low=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterRule:
    """What becomes of a counter that is worse than the base's."""

    mode: str = setting("hard", "whether it decides", choices=MODES)
    tolerance: float = setting(0.0, "relative change for the worse that is allowed", low=0, high=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """What a cell of the run itself has to reach, whatever the base does.

    Args:
        metric: `ratio` to the cell without its last mechanism, in the same run, or `tok_s`.
        model, workload: "" for all.
    """

    cell: str = setting("", "name")
    metric: str = setting("ratio", "what has to be reached", choices=FLOOR_METRICS)
    at_least: float = setting(1.0, "the least that is allowed", low=0, high=1e9)
    model: str = setting("", "name, empty for every model")
    workload: str = setting("", "name, empty for every workload")
    mode: str = setting("hard", "whether it decides", choices=MODES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Everything a gate is told.

    Args:
        name: of the file, without its ending.
    """

    name: str
    require_base: bool = setting(False, "a run without a base is incomplete")
    family_error: float = setting(
        0.05, "chance of any false alarm on an unchanged build", low=1e-6, high=0.5
    )
    required: tuple[str, ...] = setting((), "correctness gates that must have passed")
    metrics: Mapping[str, MetricRule]
    counters: Mapping[str, CounterRule]
    floors: tuple[Floor, ...] = ()


def load_policy(named: str = DEFAULT_POLICY) -> Policy:
    """Return a policy that fm brings along, by name, or one of a file.

    Raises:
        UnknownNameError: there is neither.
        SettingError: the file is wrong; the text names file and line.
    """
    default = _read(policies_dir() / f"{DEFAULT_POLICY}.toml")
    if named == DEFAULT_POLICY:
        return default.policy(None)
    known = sorted(path.stem for path in policies_dir().glob("*.toml"))
    path = policies_dir() / f"{named}.toml" if named in known else Path(named)
    if not path.is_file():
        raise UnknownNameError("policy", named, [*known, "a path of a TOML file"])
    return _read(path).policy(default)


@dataclass(frozen=True, slots=True)
class _File:
    """A policy file as it was read."""

    path: Path
    text: str
    table: Mapping[str, Any]

    def policy(self, under: _File | None) -> Policy:
        """Return what the file says, and what the one under it says where it is silent."""
        below = {} if under is None else under.table
        try:
            return self._policy(below)
        except _PlacedError as error:
            line = _line_of(self.text, error.keys)
            raise SettingError(f"{self.path}:{line}: {error}") from None

    def _policy(self, below: Mapping[str, Any]) -> Policy:
        known = [item.name for item in fields(Policy) if item.name not in ("name", "floors")]
        _refuse_unknown(self.table, [*known, "floor"], ())
        plain = {**_plain(below), **_plain(self.table)}
        required = plain.get("required", [])
        if not isinstance(required, list) or set(required) - set(gates.ORDER):
            raise _PlacedError(
                f"required is {required!r}; it must be a list out of {', '.join(gates.ORDER)}",
                ("required",),
            )
        settings = {**plain, "required": tuple(required)}
        return _checked(
            Policy,
            {
                **settings,
                "name": self.path.stem,
                "metrics": self._rules("metrics", MetricRule, METRICS, below),
                "counters": self._rules("counters", CounterRule, COUNTERS, below),
                "floors": self._floors(below),
            },
            (),
        )

    def _rules(
        self, section: str, kind: type[T], names: Mapping[str, Any], below: Mapping[str, Any]
    ) -> dict[str, T]:
        table = self.table.get(section, {})
        if not isinstance(table, dict):
            raise _PlacedError(f"{section} is {table!r}; it must be a table", (section,))
        _refuse_unknown(table, names, (section,))
        rules = {}
        for name in names:
            own, under = table.get(name, {}), below.get(section, {}).get(name, {})
            if not isinstance(own, dict):
                raise _PlacedError(f"{name} is {own!r}; it must be a table", (section, name))
            _refuse_unknown(own, [item.name for item in fields(kind)], (section, name))  # type: ignore[arg-type]  # a dataclass
            rules[name] = _checked(kind, {**under, **own}, (section, name))
        return rules

    def _floors(self, below: Mapping[str, Any]) -> tuple[Floor, ...]:
        tables = self.table.get("floor", below.get("floor", []))
        if not isinstance(tables, list) or not all(isinstance(item, dict) for item in tables):
            raise _PlacedError("floor must be written as [[floor]]", ("floor",))
        floors = []
        for table in tables:
            _refuse_unknown(table, [item.name for item in fields(Floor)], ("floor",))
            floor = _checked(Floor, table, ("floor",))
            if not floor.cell:
                raise _PlacedError("a floor names no cell; add e.g. cell = 'serial'", ("floor",))
            floors.append(replace(floor, cell=_canonical(floor.cell)))
        return tuple(floors)


class _PlacedError(SettingError):
    """What is wrong with the value at a path of keys."""

    def __init__(self, message: str, keys: Sequence[str]) -> None:
        super().__init__(message)
        self.keys = tuple(keys)


def _canonical(name: str) -> str:
    """Return a cell's name as runs keep it: a floor that no cell can meet with is a slip."""
    try:
        return str(parse_cell_name(name))
    except FmError as error:
        raise _PlacedError(str(error), ("floor", "cell")) from None


def _read(path: Path) -> _File:
    file = read_toml(path)
    return _File(file.path, file.text, file.table)


def _plain(table: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: table[name] for name in ("require_base", "family_error", "required") if name in table
    }


def _refuse_unknown(
    table: Mapping[str, Any], known: Sequence[str] | Mapping[str, Any], keys: tuple[str, ...]
) -> None:
    for word in table:
        if word not in known:
            raise _PlacedError(f"unknown key {word!r}; known: {', '.join(known)}", (*keys, word))


def _checked(kind: type[T], values: Mapping[str, Any], keys: tuple[str, ...]) -> T:
    try:
        made = kind(**values)
        check_settings(made)
    except SettingError as error:
        wrong = str(error).partition(" ")[0]
        raise _PlacedError(str(error), (*keys, wrong)) from None
    return made


def _line_of(text: str, keys: Sequence[str]) -> int:
    """Return the line of a key: below the last of its tables that the file opens, else 1."""
    table: tuple[str, ...] = ()
    best, line = 0, 1
    for number, content in enumerate(text.splitlines(), start=1):
        header = re.match(r"\s*\[\[?\s*([^\]]+?)\s*\]", content)
        if header:
            table = tuple(part.strip(" '\"") for part in header.group(1).split("."))
            path = table
        else:
            named = re.match(r"\s*([\w.'\"-]+)\s*=", content)
            path = (*table, *named.group(1).split(".")) if named else ()
        shared = _shared(path, keys)
        if path and shared == len(path) and shared > best:
            best, line = shared, number
    return line


def _shared(path: Sequence[str], keys: Sequence[str]) -> int:
    """Return how many keys two paths begin with alike."""
    count = 0
    for one, other in zip(path, keys, strict=False):
        if one.strip("'\"") != other:
            break
        count += 1
    return count
