"""Schemas whose every document is endless: recursion through values that must be there."""

from __future__ import annotations

from typing import Any

from engine.grammar.document import pointer_of
from engine.grammar.graph import Node, SchemaGraph

SCALARS = frozenset(("null", "boolean", "string", "number", "integer"))


def find_endless(graph: SchemaGraph) -> str | None:
    """Return the pointer of the first reachable schema no finite document satisfies, or None.

    A least fixed point: a schema ends when some type it allows needs only values that end.
    """
    ends: set[str] = set()
    waiting = list(reversed(graph.nodes.values()))
    while True:
        still = [node for node in waiting if not _ends(node, ends)]
        if len(still) == len(waiting):
            break
        waiting = still
    return waiting[-1].pointer if waiting else None


def _ends(node: Node, ends: set[str]) -> bool:
    """Decide from the schemas known to end so far; adds this one to them."""
    if isinstance(node.schema, bool) or (_in_place_end(node, ends) and _own_ends(node, ends)):
        ends.add(node.pointer)
        return True
    return False


def _in_place_end(node: Node, ends: set[str]) -> bool:
    for keyword in ("$ref", "allOf"):
        if any(edge.pointer not in ends for edge in node.edges if edge.keyword == keyword):
            return False
    for keyword in ("anyOf", "oneOf"):
        branches = [edge.pointer in ends for edge in node.edges if edge.keyword == keyword]
        if branches and not any(branches):
            return False
    return True


def _own_ends(node: Node, ends: set[str]) -> bool:
    schema: Any = node.schema
    if "enum" in schema or "const" in schema or "type" not in schema:
        return True
    types = {schema["type"]} if isinstance(schema["type"], str) else set(schema["type"])
    if types & SCALARS:
        return True
    return ("array" in types and _array_ends(node, ends)) or (
        "object" in types and _object_ends(node, ends)
    )


def _array_ends(node: Node, ends: set[str]) -> bool:
    schema: Any = node.schema
    count = int(schema.get("minItems", 0))
    rest = node.pointer + "/items"
    found = [edge.pointer for edge in node.edges if edge.keyword in ("prefixItems", "items")]
    placed = [pointer for pointer in found if pointer != rest]
    needed = placed[:count] + [rest] * (rest in found and count > len(placed))
    return all(pointer in ends for pointer in needed)


def _object_ends(node: Node, ends: set[str]) -> bool:
    schema: Any = node.schema
    pointers = {edge.pointer for edge in node.edges if edge.keyword == "properties"}
    needed = (
        node.pointer + pointer_of(("properties", name)) for name in schema.get("required", ())
    )
    return all(pointer in ends for pointer in needed if pointer in pointers)
