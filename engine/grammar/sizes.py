"""Sizes inside a schema, measured before anything is compiled."""

from __future__ import annotations

from typing import Any

from engine.errors import SchemaError
from engine.grammar.graph import SchemaGraph
from engine.grammar.limits import GrammarLimits


def check_sizes(graph: SchemaGraph, limits: GrammarLimits) -> None:
    """Raise SchemaError for an object, enum or pattern that is beyond its limit."""
    for node in graph:
        if isinstance(node.schema, dict):
            _check(node.schema, node.pointer, limits)


def _check(schema: dict[str, Any], pointer: str, limits: GrammarLimits) -> None:
    patterns = [*schema.get("patternProperties", ()), schema.get("pattern", "")]
    longest = max(len(pattern.encode()) for pattern in patterns)
    for keyword, size, limit, what in (
        ("properties", len(schema.get("properties", ())), limits.max_properties, "properties"),
        ("enum", len(schema.get("enum", ())), limits.max_enum_values, "values"),
        ("pattern", longest, limits.max_pattern_bytes, "bytes"),
    ):
        if size > limit:
            raise SchemaError(
                f"{keyword} at {pointer or 'the root'} has {size} {what}; the limit is {limit}",
                pointer,
                keyword,
            )
