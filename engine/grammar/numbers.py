"""Number keywords as the compiler can hold them: bounds it reads right, and a limit on digits.

The compiler keeps bounds as doubles, reads some exclusive ones as if they were not, and leaves a
number without bounds endless. All of it is mended here, always inwards, so that what the mask
allows the schema allows too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
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

DOUBLE_DIGITS = 15
"""Decimal digits that any double tells apart."""


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a number's range, seen as the upper one: lower bounds are negated."""

    plain: str
    exclusive: str
    sign: int

    def read(self, schema: Schema) -> Bound | None:
        """Return the tighter of the side's two bounds, None without one."""
        found = [
            Bound(self.sign * schema[keyword], keyword == self.exclusive)
            for keyword in (self.plain, self.exclusive)
            if keyword in schema
        ]
        return min(found, key=lambda bound: (bound.value, not bound.is_exclusive), default=None)

    def write(self, schema: Schema, bound: Bound) -> None:
        """Make `bound` the only one of the side."""
        schema.pop(self.plain, None)
        schema.pop(self.exclusive, None)
        keyword = self.exclusive if bound.is_exclusive else self.plain
        schema[keyword] = self.sign * bound.value


@dataclass(frozen=True, slots=True)
class Bound:
    """An upper bound."""

    value: float
    is_exclusive: bool = False


LOWER = Side("minimum", "exclusiveMinimum", -1)
UPPER = Side("maximum", "exclusiveMaximum", 1)


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


def normalise_bounds(schema: Schema, is_integer: bool, limits: GrammarLimits) -> list[str]:
    """Write one bound a side, as the compiler reads it right; returns the keywords that changed."""
    before = {keyword: schema[keyword] for keyword in BOUNDS if keyword in schema}
    for side in (LOWER, UPPER):
        # In draft-04 the exclusive keyword is a boolean about the plain one.
        is_old_form = isinstance(schema.get(side.exclusive), bool)
        if is_old_form and schema.pop(side.exclusive) and side.plain in schema:
            schema[side.exclusive] = schema.pop(side.plain)
        bound = side.read(schema)
        if bound is not None:
            side.write(schema, _readable(bound, is_integer, limits))
    return [keyword for keyword, value in before.items() if schema.get(keyword) != value]


def _readable(bound: Bound, is_integer: bool, limits: GrammarLimits) -> Bound:
    """Return a bound that says the same in the compiler's words, or one a little inside it.

    An exclusive bound on zero's side of the range becomes a plain one: the compiler lets 0 through
    under `exclusiveMinimum: 0, maximum: 0.5`, and 1 under `exclusiveMinimum: 1, maximum: 1.5`.
    """
    if is_integer or abs(bound.value) > MAX_WHOLE:
        whole = math.ceil(bound.value) - 1 if bound.is_exclusive else math.floor(bound.value)
        return Bound(whole if abs(whole) <= MAX_WHOLE else _inner_double(whole))
    if bound.is_exclusive and bound.value <= 0:
        return Bound(_next_below(bound.value, limits))
    return bound


def _next_below(value: float, limits: GrammarLimits) -> float:
    """Return the largest number below `value` with the digits allowed, and told apart from it."""
    exact = Decimal(str(value))
    room = DOUBLE_DIGITS - max(0, exact.adjusted() + 1)
    digits = max(0, min(room, max(limits.max_fraction_digits, _decimals(value))))
    steps = math.ceil(exact.scaleb(digits)) - 1
    return float(Decimal(steps).scaleb(-digits)) if digits else steps


def limit_fraction(schema: Schema, limits: GrammarLimits) -> list[str]:
    """Limit the digits after the point where no step does; returns the keywords added."""
    bounds = (side.read(schema) for side in (LOWER, UPPER))
    decimals = (_decimals(bound.value) for bound in bounds if bound is not None)
    digits = max(limits.max_fraction_digits, *decimals, 0)
    if "multipleOf" in schema or digits > MAX_DECIMALS:
        return []
    schema["multipleOf"] = float(f"1e-{digits}") if digits else 1
    return ["multipleOf"]


def limit_whole(schema: Schema, is_integer: bool, limits: GrammarLimits) -> list[str]:
    """Add the bounds that a number lacks; returns the keywords that changed.

    A bound far outside the digit limit moves the limit on that side along with it. Far bounds of
    numbers that may have a fraction are drawn in to it: above 2**53 they are not read.
    """
    changed = []
    largest = 10**limits.max_integer_digits - 1
    low, high = LOWER.read(schema), UPPER.read(schema)
    for side, bound, opposite in ((UPPER, high, low), (LOWER, low, high)):
        if bound is not None and (is_integer or bound.value <= largest):
            continue
        limit = largest if opposite is None else _beyond(-opposite.value, largest)
        side.write(schema, Bound(limit if bound is None else min(limit, math.floor(bound.value))))
        changed.append(side.plain)
    return changed


def _beyond(bound: float, largest: int) -> int:
    """Return an upper limit: `largest`, or ten times a lower bound that leaves it no room."""
    return largest if bound < largest // 10 else max(largest, math.ceil(bound) * 10)


def _inner_double(value: int) -> int:
    """Return the largest whole double up to `value` that the compiler writes."""
    if value > MAX_BOUND:
        return MAX_BOUND
    if value < -(2**1000):
        return value
    found = float(value)
    return int(found if int(found) <= value else math.nextafter(found, -math.inf))


def _decimals(value: float) -> int:
    exponent = Decimal(str(value)).normalize().as_tuple().exponent
    return max(0, -exponent) if isinstance(exponent, int) else 0
