"""A schema in the words the compiler reads exactly: at least as strict, never looser.

The result is one document `{"$ref": "#/fm/root", "fm": {"root": ..., "any1": ...}}`, whose
references are all pointers from its root. Every change is listed for the report.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from engine.grammar.counts import IN_PLACE_LISTS
from engine.grammar.document import SchemaDocument, pointer_of
from engine.grammar.formats import FORMATS
from engine.grammar.graph import SILENT, Node, SchemaGraph, is_constraining
from engine.grammar.limits import GrammarLimits
from engine.grammar.mask_schema import ROOT, MaskSchema, Schema, free_value, free_values, reference
from engine.grammar.numbers import (
    BOUNDS,
    limit_fraction,
    limit_whole,
    normalise_bounds,
    normalise_counts,
)
from engine.grammar.pattern import narrow_pattern, python_pattern
from engine.grammar.refs import RefIndex
from engine.grammar.report import Finding
from engine.grammar.unenforced import (
    MAX_REPEATS,
    closes_own_items,
    closes_own_properties,
    is_no_op,
)

ENFORCED = frozenset(
    "type enum const minimum maximum exclusiveMinimum exclusiveMaximum multipleOf minLength "
    "maxLength pattern format properties required additionalProperties patternProperties "
    "minProperties maxProperties items prefixItems additionalItems minItems maxItems allOf anyOf "
    "oneOf $ref unevaluatedProperties unevaluatedItems".split()
)
"""Keywords the mask can enforce."""

ALL_TYPES = ("null", "boolean", "string", "number", "array", "object")


def make_mask_schema(
    source: SchemaDocument,
    graph: SchemaGraph,
    unenforced: Iterable[Finding],
    limits: GrammarLimits,
) -> MaskSchema:
    """Rewrite `source` for the compiler, without the assertions in `unenforced`."""
    root = json.loads(source.text)
    index = RefIndex(root, source.dialect)
    found = {node.pointer: index.schema_at(node.pointer) for node in graph}
    schemas = {pointer: item for pointer, item in found.items() if isinstance(item, dict)}
    document: Schema = {"$ref": ROOT, "fm": {"root": root, **free_values(limits)}}
    if isinstance(source.value, dict) and "$schema" in source.value:
        document["$schema"] = source.value["$schema"]
    has_steps = any("multipleOf" in schema for schema in schemas.values())
    mask = MaskSchema(document, schemas, has_steps, _held(graph))
    for finding in unenforced:
        schemas[finding.pointer].pop(finding.keyword, None)
    for node in graph:
        _Rewrite(mask, node, limits).apply()
    _replace_true(mask, graph, limits)
    return mask


def _held(graph: SchemaGraph) -> frozenset[str]:
    targets = {edge.pointer for node in graph for edge in node.edges if edge.keyword == "$ref"}
    parts = [target.split("/") for target in targets]
    return frozenset("/".join(part[:end]) for part in parts for end in range(1, len(part) + 1))


def _replace_true(mask: MaskSchema, graph: SchemaGraph, limits: GrammarLimits) -> None:
    """Bound the values that a schema `true` leaves open, where nothing is intersected."""
    note = f"free values are nested at most {limits.max_free_depth} levels"
    for node in graph:
        holder = mask.schemas.get(node.pointer)
        if holder is None or node.is_merged:
            continue
        for edge in node.edges:
            if edge.keyword != "$ref" and graph.nodes[edge.pointer].schema is True:
                _put_free(holder, edge.keyword, edge.pointer, limits)
                mask.rewritten.append(Finding(edge.pointer, "true", note))
    if mask.document["fm"]["root"] is True:
        mask.document["fm"]["root"] = free_value(limits)
        mask.rewritten.append(Finding("", "true", note))


def _put_free(holder: Schema, keyword: str, pointer: str, limits: GrammarLimits) -> None:
    value = holder.get(keyword)
    name = pointer.rsplit("/", 1)[1].replace("~1", "/").replace("~0", "~")
    if value is True:
        holder[keyword] = free_value(limits)
    elif isinstance(value, list):
        value[int(name)] = free_value(limits)
    elif isinstance(value, dict) and value.get(name) is True:
        value[name] = free_value(limits)


@dataclass(slots=True)
class _Rewrite:
    """The rewriting of one schema, in place."""

    mask: MaskSchema
    node: Node
    limits: GrammarLimits

    def apply(self) -> None:
        schema = self.mask.schemas.get(self.node.pointer)
        if schema is None:
            return
        self._drop_idle(schema)
        self._point_reference(schema)
        self._close(schema)
        self._narrow_patterns(schema)
        self._spell_format(schema)
        self._normalise(schema)
        self._limit_numbers(schema)
        self._bound_free(schema)

    @property
    def _original(self) -> Schema:
        assert isinstance(self.node.schema, dict)
        return self.node.schema

    def _rewrote(self, keyword: str, note: str) -> None:
        self.mask.rewritten.append(Finding(self.node.pointer, keyword, note))

    def _annotates(self, keyword: str, note: str) -> None:
        self.mask.annotations.append(Finding(self.node.pointer, keyword, note))

    def _drop_idle(self, schema: Schema) -> None:
        """Remove what asserts nothing; report what looks as if it did."""
        for keyword in list(schema):
            if is_no_op(self._original, keyword):
                self._rewrote(keyword, "asserts nothing here")
            elif keyword in ENFORCED:
                self.mask.enforced |= {keyword} - {"format"}
                continue
            elif keyword not in SILENT:
                self._annotates(keyword, "not an assertion")
            if self.node.pointer + pointer_of((keyword,)) not in self.mask.held:
                del schema[keyword]

    def _point_reference(self, schema: Schema) -> None:
        for edge in self.node.edges:
            if edge.keyword == "$ref":
                schema["$ref"] = reference(edge.pointer)

    def _narrow_patterns(self, schema: Schema) -> None:
        if "pattern" in schema:
            narrow = narrow_pattern(schema["pattern"])
            if narrow != schema["pattern"]:
                self._rewrote("pattern", "character classes as all dialects read them")
            schema["pattern"] = narrow
        if "patternProperties" in schema:
            is_closed = schema.get("additionalProperties") is False
            translate = narrow_pattern if is_closed else python_pattern
            values = schema["patternProperties"]
            schema["patternProperties"] = {translate(name): values[name] for name in values}
            if schema["patternProperties"].keys() != values.keys():
                self._rewrote("patternProperties", "character classes as the validator reads them")

    def _spell_format(self, schema: Schema) -> None:
        name = schema.pop("format", None)
        if name is None:
            return
        if name not in FORMATS:
            self._annotates("format", f"{name} is not a format that is checked")
            return
        self.mask.enforced.add("format")
        self._rewrote("format", f"{name} as a pattern" + _clause(FORMATS[name].note))
        spelt = FORMATS[name].schema()
        if "pattern" in schema or "maxLength" in schema:
            schema["allOf"] = [*schema.get("allOf", []), spelt]
        else:
            schema.update(spelt)

    def _close(self, schema: Schema) -> None:
        """Say unevaluated* with the keyword that means the same where nothing else is applied."""
        for keyword, plain, holds in (
            ("unevaluatedProperties", "additionalProperties", closes_own_properties),
            ("unevaluatedItems", "items", closes_own_items),
        ):
            if keyword in schema and holds(self._original):
                schema[plain] = schema.pop(keyword)
                self._rewrote(keyword, f"as {plain}")

    def _normalise(self, schema: Schema) -> None:
        changed = normalise_counts(schema, MAX_REPEATS)
        is_integer = {"number", "integer"} & set(_types(schema)) == {"integer"}
        changed += normalise_bounds(schema, is_integer, self.limits)
        for keyword in changed:
            self._rewrote(keyword, "as the nearest number inside that the compiler holds")

    def _limit_numbers(self, schema: Schema) -> None:
        numeric = {"number", "integer"} & set(_types(schema))
        if not numeric or "enum" in schema or "const" in schema or not self._may_be_number(schema):
            return
        is_integer = numeric == {"integer"}
        is_plain = schema in ({"type": "integer"}, {"type": "number"})
        changed = limit_whole(schema, is_integer, self.limits)
        if not is_integer and self._may_have_step(schema):
            changed += limit_fraction(schema, self.limits)
        if changed:
            whole, part = self.limits.max_integer_digits, self.limits.max_fraction_digits
            digits = f"{whole} digits" + ("" if is_integer else f" and {part} after the point")
            self._rewrote(", ".join(changed), f"numbers without bounds have at most {digits}")
        if is_plain and not self.node.is_merged:
            name = schema["type"]
            schema.clear()
            schema["$ref"] = f"#/fm/{name}"

    def _may_be_number(self, schema: Schema) -> bool:
        """False where the schemas it applies decide what numbers look like."""
        says_so = any(keyword in schema for keyword in ("type", "multipleOf", *BOUNDS))
        return says_so or not _is_applied(schema)

    def _may_have_step(self, schema: Schema) -> bool:
        """False where the step could meet another one: the compiler runs out of states."""
        return not (self.node.is_merged and (self.mask.has_steps or "type" not in schema))

    def _bound_free(self, schema: Schema) -> None:
        """Limit the depth and digits of values that the schema leaves open."""
        if self.node.is_merged or _is_applied(schema) or "enum" in schema or "const" in schema:
            return
        opened = []
        types = _types(schema)
        if not any(is_constraining(keyword) for keyword in schema):
            schema.update(free_value(self.limits))
            opened.append("type")
        if "object" in types and "additionalProperties" not in schema and not opened:
            schema["additionalProperties"] = free_value(self.limits)
            opened.append("additionalProperties")
        rest = "additionalItems" if isinstance(schema.get("items"), list) else "items"
        if "array" in types and rest not in schema and "type" not in opened:
            schema[rest] = free_value(self.limits)
            opened.append(rest)
        if opened:
            depth = self.limits.max_free_depth
            self._rewrote(", ".join(opened), f"free values are nested at most {depth} levels")


def _types(schema: Schema) -> tuple[str, ...]:
    found = schema.get("type", ALL_TYPES)
    return (found,) if isinstance(found, str) else tuple(found)


def _is_applied(schema: Schema) -> bool:
    return any(keyword in schema for keyword in ("$ref", *IN_PLACE_LISTS))


def _clause(note: str) -> str:
    return f": {note}" if note else ""
