"""What is checked inside a valid schema before anything is compiled: sizes, and patterns."""

from __future__ import annotations

from typing import Any

from engine.errors import SchemaError
from engine.grammar.graph import SchemaGraph
from engine.grammar.limits import GrammarLimits
from engine.grammar.pattern import PatternError, check_readable


def check_contents(graph: SchemaGraph, limits: GrammarLimits) -> None:
    """Look into every reachable schema.

    Raises:
        SchemaError: an object, enum or pattern is beyond its limit, or a pattern is none at all.
    """
    for node in graph:
        if isinstance(node.schema, dict):
            _check_sizes(node.schema, node.pointer, limits)
            _check_patterns(node.schema, node.pointer)


def _check_patterns(schema: dict[str, Any], pointer: str) -> None:
    for keyword, patterns in (
        ("pattern", [schema.get("pattern", "")]),
        ("patternProperties", schema.get("patternProperties", ())),
    ):
        for pattern in patterns:
            try:
                check_readable(pattern)
            except PatternError as error:
                where = pointer or "the root"
                raise SchemaError(
                    f"{keyword} at {where}: {pattern!r:.80} {error}", pointer, keyword
                ) from error


def _check_sizes(schema: dict[str, Any], pointer: str, limits: GrammarLimits) -> None:
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
