"""One JSON document, read strictly: what a lenient parser lets pass is a fault here."""

from __future__ import annotations

import json
import math
import reprlib
import sys
from collections import Counter
from enum import StrEnum
from typing import Any, NoReturn

from engine.errors import FmError

MAX_INT_CHARS = 310
"""A sign and the 309 digits of the largest double; longer literals are refused unparsed."""

CONTAINERS = (dict, list, tuple)


class Fault(StrEnum):
    """What is wrong with a text that should be a JSON document."""

    NOT_JSON = "not-json"
    DUPLICATE_KEY = "duplicate-key"
    OUT_OF_RANGE = "out-of-range"


class DocumentError(FmError, ValueError):
    """A text is not one well-formed JSON document; `fault` says in which way."""

    def __init__(self, fault: Fault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


class TooDeepError(DocumentError):
    """A text is nested deeper than it can be read."""


def read_document(text: str) -> Any:
    """Return the value of a text that holds exactly one JSON document.

    Blanks around the document belong to it (RFC 8259, section 2); anything else does not. Time is
    linear in the length of the text, whatever its numbers.

    Raises:
        DocumentError: other text, a second document, a key twice in one object, NaN or Infinity,
            a number beyond the range of a double, or, as TooDeepError, nesting too deep to be
            read.
    """
    try:
        return json.loads(
            text,
            object_pairs_hook=_read_object,
            parse_float=_read_float,
            parse_int=_read_int,
            parse_constant=_refuse_constant,
        )
    except json.JSONDecodeError as error:
        raise DocumentError(
            Fault.NOT_JSON, f"{error.msg} at character {error.pos} of {reprlib.repr(text)}"
        ) from None
    except RecursionError:
        raise TooDeepError(Fault.NOT_JSON, "nested too deep to be read") from None


def is_deeper(value: Any, most: int) -> bool:
    """Return whether containers are nested more than `most` deep, or in a circle."""
    level = [value] if isinstance(value, CONTAINERS) else []
    for _ in range(most + 1):
        level = [
            child
            for item in level
            for child in (item.values() if isinstance(item, dict) else item)
            if isinstance(child, CONTAINERS)
        ]
        if not level:
            return False
    return True


def _read_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise DocumentError(Fault.DUPLICATE_KEY, f"key {reprlib.repr(twice)} stands twice")
    return value


def _read_float(literal: str) -> float:
    value = float(literal)
    if not math.isfinite(value):
        _refuse_number(literal)
    return value


def _read_int(literal: str) -> int:
    if len(literal) < MAX_INT_CHARS - 1:  # no double is as long and too large
        return int(literal)
    if len(literal) > MAX_INT_CHARS:
        _refuse_number(literal)
    value = int(literal)
    if abs(value) > sys.float_info.max:
        _refuse_number(literal)
    return value


def _refuse_number(literal: str) -> NoReturn:
    raise DocumentError(
        Fault.OUT_OF_RANGE, f"number {reprlib.repr(literal)} is beyond the range of a double"
    )


def _refuse_constant(literal: str) -> NoReturn:
    raise DocumentError(Fault.NOT_JSON, f"{literal} is not JSON")
