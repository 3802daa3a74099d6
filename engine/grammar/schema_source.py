"""From a JSON Schema to a grammar text: check, rewrite, compile, and say where it fails."""

from __future__ import annotations

import re
from dataclasses import dataclass

from llguidance import LLMatcher

from engine.errors import SchemaError
from engine.grammar.build import Builder, BuildError
from engine.grammar.contents import check_contents
from engine.grammar.document import Dialect, Json, SchemaDocument, load_document
from engine.grammar.endless import find_endless, find_in_place_cycle
from engine.grammar.graph import SchemaGraph, build_graph
from engine.grammar.mask_schema import MaskSchema
from engine.grammar.report import Finding, SchemaReport
from engine.grammar.rewrite import make_mask_schema
from engine.grammar.unenforced import find_unenforced

REASONS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    (
        r"oneOf constraints",
        ("oneOf",),
        "branches are not provably exclusive; use anyOf, or tell them apart by a required const",
    ),
    (
        r"sibling keys",
        ("$ref",),
        "it is recursive and has keywords beside it; move them to its target",
    ),
    (r"patternProperty", ("patternProperties",), ""),
    (
        r"[mM]in/maxProperties only",
        ("minProperties", "maxProperties"),
        "counts optional properties",
    ),
    (r"minProperties|maxProperties", ("minProperties", "maxProperties"), ""),
    (r"minLength|maxLength", ("minLength", "maxLength"), ""),
    (r"minItems|maxItems", ("minItems", "maxItems"), ""),
    (r"multipleOf|multiple of", ("multipleOf",), ""),
    (r"minimum|maximum|interval|range", ("minimum", "exclusiveMinimum", "maximum", "const"), ""),
    (r"lookaround|look-around", ("pattern", "patternProperties"), "no automaton looks around"),
    (r"regex", ("pattern", "const", "enum", "patternProperties"), ""),
    (r"required property", ("required",), ""),
    (r"anyOf", ("anyOf", "enum", "type"), ""),
    (r"incompatible types", ("type", "const", "enum"), ""),
)
"""The compiler's words -> keywords that can be meant, the likeliest first; clearer words."""

DROPPABLE = frozenset(
    "oneOf patternProperties minProperties maxProperties pattern multipleOf".split()
)
"""What "validate" may leave to the final check when the compiler refuses it."""

MAX_TRIALS = 200
"""Sub-schemas compiled alone, at most, to find the one a refusal is about."""


@dataclass(frozen=True, slots=True)
class SchemaSource:
    """A schema ready for use: its grammar, a matcher at its start, and the account of it."""

    document: SchemaDocument
    grammar: str
    matcher: LLMatcher
    report: SchemaReport


def compile_schema(value: Json, may_drop: bool, builder: Builder) -> SchemaSource:
    """Compile a schema; `may_drop` leaves to the final check what the mask cannot enforce.

    What it holds is counted before (engine.grammar.counts).

    Raises:
        SchemaError: not a schema, beyond a limit, or not enforceable; with pointer and keyword.
    """
    document = load_document(value, builder.limits)
    if document.value is False:
        raise SchemaError("the schema is false: no document is valid", "")
    graph = build_graph(document, builder.limits)
    check_contents(graph, builder.limits)
    unenforced = find_unenforced(graph)
    refused = _unchecked(unenforced, document.dialect) if may_drop else unenforced
    if refused:
        raise _refusal(refused)
    _check_recursion(graph)
    while True:
        mask = make_mask_schema(document, graph, unenforced, builder.limits)
        try:
            grammar = builder.schema_grammar(mask.text_of(""))
            matcher = builder.matcher(grammar)
        except BuildError as error:
            finding = _locate(str(error), mask, graph, builder)
            if not may_drop or finding.keyword not in DROPPABLE or finding in unenforced:
                raise _refusal([finding]) from error
            unenforced.append(finding)
        else:
            return SchemaSource(document, grammar, matcher, _report(mask, unenforced))


def _unchecked(unenforced: list[Finding], dialect: Dialect) -> list[Finding]:
    """Return what the final check does not know either: a keyword of another dialect."""
    known = {*dialect.validator_class.VALIDATORS, "then", "else"}
    return [finding for finding in unenforced if finding.keyword not in known]


def _check_recursion(graph: SchemaGraph) -> None:
    cycle = find_in_place_cycle(graph)
    if cycle is not None:
        where = cycle or "the root"
        raise SchemaError(
            f"$ref: the schema at {where} refers to itself without end", cycle, "$ref"
        )
    endless = find_endless(graph)
    if endless is not None:
        where = endless or "the root"
        raise SchemaError(
            f"$ref: every document of the schema at {where} is endless", endless, "$ref"
        )


def _report(mask: MaskSchema, unenforced: list[Finding]) -> SchemaReport:
    return SchemaReport(
        enforced=tuple(sorted(mask.enforced)),
        rewritten=tuple(mask.rewritten),
        annotations=tuple(mask.annotations),
        unenforced=tuple(unenforced),
    )


def _refusal(findings: list[Finding]) -> SchemaError:
    first = findings[0]
    more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
    keyword = None if first.keyword == "schema" else first.keyword
    return SchemaError(f"cannot be enforced: {first}{more}", first.pointer, keyword)


def _locate(message: str, mask: MaskSchema, graph: SchemaGraph, builder: Builder) -> Finding:
    """Find the schema a refusal is about: the deepest one that is refused on its own as well."""
    pointer, tried = "", {""}
    while True:
        below = [edge.pointer for edge in graph.nodes[pointer].edges if edge.pointer not in tried]
        for child in below[: max(0, MAX_TRIALS - len(tried))]:
            tried.add(child)
            if not isinstance(graph.nodes[child].schema, dict):
                continue
            reason = _refused(mask, child, builder)
            if reason is not None:
                pointer, message = child, reason
                break
        else:
            return _finding(pointer, message, graph.nodes[pointer].schema)


def _refused(mask: MaskSchema, pointer: str, builder: Builder) -> str | None:
    try:
        builder.matcher(builder.schema_grammar(mask.text_of(pointer)))
    except BuildError as error:
        return str(error)
    return None


def _finding(pointer: str, message: str, schema: Json) -> Finding:
    """Name the keyword a message is about; "schema" when it names none the schema has."""
    for words, keywords, note in REASONS:
        present = [keyword for keyword in keywords if keyword in schema]
        if re.search(words, message) and present:
            return Finding(pointer, present[0], note or message)
    return Finding(pointer, "schema", message)
