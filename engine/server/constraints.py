"""The spellings of structured output, each read into the engine's one Constraint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.errors import RequestError
from engine.grammar.structures import MEMBERS
from engine.request import Constraint, ConstraintKind
from engine.server.body import parse_json
from engine.server.problem import HttpError
from engine.server.readers import (
    NULL,
    FieldError,
    Json,
    Reader,
    below,
    boolean,
    members,
    one_of,
    reads,
    record,
    record_schema,
    shown,
    text,
)
from engine.server.tools import MAX_DESCRIPTION

MAX_REGEX = 65_536
MAX_GRAMMAR = 1_000_000


@reads({"type": ["object", "boolean"]})
def _schema(value: Any) -> Any:
    if not isinstance(value, dict | bool):
        raise FieldError(f"must be a JSON Schema, not {shown(value)}")
    return value


@reads({"type": ["object", "boolean", "string"]}, is_loose=True)
def _schema_or_text(value: Any) -> Any:
    """Take a JSON Schema, or the JSON text of one."""
    if isinstance(value, str):
        try:
            value = parse_json(value, "the schema")
        except HttpError as error:
            raise FieldError(f"is no schema: {error.message}") from None
    return _schema(value)


TAG: Json = {
    "type": "object",
    "properties": {name: {} for name in MEMBERS},
    "additionalProperties": False,
}


@reads({"anyOf": [{"type": "string"}, TAG]}, is_loose=True)
def _tag(value: Any) -> Any:
    """Take structures in free text, or the JSON text of them."""
    if isinstance(value, str):
        try:
            value = parse_json(value, "the structural tag")
        except HttpError as error:
            raise FieldError(f"is no structural tag: {error.message}") from None
    return members(value, MEMBERS)


TAG_FORMAT: Json = {
    **TAG,
    "properties": {"type": {"const": "structural_tag"}, **TAG["properties"]},
    "required": ["type"],
}


def _is_tag(value: Any) -> bool:
    return isinstance(value, dict) and value.get("type") == "structural_tag"


def _tag_format(value: dict[str, Any]) -> Constraint:
    """Take structures in free text, whose members stand beside the type."""
    given = members(value, ("type", *MEMBERS))
    tag = {name: item for name, item in given.items() if name != "type"}
    return constraint_of("structural_tag", tag)


@reads({"type": "array", "minItems": 1, "items": {"type": "string"}})
def _choices(value: Any) -> list[str]:
    if not isinstance(value, list) or not value or not all(isinstance(v, str) for v in value):
        raise FieldError("must be a list of at least one text")
    return value


NAMED_SCHEMA = record(
    {
        "schema": _schema,
        "name": text(256),
        "description": text(MAX_DESCRIPTION),
        "strict": boolean,
    },
    ("schema",),
)
"""OpenAI's wrapping; what stands beside the schema changes nothing."""

SPELLINGS: Mapping[str, Reader] = {
    "json": _schema_or_text,
    "regex": text(MAX_REGEX),
    "choice": _choices,
    "grammar": text(MAX_GRAMMAR),
    "structural_tag": _tag,
}

KINDS = {
    "json": ConstraintKind.JSON_SCHEMA,
    "regex": ConstraintKind.REGEX,
    "choice": ConstraintKind.CHOICE,
    "grammar": ConstraintKind.LARK,
    "structural_tag": ConstraintKind.STRUCTURAL_TAG,
}

FORMATS = ("text", "json_object", "json_schema", "structural_tag")
FORMAT = record({"type": one_of(*FORMATS), "json_schema": NAMED_SCHEMA}, ("type",))


