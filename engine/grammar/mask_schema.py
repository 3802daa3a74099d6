"""The document that a compiler reads in place of a caller's schema."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from engine.grammar.limits import GrammarLimits
from engine.grammar.numbers import limit_fraction, limit_whole
from engine.grammar.report import Finding

ROOT = "#/fm/root"
Schema = dict[str, Any]


@dataclass(slots=True)
class MaskSchema:
    """A schema on its way to the compiler.

    Args:
        document: what the compiler reads.
        schemas: pointer in the caller's schema -> the object of `document` made from it.
        has_steps: the caller uses multipleOf somewhere.
        held: pointers of everything that holds the target of a reference.
        enforced: names of the keywords met that the mask enforces.
    """

    document: Schema
    schemas: dict[str, Schema]
    has_steps: bool
    held: frozenset[str]
    enforced: set[str] = field(default_factory=set)
    rewritten: list[Finding] = field(default_factory=list)
    annotations: list[Finding] = field(default_factory=list)

    def text_of(self, pointer: str) -> str:
        """Return the document as JSON text, rooted at the schema of `pointer`."""
        rooted = {**self.document, "$ref": reference(pointer)}
        return json.dumps(rooted, ensure_ascii=False)


def free_value(limits: GrammarLimits) -> Schema:
    """Return a schema of any JSON value within the limits on depth and digits."""
    return {"$ref": f"#/fm/any{limits.max_free_depth}"}


def free_values(limits: GrammarLimits) -> dict[str, Schema]:
    """Return bounded numbers, and any0, any1, ...: values nested at most that many levels.

    Shared through references: a bounded number costs the compiler 0.8 ms each time it is written.
    """
    integer: Schema = {"type": "integer"}
    limit_whole(integer, True, limits)
    number: Schema = {"type": "number"}
    limit_whole(number, False, limits)
    limit_fraction(number, limits)
    scalars: list[Schema] = [{"type": ["null", "boolean", "string"]}, {"$ref": "#/fm/number"}]
    found = {"integer": integer, "number": number, "any0": {"anyOf": scalars}}
    for depth in range(1, limits.max_free_depth + 1):
        inner = {"$ref": f"#/fm/any{depth - 1}"}
        array = {"type": "array", "items": inner}
        holders: list[Schema] = [array, {"type": "object", "additionalProperties": inner}]
        found[f"any{depth}"] = {"anyOf": [{"$ref": "#/fm/any0"}, *holders]}
    return found


def reference(pointer: str) -> str:
    """Return the `$ref` to what was at `pointer` in the caller's schema."""
    return ROOT + quote(pointer, safe="/~!$&'()*+,;=:@")
