"""Assertions of a schema that no mask can hold, found before anything is compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

from engine.grammar.counts import IN_PLACE_LISTS
from engine.grammar.document import Json
from engine.grammar.formats import UNENFORCEABLE_FORMATS
from engine.grammar.graph import Node, SchemaGraph
from engine.grammar.pattern import PatternError, narrow_pattern
from engine.grammar.report import Finding

Schema = dict[str, Any]
Check = Callable[[Schema], str | None]
"""Takes a schema that holds the keyword; returns why it cannot be enforced, None if it can."""

MAX_REPEATS = 2**31 - 1
"""Largest count of characters, items or properties the compiler reads."""

IMPOSSIBLE = frozenset(
    "not if then else contains uniqueItems propertyNames dependencies dependentRequired "
    "dependentSchemas $dynamicRef $recursiveRef".split()
)
"""Keywords no mask can hold, except where they assert nothing (NO_OPS)."""

WHOLE = "depends on the value as a whole, which a mask sees one token at a time"


def find_unenforced(graph: SchemaGraph) -> list[Finding]:
    """Return every assertion of the reachable schemas that cannot be enforced, in their order."""
    return [finding for node in graph for finding in _of_node(node)]


def is_no_op(schema: Schema, keyword: str) -> bool:
    """True when `keyword` is one of those checked here and asserts nothing as it stands."""
    return keyword in NO_OPS and NO_OPS[keyword](schema)


def _of_node(node: Node) -> Iterator[Finding]:
    if not isinstance(node.schema, dict):
        return
    for keyword in node.schema:
        if is_no_op(node.schema, keyword):
            continue
        reason = WHOLE if keyword in IMPOSSIBLE else None
        if keyword in CHECKS:
            reason = CHECKS[keyword](node.schema)
        if reason is not None:
            yield Finding(node.pointer, keyword, reason)


def _is_anything(value: Json) -> bool:
    return value is True or value == {}


def _asks_nothing(values: Json) -> bool:
    return all(value == [] or _is_anything(value) for value in values.values())


def has_applicators(schema: Schema) -> bool:
    """True when the schema constrains its value through other schemas as well."""
    others = ("$ref", "if", "then", "else", "not", "dependentSchemas", "$dynamicRef")
    return any(key in schema for key in (*IN_PLACE_LISTS, *others))


def closes_own_properties(schema: Schema) -> bool:
    """True when unevaluatedProperties means here what additionalProperties means."""
    return "additionalProperties" not in schema and not has_applicators(schema)


def closes_own_items(schema: Schema) -> bool:
    """True when unevaluatedItems means here what items means."""
    return not ({"items", "contains"} & set(schema)) and not has_applicators(schema)


def _check_unevaluated_properties(schema: Schema) -> str | None:
    return None if closes_own_properties(schema) else WHOLE


def _check_unevaluated_items(schema: Schema) -> str | None:
    return None if closes_own_items(schema) else WHOLE


def _check_pattern(schema: Schema) -> str | None:
    return _pattern_problem(schema["pattern"])


def _check_pattern_properties(schema: Schema) -> str | None:
    problems = map(_pattern_problem, schema["patternProperties"])
    return next((problem for problem in problems if problem), None)


def _pattern_problem(pattern: str) -> str | None:
    try:
        narrow_pattern(pattern)
    except PatternError as error:
        return f"{pattern!r:.80} {error}"
    return None


def _check_format(schema: Schema) -> str | None:
    name = schema["format"]
    return f"{name} is no regular language" if name in UNENFORCEABLE_FORMATS else None


def _check_values(values: list[Json]) -> str | None:
    number = next(
        (item for value in values for item in _numbers(value) if not _is_exact(item)), None
    )
    if number is None:
        return None
    return f"{number} has more digits than the compiler keeps, so it cannot be written"


def _numbers(value: Json) -> Iterator[int | float]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _numbers(item)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


def _is_exact(number: int | float) -> bool:
    """True when the compiler, which keeps numbers as doubles, writes this one as it is."""
    if number == int(number):
        whole = int(number)
        return abs(whole) <= 2**53 or (abs(whole) < 2**63 and int(float(whole)) == whole)
    digits = Decimal(repr(number)).as_tuple().digits
    return len(digits) <= 15 and abs(number) > 1e-22


def _check_minimum_count(keyword: str) -> Check:
    def check(schema: Schema) -> str | None:
        too_many = schema[keyword] > MAX_REPEATS
        return f"{schema[keyword]} is more than any document can hold" if too_many else None

    return check


CHECKS: dict[str, Check] = {
    "unevaluatedProperties": _check_unevaluated_properties,
    "unevaluatedItems": _check_unevaluated_items,
    "pattern": _check_pattern,
    "patternProperties": _check_pattern_properties,
    "format": _check_format,
    "const": lambda schema: _check_values([schema["const"]]),
    "enum": lambda schema: _check_values(schema["enum"]),
    **{key: _check_minimum_count(key) for key in ("minLength", "minItems", "minProperties")},
}
"""Keyword -> why it cannot be enforced where it stands."""

NO_OPS: dict[str, Callable[[Schema], bool]] = {
    "not": lambda schema: schema["not"] is False,
    "if": lambda schema: "then" not in schema and "else" not in schema,
    "then": lambda schema: "if" not in schema,
    "else": lambda schema: "if" not in schema,
    "contains": lambda schema: schema.get("minContains") == 0 and "maxContains" not in schema,
    "minContains": lambda schema: "minContains" in schema,
    "maxContains": lambda schema: "contains" not in schema,
    "uniqueItems": lambda schema: schema["uniqueItems"] is False or schema.get("maxItems", 2) <= 1,
    "propertyNames": lambda schema: _is_anything(schema["propertyNames"]),
    "dependencies": lambda schema: _asks_nothing(schema["dependencies"]),
    "dependentRequired": lambda schema: _asks_nothing(schema["dependentRequired"]),
    "dependentSchemas": lambda schema: _asks_nothing(schema["dependentSchemas"]),
    "unevaluatedProperties": lambda schema: (
        _is_anything(schema["unevaluatedProperties"]) or "additionalProperties" in schema
    ),
    "unevaluatedItems": lambda schema: (
        _is_anything(schema["unevaluatedItems"]) or isinstance(schema.get("items"), dict | bool)
    ),
    "minProperties": lambda schema: schema["minProperties"] <= len(set(schema.get("required", ()))),
    "maxProperties": lambda schema: (
        schema.get("additionalProperties") is False
        and not schema.get("patternProperties")
        and schema["maxProperties"] >= len(schema.get("properties", {}))
    ),
}
"""Keyword -> does it assert nothing where it stands."""