@reads(
    {
        "anyOf": [
            TAG_FORMAT,
            record_schema(
                {"type": {"enum": ["text", "json_object"]}, "json_schema": NULL}, ("type",)
            ),
            record_schema(
                {"type": {"const": "json_schema"}, "json_schema": NAMED_SCHEMA.schema},
                ("type", "json_schema"),
            ),
        ]
    }
)
def response_format(value: Any) -> Constraint | None:
    """Take OpenAI's response_format, or structures in free text; "text" constrains nothing.

    A schema is enforced whole or refused, whether it is strict or not.
    """
    if _is_tag(value):
        return _tag_format(value)
    given = FORMAT(value)
    kind, named = given["type"], given.get("json_schema")
    if kind != "json_schema" and named is not None:
        raise FieldError(f"goes with type json_schema, not {kind}", ".json_schema")
    if kind == "text":
        return None
    if kind == "json_object":
        return Constraint(kind=ConstraintKind.JSON_OBJECT)
    if named is None:
        raise FieldError("is missing", ".json_schema")
    return Constraint(kind=ConstraintKind.JSON_SCHEMA, value=named["schema"])


FLAT_FORMAT = record_schema(
    {"type": {"const": "json_schema"}, **NAMED_SCHEMA.schema["properties"]}, ("type",)
)
FLAT_FORMAT["required"] = ["type", "schema"]
FLAT_FORMAT["properties"]["schema"] = _schema.schema


@reads(
    {
        "anyOf": [
            TAG_FORMAT,
            FLAT_FORMAT,
            record_schema(
                {
                    "type": {"enum": ["text", "json_object"]},
                    **dict.fromkeys(NAMED_SCHEMA.schema["properties"], NULL),
                },
                ("type",),
            ),
        ]
    }
)
def _flat_format(value: Any) -> Constraint | None:
    """Take a response_format whose schema lies flat in it."""
    if _is_tag(value):
        return _tag_format(value)
    given = members(value, ("type", *NAMED_SCHEMA.schema["properties"]))
    kind = below(".type", one_of(*FORMATS), given.pop("type", None))
    if kind == "json_schema":
        named = NAMED_SCHEMA(given)
        return Constraint(kind=ConstraintKind.JSON_SCHEMA, value=named["schema"])
    for name in given:
        raise FieldError(f"goes with type json_schema, not {kind}", f".{name}")
    found: Constraint | None = response_format({"type": kind})
    return found


@reads({"const": "medium"})
def _verbosity(value: Any) -> str:
    if value != "medium":
        raise FieldError("must be medium or left out; the prompt decides")
    return "medium"


TEXT = record({"format": _flat_format, "verbosity": _verbosity})


@reads(TEXT.schema)
def text_format(value: Any) -> Constraint | None:
    """Take the `text` of a response: a response_format, but that the schema lies flat in it."""
    found: Constraint | None = TEXT(value).get("format")
    return found


@reads({"const": True})
def _on(value: Any) -> bool:
    if not boolean(value):
        raise FieldError("must be true or left out")
    return True


OUTPUTS = record({**SPELLINGS, "json_object": _on})


@reads(
    {
        **OUTPUTS.schema,
        "oneOf": [
            {"required": [name], "properties": {name: {"not": NULL}}}
            for name in OUTPUTS.schema["properties"]
        ],
    },
    is_loose=True,
)
def structured_outputs(value: Any) -> Constraint | None:
    """Take an object with one of json, json_object, regex, choice, grammar and structural_tag."""
    given = OUTPUTS(value)
    if len(given) != 1:
        raise FieldError(f"must hold exactly one of {', '.join((*SPELLINGS, 'json_object'))}")
    name, item = next(iter(given.items()))
    if name == "json_object":
        return Constraint(kind=ConstraintKind.JSON_OBJECT)
    return constraint_of(name, item)


def guided(name: str) -> Reader:
    """Take the value of one guided_* field."""
    spelling = SPELLINGS[name]

    @reads(spelling.schema, is_loose=spelling.is_loose)
    def read(value: Any) -> Constraint:
        return constraint_of(name, spelling(value))

    return read


def constraint_of(name: str, value: Any) -> Constraint:
    """Return the constraint of one spelling."""
    return Constraint(kind=KINDS[name], value=value)


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
