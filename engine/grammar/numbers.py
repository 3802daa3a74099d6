"""Number keywords as the compiler can hold them: plain bounds, and a limit on digits.

The compiler keeps bounds as doubles and leaves a number without bounds endless; both are mended
here, always inwards, so that what the mask allows the schema allows too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from engine.grammar.limits import GrammarLimits

Schema = dict[str, Any]

COUNTS = (
    "minLength maxLength minItems maxItems minProperties maxProperties minContains maxContains"
).split()
BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
MAX_WHOLE = 2**53
"""Up to here every integer is a double."""

MAX_BOUND = 2**63 - 1024
"""The largest double a 64-bit integer holds: the compiler writes no bound beyond it."""

MAX_DECIMALS = 10
"""Finest step the compiler reads: 1e-10."""


def normalise_counts(schema: Schema, max_repeats: int) -> list[str]:
    """Write counts as integers in the compiler's range; returns the keywords that changed.

    2.0 is a legal count; an upper count beyond `max_repeats` cannot bind and is lowered to it.
    """
    changed = []
    for keyword in COUNTS:
        value = schema.get(keyword)
        if value is None or isinstance(value, bool):
            continue
        schema[keyword] = min(int(value), max_repeats)
        if schema[keyword] != value or isinstance(value, float):
            changed.append(keyword)
    return changed


def normalise_bounds(schema: Schema) -> list[str]:
    """Turn draft-04's boolean bounds into numbers, and move bounds to doubles inside them."""
    changed = []
    for plain, exclusive in (BOUNDS[:2], BOUNDS[2:]):
        if isinstance(schema.get(exclusive), bool):
            if schema.pop(exclusive) and plain in schema:
                schema[exclusive] = schema.pop(plain)
            changed.append(exclusive)
    changed += [keyword for keyword in BOUNDS if _draw_in(schema, keyword)]
    return changed


def _draw_in(schema: Schema, keyword: str) -> bool:
    """Replace a bound beyond the integers that doubles hold by a plain one inside it."""
    value = schema.get(keyword)
    if value is None or abs(value) <= MAX_WHOLE:
        return False
    is_lower = keyword in BOUNDS[:2]
    plain, nearest = ("minimum", max) if is_lower else ("maximum", min)
    inner = int(value) if keyword == plain else int(value) + (1 if is_lower else -1)
    del schema[keyword]
    inner = _inner_double(inner, is_lower)
    schema[plain] = nearest(inner, schema.get(plain, inner))
    return True


def limit_fraction(schema: Schema, limits: GrammarLimits) -> list[str]:
    """Limit the digits after the point where no step does; returns the keywords added."""
    digits = max(limits.max_fraction_digits, *(_decimals(schema.get(key)) for key in BOUNDS))
    if "multipleOf" in schema or digits > MAX_DECIMALS:
        return []
    schema["multipleOf"] = float(f"1e-{digits}") if digits else 1
    return ["multipleOf"]


def limit_whole(schema: Schema, limits: GrammarLimits) -> list[str]:
    """Add the bounds that a number lacks; returns the keywords added.

    A bound far outside the digit limit moves the limit on that side along with it.
    """
    changed = []
    largest = 10**limits.max_integer_digits - 1
    low = max((schema[key] for key in BOUNDS[:2] if key in schema), default=None)
    high = min((schema[key] for key in BOUNDS[2:] if key in schema), default=None)
    if high is None:
        schema["maximum"] = _beyond(low, largest)
        changed.append("maximum")
    if low is None:
        schema["minimum"] = -_beyond(None if high is None else -high, largest)
        changed.append("minimum")
    return changed


def cap_bounds(schema: Schema, limits: GrammarLimits) -> list[str]:
    """Draw far bounds of non-integers in to the digit limit: above 2**53 they are not read."""
    largest = 10**limits.max_integer_digits - 1
    sides: tuple[tuple[tuple[str, ...], Callable[[float], bool], int], ...] = (
        (BOUNDS[:2], lambda value: value < -largest, -largest),
        (BOUNDS[2:], lambda value: value > largest, largest),
    )
    changed = []
    for keywords, is_far, limit in sides:
        for keyword in keywords:
            if keyword in schema and is_far(schema[keyword]):
                schema[keyword] = limit
                changed.append(keyword)
    return changed


def _beyond(bound: float | None, largest: int) -> int:
    """Return an upper limit: `largest`, or ten times a lower bound that leaves it no room."""
    if bound is None or bound < largest // 10:
        return largest
    return max(largest, math.ceil(bound) * 10)


def _inner_double(value: int, is_lower: bool) -> int:
    """Return the nearest whole double inside a bound, as the integer it is."""
    if (value < 0) is is_lower and abs(value) > MAX_BOUND:
        return -MAX_BOUND if is_lower else MAX_BOUND
    if abs(value) > 2**1000:
        return value
    found = float(value)
    if is_lower and int(found) < value:
        found = math.nextafter(found, math.inf)
    if not is_lower and int(found) > value:
        found = math.nextafter(found, -math.inf)
    return int(found)


def _decimals(value: float | None) -> int:
    if value is None:
        return 0
    exponent = Decimal(str(value)).normalize().as_tuple().exponent
    return max(0, -exponent) if isinstance(exponent, int) else 0
