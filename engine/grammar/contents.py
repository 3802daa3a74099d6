"""What is checked inside a valid schema before anything is compiled: sizes, and patterns."""

from __future__ import annotations

from typing import Any

from engine.errors import SchemaError
from engine.grammar.counts import check_sizes
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
            check_sizes(node.schema, node.pointer, limits)
            _check_lengths(node.schema, node.pointer, limits)
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


def _check_lengths(schema: dict[str, Any], pointer: str, limits: GrammarLimits) -> None:
    patterns = [*schema.get("patternProperties", ()), schema.get("pattern", "")]
    longest = max(len(pattern.encode()) for pattern in patterns)
    if longest > limits.max_pattern_bytes:
        raise SchemaError(
            f"pattern at {pointer or 'the root'} has {longest} bytes; the limit is "
            f"{limits.max_pattern_bytes}",
            pointer,
            "pattern",
        )
