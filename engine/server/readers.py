"""Checks of one JSON value each: what a field may hold, how that is published, what it is taken as.

A reader and its JSON Schema are written together, so that the document at /openapi.json says what
the server does. A schema accepts all that its reader takes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any

Json = dict[str, Any]

NULL: Json = {"type": "null"}


@dataclass(frozen=True, slots=True)
class Reader:
    """Returns a value as it is taken; raises FieldError when it cannot be.

    Args:
        schema: a JSON Schema of what is taken.
        is_loose: whether the reader refuses some of what the schema accepts, since no schema says
            what a JSON text or a regular expression is.
    """

    take: Callable[[Any], Any]
    schema: Json
    is_loose: bool = False

    def __call__(self, value: Any) -> Any:
        """Read one value."""
        return self.take(value)


class FieldError(ValueError):
    """A value that cannot be taken.

    Args:
        message: what it must be.
        where: the place below the field, such as "[0].content".
    """

    def __init__(self, message: str, where: str = "") -> None:
        super().__init__(message)
        self.where = where


def reads(schema: Json, *, is_loose: bool = False) -> Callable[[Callable[[Any], Any]], Reader]:
    """Make a function a reader of what a schema describes."""
    return lambda take: Reader(take, schema, is_loose)


def below(where: str, reader: Callable[[Any], Any], value: Any) -> Any:
    """Read a value that lies inside another one; `where` says at which place."""
    try:
        return reader(value)
    except FieldError as error:
        raise FieldError(str(error), where + error.where) from None


@reads({"type": "boolean"})
def boolean(value: Any) -> bool:
    """Take true or false."""
    if not isinstance(value, bool):
        raise FieldError(f"must be true or false, not {shown(value)}")
    return value


@reads({"const": False})
def off(value: Any) -> bool:
    """Take false, of what is not there to be switched on."""
    if boolean(value):
        raise FieldError("is not served")
    return False


def whole(low: int, high: int) -> Reader:
    """Take a whole number; 5.0 and 1e3 are whole."""

    @reads({"type": "integer", "minimum": low, "maximum": high})
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

    @reads({"type": "number", "minimum": low, "maximum": high})
    def read(value: Any) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise FieldError(f"must be a number, not {shown(value)}")
        if not low <= value <= high:
            raise FieldError(f"must be between {low:g} and {high:g}, not {shown(value)}")
        return float(value)

    return read


def text(longest: int, *, may_be_empty: bool = True) -> Reader:
    """Take a text of at most `longest` characters."""
    shortest = {} if may_be_empty else {"minLength": 1}

    @reads({"type": "string", **shortest, "maxLength": longest})
    def read(value: Any) -> str:
        if not isinstance(value, str):
            raise FieldError(f"must be a text, not {shown(value)}")
        if not value and not may_be_empty:
            raise FieldError("must not be empty")
        if len(value) > longest:
            raise FieldError(f"must have at most {longest} characters, not {len(value)}")
        return value

    return read


def one_of(*choices: str) -> Reader:
    """Take one of a closed set of words."""

    @reads({"enum": list(choices)})
    def read(value: Any) -> str:
        if not isinstance(value, str) or value not in choices:
            raise FieldError(f"must be one of {', '.join(choices)}, not {shown(value)}")
        return value

    return read


def mapping(value: Any) -> Json:
    """Take an object, whatever it holds."""
    if not isinstance(value, dict):
        raise FieldError(f"must be an object, not {shown(value)}")
    return value


def members(value: Any, known: Collection[str]) -> Json:
    """Take an object with no other keys than `known`; members that are null are left out."""
    for key in mapping(value):
        if key not in known:
            raise FieldError(f"is not known; known: {', '.join(known)}", f".{key[:60]}")
    return {key: item for key, item in value.items() if item is not None}


def record(known: Mapping[str, Reader], required: Collection[str] = ()) -> Reader:
    """Take an object of these members; one that is null is as good as left out."""

    @reads(record_schema({name: reader.schema for name, reader in known.items()}, required))
    def read(value: Any) -> dict[str, Any]:
        given = members(value, tuple(known))
        for name in required:
            if name not in given:
                raise FieldError("is missing", f".{name}")
        return {name: below(f".{name}", known[name], item) for name, item in given.items()}

    return read


def record_schema(known: Mapping[str, Json], required: Collection[str] = ()) -> Json:
    """Return the schema of an object of these members alone; null is as good as leaving one out."""
    return {
        "type": "object",
        "properties": {
            name: schema if name in required else or_null(schema) for name, schema in known.items()
        },
        "required": list(required),
        "additionalProperties": False,
    }


def or_null(schema: Json) -> Json:
    """Return the schema of a member that may be null."""
    return {"anyOf": [schema, NULL]}


def listed(item: Reader, most: int, least: int = 0) -> Reader:
    """Take a list of values that `item` takes."""

    @reads({"type": "array", "minItems": least, "maxItems": most, "items": item.schema})
    def read(value: Any) -> list[Any]:
        given = items(value, most)
        if len(given) < least:
            raise FieldError(f"must hold at least {least}")
        return [below(f"[{index}]", item, member) for index, member in enumerate(given)]

    return read


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
