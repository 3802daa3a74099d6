"""Structures in free text, as a caller writes them: read, and checked before anything is compiled.

    {"structures": [{"begin": text, "schema": JSON Schema, "end": text, "strict": true}],
     "triggers": [text],         # each `begin` starts with one of them
     "at_least_one": false,      # the reply must hold a structure
     "stop_after_first": false,  # the reply ends behind the first structure
     "text": true,               # text may stand before, between and behind structures
     "document": null}           # instead, the reply may be one document of this schema

Free text holds no trigger except where a structure begins. Without `text` structures follow on one
another, with at most a line end between them; only then may there be a `document`, and a reply
is then not empty.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from engine.errors import SchemaError
from engine.grammar.document import Json, json_text
from engine.grammar.limits import GrammarLimits

FLAGS = {"at_least_one": False, "stop_after_first": False, "text": True}
"""Switches and what they are when left out."""

MEMBERS = ("structures", "triggers", *FLAGS, "document")


@dataclass(frozen=True, slots=True)
class Structure:
    """One structure.

    Args:
        place: JSON pointer of its schema in the constraint.
        strict: whether a schema that cannot be enforced is refused.
    """

    begin: str
    schema: Json
    end: str
    place: str
    strict: bool = True


@dataclass(frozen=True, slots=True)
class Structures:
    """A checked constraint.

    Args:
        triggers: none of them holds another one.
        document: None, or a structure without begin and end.
    """

    structures: tuple[Structure, ...]
    triggers: tuple[str, ...]
    at_least_one: bool
    stop_after_first: bool
    text: bool
    document: Structure | None

    def begun_by(self, trigger: str) -> tuple[int, ...]:
        """Return the structures that a trigger begins, by index."""
        return tuple(
            index
            for index, structure in enumerate(self.structures)
            if structure.begin.startswith(trigger)
        )


def read_structures(value: Any, limits: GrammarLimits) -> Structures:
    """Read the value of a STRUCTURAL_TAG constraint.

    Raises:
        SchemaError: a member is missing, unknown or of another type, or beyond a limit; a `begin`
            starts with no trigger, or a trigger holds another one. With a JSON pointer.
    """
    given = _members(value, MEMBERS, "")
    size = len(json_text(given).encode())
    if size > limits.max_schema_bytes:
        raise SchemaError(f"the structures take {size} bytes; {limits.max_schema_bytes} may", "")
    flags = {name: _flag(given, name, default, "") for name, default in FLAGS.items()}
    items = _list(given, "structures", limits.max_structures)
    if not items:
        raise SchemaError("structures is empty; give at least one", "/structures")
    structures = tuple(
        _structure(item, f"/structures/{index}", limits) for index, item in enumerate(items)
    )
    triggers = _triggers(given, limits)
    document = given.get("document")
    if document is not None and flags["text"]:
        raise SchemaError("a document goes with text false", "/document")
    if flags["text"]:
        _check_begins(structures, triggers)
    held = None if document is None else Structure("", document, "", "/document")
    return Structures(structures, triggers, document=held, **flags)


def _structure(item: Any, place: str, limits: GrammarLimits) -> Structure:
    given = _members(item, ("begin", "schema", "end", "strict"), place)
    if "schema" not in given:
        raise SchemaError(f"{place} has no schema", place)
    begin = _text(given.get("begin"), f"{place}/begin", limits)
    if not begin:
        raise SchemaError(f"{place}/begin is empty; a structure begins with a text", place)
    return Structure(
        begin,
        given["schema"],
        _text(given.get("end", ""), f"{place}/end", limits),
        f"{place}/schema",
        _flag(given, "strict", True, place),
    )


def _triggers(given: dict[str, Any], limits: GrammarLimits) -> tuple[str, ...]:
    """Return the triggers that count: of two with one beginning, the shorter comes first anyway."""
    items = _list(given, "triggers", limits.max_structures)
    texts = [_text(item, f"/triggers/{index}", limits) for index, item in enumerate(items)]
    if "" in texts:
        raise SchemaError("a trigger is empty", f"/triggers/{texts.index('')}")
    kept = [
        text
        for text in dict.fromkeys(texts)
        if not any(text != other and text.startswith(other) for other in texts)
    ]
    for text in kept:
        inner = next((other for other in kept if other != text and other in text), None)
        if inner is not None:
            raise SchemaError(
                f"trigger {text!r} holds the trigger {inner!r}, which would come first",
                f"/triggers/{texts.index(text)}",
            )
    return tuple(kept)


def _check_begins(structures: Iterable[Structure], triggers: tuple[str, ...]) -> None:
    for index, structure in enumerate(structures):
        if not structure.begin.startswith(triggers or ("\0",)):
            raise SchemaError(
                f"{structure.begin[:60]!r} starts with none of the triggers",
                f"/structures/{index}/begin",
            )


def _members(value: Any, names: tuple[str, ...], place: str) -> dict[str, Any]:
    where = place or "the constraint"
    if not isinstance(value, dict):
        raise SchemaError(f"{where} is of type {type(value).__name__}; give an object", place)
    unknown = next((name for name in value if name not in names), None)
    if unknown is not None:
        raise SchemaError(f"{where} has the unknown member {str(unknown)[:60]!r}", place)
    return value


def _list(given: dict[str, Any], name: str, most: int) -> list[Any]:
    items = given.get(name, [])
    if not isinstance(items, list | tuple):
        raise SchemaError(f"{name} is no list", f"/{name}")
    if len(items) > most:
        raise SchemaError(f"{name} has {len(items)} items; the limit is {most}", f"/{name}")
    return list(items)


def _text(value: Any, place: str, limits: GrammarLimits) -> str:
    if not isinstance(value, str):
        raise SchemaError(f"{place} is no text", place)
    size = len(value.encode())
    if size > limits.max_tag_bytes:
        raise SchemaError(f"{place} takes {size} bytes; the limit is {limits.max_tag_bytes}", place)
    return value


def _flag(given: dict[str, Any], name: str, default: bool, place: str) -> bool:
    value = given.get(name, default)
    if not isinstance(value, bool):
        raise SchemaError(f"{place}/{name} is neither true nor false", f"{place}/{name}")
    return value
