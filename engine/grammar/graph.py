"""The subschemas a document can use: what its root reaches through keywords and references."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from engine.errors import SchemaError
from engine.grammar.counts import IN_PLACE_LISTS, LISTS, MAPS, SINGLES
from engine.grammar.document import Json, SchemaDocument, pointer_of
from engine.grammar.limits import GrammarLimits
from engine.grammar.refs import RefIndex

SILENT = frozenset(
    "$schema $id id $anchor $comment $defs definitions $vocabulary $dynamicAnchor title "
    "description default examples deprecated readOnly writeOnly".split()
)
"""Keywords that say nothing about a value and are not worth a line in a report."""


@dataclass(frozen=True, slots=True)
class Edge:
    """A step from a schema to one below it; `keyword` is "$ref" for a reference."""

    keyword: str
    pointer: str
    is_in_place: bool


@dataclass(slots=True)
class Node:
    """One reachable subschema.

    Args:
        pointer: JSON pointer from the document's root.
        is_merged: it meets another schema on the same value, so the compiler has to intersect.
    """

    pointer: str
    schema: bool | dict[str, Json]
    edges: tuple[Edge, ...] = ()
    is_merged: bool = False


@dataclass(slots=True)
class SchemaGraph:
    """The reachable subschemas by pointer, in the order a parser meets them."""

    nodes: dict[str, Node] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes.values())


def build_graph(document: SchemaDocument, limits: GrammarLimits) -> SchemaGraph:
    """Walk from the root of a document; references are resolved inside the document only.

    Raises:
        SchemaError: a reference that leads nowhere or out of the document, or a limit is passed.
    """
    index = RefIndex(document.value, document.dialect)
    graph = SchemaGraph()
    # (pointer, steps from the root): popping the latest pushed visits in recursive order.
    stack: list[tuple[str, int]] = [("", 0)]
    while stack:
        pointer, chain = stack.pop()
        if pointer in graph.nodes:
            continue
        _check_size(chain, len(graph.nodes), pointer, limits)
        schema = index.schema_at(pointer)
        edges = tuple(_edges(pointer, schema, index)) if isinstance(schema, dict) else ()
        graph.nodes[pointer] = Node(pointer, schema, edges)
        stack.extend((edge.pointer, chain + 1) for edge in reversed(edges))
    _mark_merged(graph)
    return graph


def is_constraining(keyword: str) -> bool:
    """True when `keyword` next to an applicator makes the compiler intersect two schemas."""
    return keyword not in SILENT and keyword not in ("$ref", *IN_PLACE_LISTS)


def _check_size(chain: int, num_nodes: int, pointer: str, limits: GrammarLimits) -> None:
    if chain > limits.max_chain:
        raise SchemaError(
            f"the chain of keywords and references that ends at {pointer} is longer than the "
            f"depth limit of {limits.max_chain} steps",
            pointer,
        )
    if num_nodes >= limits.max_nodes:
        raise SchemaError(f"the schema has more than {limits.max_nodes} subschemas", "")


def _edges(pointer: str, schema: dict[str, Any], index: RefIndex) -> Iterator[Edge]:
    if "$ref" in schema:
        yield Edge("$ref", index.resolve(schema["$ref"], pointer), True)
    for keyword, value in schema.items():
        if keyword in LISTS and isinstance(value, list):
            in_place = keyword in IN_PLACE_LISTS
            for position in range(len(value)):
                yield Edge(keyword, pointer + pointer_of((keyword, position)), in_place)
        elif keyword in MAPS and isinstance(value, dict):
            for name in value:
                yield Edge(keyword, pointer + pointer_of((keyword, name)), False)
        elif keyword in SINGLES and isinstance(value, dict | bool):
            yield Edge(keyword, pointer + pointer_of((keyword,)), False)


def _mark_merged(graph: SchemaGraph) -> None:
    """Mark every schema that is intersected with another one, and all below it."""
    stack = [node for node in graph if _is_intersection(node)]
    while stack:
        node = stack.pop()
        if not node.is_merged:
            node.is_merged = True
            stack.extend(graph.nodes[edge.pointer] for edge in node.edges)


def _is_intersection(node: Node) -> bool:
    if not isinstance(node.schema, dict):
        return False
    sources = {edge.keyword for edge in node.edges if edge.is_in_place}
    if not sources:
        return False
    branches = sum(edge.keyword in ("$ref", "allOf") for edge in node.edges)
    alternatives = len(sources & {"anyOf", "oneOf"})
    return branches + alternatives > 1 or any(is_constraining(key) for key in node.schema)
