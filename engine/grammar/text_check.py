"""The final check of a finished text: exactly one JSON document, and valid, by another route."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

from jsonschema import validators
from jsonschema.exceptions import ValidationError
from referencing import Registry
from referencing.exceptions import Unresolvable

from engine.errors import FmError
from engine.grammar.document import Json, SchemaDocument


class NotADocumentError(FmError, ValueError):
    """A text is not exactly one JSON document with finite numbers and distinct keys."""


def parse_document(text: str) -> Json:
    """Return the JSON value of `text`.

    Raises:
        NotADocumentError: not JSON, a key twice in one object, a number that is not finite, or
            nested beyond what Python's parser takes.
    """
    try:
        return json.loads(
            text,
            object_pairs_hook=_distinct,
            parse_constant=_refuse_constant,
            parse_float=_finite,
        )
    except (ValueError, RecursionError) as error:
        raise NotADocumentError(str(error)) from error


@dataclass(frozen=True, slots=True)
class SchemaCheck:
    """Validates texts against a schema with jsonschema, formats included; fetches nothing."""

    validator: Any

    @classmethod
    def of(cls, document: SchemaDocument) -> SchemaCheck:
        """Build the check from a document that is known to be a schema."""
        schema = document.value
        if isinstance(schema, dict):
            # With it, jsonschema would take its own class again behind a reference to the root.
            schema = {key: value for key, value in schema.items() if key != "$schema"}
        kind = document.dialect.validator_class
        exact = _exact(kind)
        return cls(exact(schema, registry=Registry(), format_checker=kind.FORMAT_CHECKER))

    def accepts(self, text: str) -> bool:
        """Decide whether `text` is one valid document; anything unexpected is a no."""
        try:
            error: ValidationError | None = next(
                self.validator.iter_errors(parse_document(text)), None
            )
        except (NotADocumentError, RecursionError, Unresolvable, re.error, OverflowError):
            return False
        return error is None


@cache
def _exact(validator_class: Any) -> Any:
    extend: Any = validators.extend  # its stub has no types
    return extend(validator_class, {"multipleOf": _check_multiple})


def _check_multiple(
    validator: Any, step: float, instance: Json, _schema: Json
) -> Iterator[ValidationError]:
    """As decimals: in binary 0.07 / 0.01 is not whole, nor are 11 % of the prices below 1000."""
    if validator.is_type(instance, "number"):
        quotient = Fraction(repr(instance)) / Fraction(repr(step))
        if quotient.denominator != 1:
            yield ValidationError(f"{instance!r} is not a multiple of {step!r}")


@dataclass(frozen=True, slots=True)
class TextCheck:
    """Compares a text with the listed ones; None leaves the verdict to the matcher.

    A regular expression or a Lark grammar has no second implementation to ask.
    """

    texts: frozenset[str] | None

    def accepts(self, text: str) -> bool:
        """Decide whether `text` is one of the texts."""
        return self.texts is None or text in self.texts


def _distinct(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise NotADocumentError("a key stands twice in one object")
    return found


def _refuse_constant(name: str) -> float:
    raise NotADocumentError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise NotADocumentError(f"{text} is beyond the range of numbers")
    return value
