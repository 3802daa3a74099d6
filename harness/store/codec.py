"""Rows to column values and back: booleans as 0/1, containers as JSON, never a NaN.

The same values serve the database and the spool files, so a spooled row is the stored row.
"""

from __future__ import annotations

import json
import math
import numbers
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeAlias, TypeVar

from harness.store.connection import StoreError

T = TypeVar("T")

Column: TypeAlias = int | float | str | None
"""What a cell of a table, or a value of a spool line, can be."""

_TEXT_INTEGERS = frozenset({"seed"})
"""Columns whose integers use all 64 unsigned bits, one more than SQLite's INTEGER has."""

Reader = Callable[[Any], Any]
"""Makes the value of a field of what its column holds, which is not NULL."""

_PLANS: dict[type[Any], tuple[tuple[str, str, Reader | None], ...]] = {}
"""Filled by _plan: resolving the types of a class takes longer than writing or reading a row."""


def encode(row: Any) -> dict[str, Column]:
    """Return the column values of a row dataclass, by column name."""
    return {column: _column(name, getattr(row, name)) for name, column, _ in _plan(type(row))}


def decode(kind: type[T], columns: Mapping[str, Any]) -> T:
    """Build a row dataclass from column values.

    Extra columns are left aside, and what is missing takes its default: another version wrote it.
    """
    return decoder(kind, list(columns))(list(columns.values()))


def decoder(kind: type[T], columns: Sequence[str]) -> Callable[[Sequence[Any]], T]:
    """Return what builds a row dataclass, as decode does, from the values of these columns."""
    places = {column: place for place, column in enumerate(columns)}
    parts = [
        (name, places[column], reader) for name, column, reader in _plan(kind) if column in places
    ]
    readers = [(name, reader) for name, _, reader in parts if reader is not None]

    def read(values: Sequence[Any]) -> T:
        found = {name: values[place] for name, place, _ in parts}
        for name, reader in readers:
            if found[name] is not None:
                found[name] = reader(found[name])
        return kind(**found)

    return read


def column_names(kind: type[Any]) -> tuple[str, ...]:
    """Return the columns of a row dataclass."""
    return tuple(column for _, column, _ in _plan(kind))


def clean(value: Any) -> Any:
    r"""Return a JSON-like value without NaN, infinities or lone surrogates.

    Non-finite floats become None; numpy scalars become Python numbers; a surrogate that UTF-8
    cannot carry becomes its escape, e.g. \udc80.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(clean(key)): clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        items = [clean(item) for item in value]
        return sorted(items, key=repr) if isinstance(value, set | frozenset) else items
    return clean(str(value))


def to_json(value: Any) -> str:
    """Return compact JSON with sorted keys that a strict parser takes."""
    return json.dumps(
        clean(value),
        ensure_ascii=False,
        allow_nan=False,
        sort_keys=True,
        separators=(",", ":"),
    )


def _column(name: str, value: Any) -> Column:
    plain = clean(value)
    if isinstance(plain, bool):
        return int(plain)
    if isinstance(plain, list | dict):
        return to_json(plain)
    if name in _TEXT_INTEGERS and plain is not None:
        return str(plain)
    return typing.cast(Column, plain)


def _reader(name: str, hint: Any) -> Reader | None:
    """Return how a column becomes the value of a field, None where it is that already."""
    kind = _bare(hint)
    if kind is tuple:
        return lambda column: () if column == "[]" else tuple(loaded(name, column, list))
    if kind is Mapping:
        return lambda column: loaded(name, column, dict)
    if kind is bool:
        return bool
    return int if name in _TEXT_INTEGERS else None


def loaded(name: str, column: Any, kind: type[Any]) -> Any:
    """Return the list or object that a column holds as JSON; StoreError for anything else."""
    try:
        value = json.loads(column)
    except (ValueError, TypeError, RecursionError):
        value = None
    if not isinstance(value, kind):
        raise StoreError(
            f"a row has {str(column)[:40]!r} as {name}, which fm never writes; restore the "
            "database from a copy"
        )
    return value


def _plan(kind: type[Any]) -> tuple[tuple[str, str, Reader | None], ...]:
    """Return field name, column name and reader of each field of a row dataclass."""
    if kind not in _PLANS:
        hints = typing.get_type_hints(kind)
        _PLANS[kind] = tuple(
            (
                item.name,
                item.metadata.get("column", item.name),
                _reader(item.name, hints[item.name]),
            )
            for item in fields(kind)
        )
    return _PLANS[kind]


def _bare(hint: Any) -> Any:
    """Return the class behind a hint: tuple of `tuple[int, ...] | None`, str of a Literal."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        hint = next(part for part in typing.get_args(hint) if part is not type(None))
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return str
    return origin or hint
