"""The spellings of structured output, each read into the engine's one Constraint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.errors import RequestError
from engine.grammar.structures import MEMBERS
from engine.request import Constraint, ConstraintKind
from engine.server.body import parse_json
from engine.server.problem import HttpError
from engine.server.readers import FieldError, Reader, below, boolean, members, one_of, shown, text

MAX_DESCRIPTION = 65_536

FORMATS = ("text", "json_object", "json_schema", "structural_tag")


def response_format(value: Any) -> Constraint | None:
    """Take OpenAI's response_format, or structures in free text; "text" constrains nothing.

    A schema is enforced whole or refused, whether it is strict or not.
    """
    if _is_tag(value):
        return _tag_format(value)
    given = members(value, ("type", "json_schema"))
    kind = below(".type", one_of(*FORMATS), given.get("type"))
    if kind != "json_schema" and "json_schema" in given:
        raise FieldError(f"goes with type json_schema, not {kind}", ".json_schema")
    if kind == "text":
        return None
    if kind == "json_object":
        return Constraint(kind=ConstraintKind.JSON_OBJECT)
    return Constraint(
        kind=ConstraintKind.JSON_SCHEMA,
        value=below(".json_schema", _named_schema, given.get("json_schema")),
    )


def text_format(value: Any) -> Constraint | None:
    """Take the `text` of a response: a response_format, but that the schema lies flat in it."""
    given = members(value, ("format", "verbosity"))
    if given.get("verbosity", "medium") != "medium":
        raise FieldError("must be medium or left out; the prompt decides", ".verbosity")
    return below(".format", _flat_format, given["format"]) if "format" in given else None


def structured_outputs(value: Any) -> Constraint | None:
    """Take an object with one of json, json_object, regex, choice, grammar and structural_tag."""
    given = members(value, (*SPELLINGS, "json_object"))
    if len(given) != 1:
        raise FieldError(f"must hold exactly one of {', '.join((*SPELLINGS, 'json_object'))}")
    name, item = next(iter(given.items()))
    if name == "json_object":
        if not below(".json_object", boolean, item):
            raise FieldError("must be true or left out", ".json_object")
        return Constraint(kind=ConstraintKind.JSON_OBJECT)
    return constraint_of(name, below(f".{name}", SPELLINGS[name], item))


def guided(name: str) -> Reader:
    """Take the value of one guided_* field."""

    def read(value: Any) -> Constraint:
        return constraint_of(name, SPELLINGS[name](value))

    return read


def constraint_of(name: str, value: Any) -> Constraint:
    """Return the constraint of one spelling."""
    return Constraint(kind=KINDS[name], value=value)


def _is_tag(value: Any) -> bool:
    return isinstance(value, dict) and value.get("type") == "structural_tag"


def _tag_format(value: dict[str, Any]) -> Constraint:
    """Take structures in free text, whose members stand beside the type."""
    given = members(value, ("type", *MEMBERS))
    tag = {name: item for name, item in given.items() if name != "type" and item is not None}
    return constraint_of("structural_tag", tag)


def _flat_format(value: Any) -> Constraint | None:
    if _is_tag(value):
        return _tag_format(value)
    given = members(value, ("type", *SCHEMA_MEMBERS))
    kind = below(".type", one_of(*FORMATS), given.pop("type", None))
    if kind == "json_schema":
        return Constraint(kind=ConstraintKind.JSON_SCHEMA, value=_named_schema(given))
    for name in given:
        raise FieldError(f"goes with type json_schema, not {kind}", f".{name}")
    return response_format({"type": kind})


def _schema(value: Any) -> Any:
    """Take a JSON Schema, or the JSON text of one."""
    if isinstance(value, str):
        try:
            value = parse_json(value, "the schema")
        except HttpError as error:
            raise FieldError(f"is no schema: {error.message}") from None
    if not isinstance(value, dict | bool):
        raise FieldError(f"must be a JSON Schema, not {shown(value)}")
    return value


def _tag(value: Any) -> Any:
    """Take structures in free text, or the JSON text of them."""
    if isinstance(value, str):
        try:
            value = parse_json(value, "the structural tag")
        except HttpError as error:
            raise FieldError(f"is no structural tag: {error.message}") from None
    return members(value, MEMBERS)


def _named_schema(value: Any) -> Any:
    given = members(value, SCHEMA_MEMBERS)
    if "schema" not in given:
        raise FieldError("is missing", ".schema")
    for name, reader in NOTES.items():
        if name in given:
            below(f".{name}", reader, given[name])
    schema = given["schema"]
    if not isinstance(schema, dict | bool):
        raise FieldError(f"must be a JSON Schema, not {shown(schema)}", ".schema")
    return schema


def _choices(value: Any) -> list[str]:
    if not isinstance(value, list) or not value or not all(isinstance(v, str) for v in value):
        raise FieldError("must be a list of at least one text")
    return value


NOTES: Mapping[str, Reader] = {
    "name": text(256),
    "description": text(MAX_DESCRIPTION),
    "strict": boolean,
}
"""What stands beside a schema and changes nothing."""

SCHEMA_MEMBERS = ("schema", *NOTES)

SPELLINGS: Mapping[str, Reader] = {
    "json": _schema,
    "regex": text(MAX_DESCRIPTION),
    "choice": _choices,
    "grammar": text(1_000_000),
    "structural_tag": _tag,
}

KINDS = {
    "json": ConstraintKind.JSON_SCHEMA,
    "regex": ConstraintKind.REGEX,
    "choice": ConstraintKind.CHOICE,
    "grammar": ConstraintKind.LARK,
    "structural_tag": ConstraintKind.STRUCTURAL_TAG,
}


def only_one(constraints: Mapping[str, Constraint | None]) -> tuple[str, Constraint] | None:
    """Return the one constraint among the fields that may hold one, with its field's name.

    Raises:
        RequestError: there are several.
    """
    found = [(name, item) for name, item in constraints.items() if item is not None]
    if len(found) > 1:
        names = " and ".join(name for name, _ in found)
        raise RequestError(f"{names} exclude each other; send one of them")
    return found[0] if found else None
