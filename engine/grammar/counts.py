"""Sizes of a schema, counted before it is understood: what is too large is refused at once.

Whether a schema is one takes a millisecond a subschema to tell, so a schema over the limits must
not get as far as that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from engine.errors import SchemaError
from engine.grammar.document import pointer_of
from engine.grammar.limits import GrammarLimits

IN_PLACE_LISTS = ("allOf", "anyOf", "oneOf")
"""Applicators whose branches constrain the same value as the schema that holds them."""

LISTS = (*IN_PLACE_LISTS, "prefixItems", "items")
Path = tuple[str | int, ...]
"""Keys and positions from the root."""

SINGLES = ("additionalProperties", "items", "additionalItems")
MAPS = ("properties", "patternProperties")


def check_counts(root: Any, limits: GrammarLimits) -> None:
    """Count what the root holds through keywords; references are not followed.

    Args:
        root: perhaps no schema.

    Raises:
        SchemaError: an object or enum, or the number of subschemas, is beyond its limit.
    """
    level: list[tuple[Any, Path]] = [(root, ())]
    num_nodes = 1
    while level:
        below: list[tuple[Any, Path]] = []
        for schema, path in level:
            if not isinstance(schema, dict):
                continue
            if ("properties" in schema or "enum" in schema) and any(_beyond(schema, limits)):
                check_sizes(schema, pointer_of(path), limits)
            held = len(below)
            below.extend(_below(schema, path))
            # Counted before anything is looked into: most of what is too much is never seen.
            num_nodes += len(below) - held
            if num_nodes > limits.max_nodes:
                raise SchemaError(f"the schema has more than {limits.max_nodes} subschemas", "")
        level = below


def check_sizes(schema: dict[str, Any], pointer: str, limits: GrammarLimits) -> None:
    """Raise SchemaError when one schema holds too many properties or values."""
    for keyword, size, limit in _beyond(schema, limits):
        what = "values" if keyword == "enum" else keyword
        raise SchemaError(
            f"{keyword} at {pointer or 'the root'} has {size} {what}; the limit is {limit}",
            pointer,
            keyword,
        )


def _beyond(schema: dict[str, Any], limits: GrammarLimits) -> Iterator[tuple[str, int, int]]:
    for keyword, limit in (
        ("properties", limits.max_properties),
        ("enum", limits.max_enum_values),
    ):
        held = schema.get(keyword)
        size = len(held) if isinstance(held, dict | list) else 0
        if size > limit:
            yield keyword, size, limit


def _below(schema: dict[str, Any], path: Path) -> Iterator[tuple[Any, Path]]:
    for keyword, value in schema.items():
        if keyword in LISTS and isinstance(value, list):
            for position, item in enumerate(value):
                yield item, (*path, keyword, position)
        elif keyword in MAPS and isinstance(value, dict):
            for name, item in value.items():
                yield item, (*path, keyword, name)
        elif keyword in SINGLES and isinstance(value, dict | bool):
            yield value, (*path, keyword)
