"""Whether a document meets its schema: jsonschema, made exact where it is loose or wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from jsonschema import Draft202012Validator, ValidationError
from jsonschema.exceptions import SchemaError as InvalidSchema
from jsonschema.protocols import Validator
from jsonschema.validators import extend
from referencing import Registry
from referencing.exceptions import Unresolvable

from engine.errors import SchemaError

DIALECT = "https://json-schema.org/draft/2020-12/schema"
FORMATS = Draft202012Validator.FORMAT_CHECKER
MAX_DETAIL = 200
"""Characters of an error's text; jsonschema quotes the whole document in some of them."""

_DATA_KEYWORDS = frozenset({"enum", "const", "default", "examples"})


@dataclass(frozen=True, slots=True)
class SchemaCheck:
    """A schema made ready to check documents.

    Args:
        unchecked_formats: formats the schema asserts and nothing here can check.
    """

    validator: Validator
    unchecked_formats: tuple[str, ...]

    def first_error(self, document: Any) -> str | None:
        """Return where and why `document` breaks the schema in one line, None when it does not.

        Raises:
            SchemaError: a `$ref` of the schema leads nowhere; nothing is fetched for it.
        """
        try:
            error = next(self.validator.iter_errors(document), None)
        except Unresolvable as unresolvable:
            raise SchemaError(
                f"$ref {unresolvable.ref!r} leads nowhere; define it under $defs", keyword="$ref"
            ) from None
        except RecursionError:
            return "nested too deep to be checked"
        if error is None:
            return None
        return _one_line(f"{error.json_path}: {error.message}")


def schema_check(schema: Mapping[str, Any]) -> SchemaCheck:
    """Return the check of a JSON Schema, Draft 2020-12; built once per content.

    Raises:
        SchemaError: `schema` is not valid, or of another dialect.
    """
    return _build_check(json.dumps(schema))


@lru_cache(maxsize=1024)
def _build_check(text: str) -> SchemaCheck:
    schema = json.loads(text)
    # Left in the schema, jsonschema would swap the exact validator for its own at a $ref to "#".
    dialect = schema.pop("$schema", DIALECT)
    if dialect.removesuffix("#") != DIALECT:
        raise SchemaError(f"$schema is {dialect!r}; use {DIALECT}", "/$schema", "$schema")
    try:
        Draft202012Validator.check_schema(schema)
    except InvalidSchema as error:
        pointer = "".join(f"/{part}" for part in error.absolute_path)
        raise SchemaError(
            _one_line(f"not a schema at {pointer or 'its root'}: {error.message}"), pointer
        ) from None
    validator: Validator = _ExactValidator(schema, registry=Registry(), format_checker=FORMATS)
    unchecked = sorted(set(_formats(schema)) - set(FORMATS.checkers))
    return SchemaCheck(validator, tuple(unchecked))


def _formats(node: Any) -> Iterator[str]:
    if isinstance(node, list):
        for item in node:
            yield from _formats(item)
    elif isinstance(node, dict):
        for key, value in node.items():
            if key == "format" and isinstance(value, str):
                yield value
            elif key not in _DATA_KEYWORDS:
                yield from _formats(value)


def _check_multiple_of(
    validator: Validator, divisor: float, instance: Any, _schema: Mapping[str, Any]
) -> Iterator[ValidationError]:
    # In binary, 0.07 / 0.01 is not whole, nor are 11 % of the prices below 1000.
    if validator.is_type(instance, "number"):
        quotient = Fraction(repr(instance)) / Fraction(repr(divisor))
        if quotient.denominator != 1:
            yield ValidationError(f"{instance!r} is not a multiple of {divisor}")


def _check_pattern(
    validator: Validator, pattern: str, instance: Any, _schema: Mapping[str, Any]
) -> Iterator[ValidationError]:
    if validator.is_type(instance, "string") and not _search(pattern)(instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


@lru_cache(maxsize=4096)
def _search(pattern: str) -> Callable[[str], re.Match[str] | None]:
    """Compile an ECMA-262 pattern: its `$` does not match before a newline, Python's does."""
    parts = re.findall(r"\\.|\[(?:\\.|[^\]\\])*\]|.", pattern, re.DOTALL)
    return re.compile("".join(r"\Z" if part == "$" else part for part in parts)).search


_ExactValidator = extend(  # type: ignore[no-untyped-call]  # its stub has no types
    Draft202012Validator, {"multipleOf": _check_multiple_of, "pattern": _check_pattern}
)


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_DETAIL else line[: MAX_DETAIL - 3] + "..."
