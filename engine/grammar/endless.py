"""Recursion that never ends: through values that must be there, or on one value in a circle."""

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


def find_in_place_cycle(graph: SchemaGraph) -> str | None:
    """Return the pointer of a schema that applies itself to the same value, or None."""
    done: set[str] = set()
    for start in graph.nodes:
        path: list[str] = []
        on_path: set[str] = set()
        stack = [(start, False)]
        while stack:
            pointer, is_left = stack.pop()
            if is_left:
                on_path.discard(path.pop())
                done.add(pointer)
            elif pointer in on_path:
                return pointer
            elif pointer not in done:
                path.append(pointer)
                on_path.add(pointer)
                stack.append((pointer, True))
                edges = graph.nodes[pointer].edges
                stack += [(edge.pointer, False) for edge in edges if edge.is_in_place]
    return None


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
