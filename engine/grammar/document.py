"""A JSON Schema as it was given: is it JSON, is it within limits, is it a schema at all."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from jsonschema import (
    Draft4Validator,
    Draft6Validator,
    Draft7Validator,
    Draft201909Validator,
    Draft202012Validator,
)
from jsonschema.exceptions import ValidationError, best_match

from engine.document import is_deeper
from engine.errors import SchemaError
from engine.grammar.limits import GrammarLimits

Json = Any
"""A value of JSON: dict, list, str, int, float, bool or None."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """What differs between the versions of JSON Schema.

    Args:
        validator_class: jsonschema's class for it.
        id_keyword: the keyword that names a schema as a resource.
        is_ref_alone: `$ref` hides the `$id` beside it.
    """

    validator_class: Any
    id_keyword: str = "$id"
    is_ref_alone: bool = False


DIALECTS: dict[str, Dialect] = {
    "http://json-schema.org/draft-04/schema": Dialect(Draft4Validator, "id", True),
    "http://json-schema.org/draft-06/schema": Dialect(Draft6Validator, is_ref_alone=True),
    "http://json-schema.org/draft-07/schema": Dialect(Draft7Validator, is_ref_alone=True),
    "https://json-schema.org/draft/2019-09/schema": Dialect(Draft201909Validator),
    "https://json-schema.org/draft/2020-12/schema": Dialect(Draft202012Validator),
}
"""`$schema` without its fragment -> dialect."""

NEWEST = DIALECTS["https://json-schema.org/draft/2020-12/schema"]
"""The dialect of a schema that names none."""

MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords whose value maps free names to schemas."""


@dataclass(frozen=True, slots=True)
class SchemaDocument:
    """A schema that is valid in its dialect.

    Args:
        value: the schema, a private copy.
        text: `value` as compact JSON, properties in the order given.
    """

    value: bool | dict[str, Json]
    text: str
    dialect: Dialect


def load_document(value: object, limits: GrammarLimits) -> SchemaDocument:
    """Return `value` as a document.

    Raises:
        SchemaError: not JSON, beyond a limit, of an unknown dialect, or no schema of its dialect.
    """
    if not isinstance(value, dict | bool):
        raise SchemaError(
            f"the schema is of type {type(value).__name__}; give an object or a boolean", ""
        )
    check_depth(value, limits.max_depth)
    text = json_text(value)
    if len(text.encode()) > limits.max_schema_bytes:
        raise SchemaError(
            f"the schema takes {len(text.encode())} bytes; the limit is {limits.max_schema_bytes}",
            "",
        )
    copy = json.loads(text)
    dialect = _dialect(copy)
    _check_valid(copy, dialect.validator_class, limits)
    return SchemaDocument(copy, text, dialect)


def json_text(value: Json) -> str:
    """Return a constraint's value as compact JSON text; raises SchemaError where it has none."""
    try:
        text = json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise SchemaError(f"the constraint is not JSON: {error}", "") from error
    return text


def check_depth(value: Json, max_depth: int) -> None:
    """Raise SchemaError when containers are nested more than `max_depth` deep (or in a circle)."""
    if is_deeper(value, max_depth):
        raise SchemaError(
            f"the schema is nested deeper than the depth limit of {max_depth} levels", ""
        )


def pointer_of(path: Iterable[str | int]) -> str:
    """Return the JSON pointer of a path of keys and indices."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def _dialect(schema: Json) -> Dialect:
    name = schema.get("$schema") if isinstance(schema, dict) else None
    if name is None:
        return NEWEST
    found = DIALECTS.get(name.rstrip("#")) if isinstance(name, str) else None
    if found is None:
        raise SchemaError(
            f"$schema {name!r} is not known; known: {', '.join(DIALECTS)}", "", "$schema"
        )
    return found


@cache
def _meta_validator(validator_class: Any) -> Any:
    return validator_class(validator_class.META_SCHEMA)


def _check_valid(schema: Json, validator_class: Any, limits: GrammarLimits) -> None:
    try:
        error = best_match(_meta_validator(validator_class).iter_errors(schema))
    except RecursionError as cause:
        raise SchemaError(
            f"the schema is nested too deep to be checked (depth limit {limits.max_depth})", ""
        ) from cause
    if error is not None:
        raise _invalid(error)


def _invalid(error: ValidationError) -> SchemaError:
    path = list(error.absolute_path)
    names = [index for index, part in enumerate(path) if isinstance(part, str)]
    keyword = None
    if names and not (len(path) >= 2 and path[-2] in MAPS):
        keyword = str(path[names[-1]])
        path = path[: names[-1]]
    pointer = pointer_of(path)
    where = pointer or "the root"
    subject = f"{keyword} at {where}" if keyword else where
    return SchemaError(f"not a valid schema: {subject}: {error.message[:160]}", pointer, keyword)
