"""Checks of one JSON value each: what a field may hold, and what it is taken as."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import fields
from typing import Any

Reader = Callable[[Any], Any]
"""Returns a field's value as it is taken; raises FieldError when it cannot be."""


class FieldError(ValueError):
    """A value that cannot be taken.

    Args:
        message: what it must be.
        where: the place below the field, such as "[0].content".
    """

    def __init__(self, message: str, where: str = "") -> None:
        super().__init__(message)
        self.where = where


def below(where: str, reader: Reader, value: Any) -> Any:
    """Read a value that lies inside another one; `where` says at which place."""
    try:
        return reader(value)
    except FieldError as error:
        raise FieldError(str(error), where + error.where) from None


def boolean(value: Any) -> bool:
    """Take true or false."""
    if not isinstance(value, bool):
        raise FieldError(f"must be true or false, not {shown(value)}")
    return value


def whole(low: int, high: int) -> Reader:
    """Take a whole number; 5.0 and 1e3 are whole."""

    def read(value: Any) -> int:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or value != int(value):
            raise FieldError(f"must be a whole number, not {shown(value)}")
        if not low <= value <= high:
            raise FieldError(f"must be between {low} and {high}, not {shown(value)}")
        return int(value)

    return read


def number(low: float, high: float) -> Reader:
    """Take a number."""

    def read(value: Any) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise FieldError(f"must be a number, not {shown(value)}")
        if not low <= value <= high:
            raise FieldError(f"must be between {low:g} and {high:g}, not {shown(value)}")
        return float(value)

    return read


def text(longest: int) -> Reader:
    """Take a text of at most `longest` characters."""

    def read(value: Any) -> str:
        if not isinstance(value, str):
            raise FieldError(f"must be a text, not {shown(value)}")
        if len(value) > longest:
            raise FieldError(f"must have at most {longest} characters, not {len(value)}")
        return value

    return read


def one_of(*choices: str) -> Reader:
    """Take one of a closed set of words."""

    def read(value: Any) -> str:
        if not isinstance(value, str) or value not in choices:
            raise FieldError(f"must be one of {', '.join(choices)}, not {shown(value)}")
        return value

    return read


def members(value: Any, known: Collection[str]) -> dict[str, Any]:
    """Take an object with no other keys than `known`; members that are null are left out."""
    if not isinstance(value, dict):
        raise FieldError(f"must be an object, not {shown(value)}")
    for key in value:
        if key not in known:
            raise FieldError(f"is not known; known: {', '.join(known)}", f".{key[:60]}")
    return {key: item for key, item in value.items() if item is not None}


def items(value: Any, most: int) -> list[Any]:
    """Take a list of at most `most` items."""
    if not isinstance(value, list):
        raise FieldError(f"must be a list, not {shown(value)}")
    if len(value) > most:
        raise FieldError(f"must have at most {most} items, not {len(value)}")
    return value


def setting_of(config: type, name: str) -> Reader:
    """Take what a field of a settings dataclass takes, within its bounds."""
    item = next(item for item in fields(config) if item.name == name)
    if item.type == "bool":
        return boolean
    choices = item.metadata.get("choices")
    if choices is not None:
        return one_of(*choices)
    low, high = item.metadata["low"], item.metadata["high"]
    return number(low, high) if "float" in str(item.type) else whole(low, high)


def shown(value: Any) -> str:
    """Return a value short enough for a message."""
    names = {dict: "an object", list: "a list", type(None): "null"}
    if type(value) in names:
        return names[type(value)]
    if isinstance(value, str):
        return repr(value) if len(value) <= 40 else f"a text of {len(value)} characters"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if abs(value) < 10**20 else "a number of more than 20 digits"
