"""The bound that budgets of workloads rest on is known for small schemas, or refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness.longest_document import UnboundedError, longest


@pytest.mark.parametrize(
    ("schema", "bound"),
    [
        ({"type": "integer", "minimum": -5, "maximum": 10}, 2),
        ({"type": "number", "minimum": 0, "maximum": 999.99, "multipleOf": 0.01}, 6),
        ({"type": "number", "minimum": -10, "maximum": 5, "multipleOf": 0.5}, 5),
        ({"type": "boolean"}, 5),
        ({"enum": ["a", "bcd", None]}, 5),
        ({"const": "abcd"}, 6),
        ({"anyOf": [{"const": "abcd"}, {"type": "boolean"}]}, 6),
        ({"type": "string", "format": "date"}, 12),
        ({"type": "string", "pattern": "^[a-z]+$", "maxLength": 3}, 5),
        (
            {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
            len("[false,false,false]"),
        ),
        (
            {
                "type": "object",
                "properties": {"a": {"type": "boolean"}, "b": {"enum": [1]}},
                "additionalProperties": False,
            },
            len('{"a":false,"b":1}'),
        ),
    ],
)
def test_the_longest_document_of_small_schemas_is_known(schema: dict[str, Any], bound: int) -> None:
    assert longest(schema, schema) == bound


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "string"},
        {"type": "string", "maxLength": 5},
        {"type": "string", "pattern": "^[a-z]+$"},
        {"type": "string", "pattern": "^[^a]+$", "maxLength": 5},
        {"type": "string", "pattern": "^.+$", "maxLength": 5},
        {"type": "string", "pattern": "[a-z]", "maxLength": 5},
        {"type": "string", "pattern": "^[ -~]+$", "maxLength": 5},
        {"type": "string", "pattern": "^[ -z]+$", "maxLength": 5},
        {"type": "string", "pattern": '^["]+$', "maxLength": 5},
        {"type": "string", "pattern": r"^\w+$", "maxLength": 5},
        {"type": "string", "pattern": "^[a-z\u00e4]+$", "maxLength": 5},
        {"type": "string", "format": "uri"},
        {"type": "integer", "minimum": 0},
        {"type": "number", "minimum": 0, "maximum": 1},
        {"type": "array", "items": {"type": "boolean"}},
        {"type": "array", "maxItems": 2},
        {"anyOf": [{"const": 1}, {"type": "string"}]},
        {"type": "object", "properties": {}},
        {"type": "object", "properties": {}, "additionalProperties": True},
        {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False},
    ],
)
def test_a_schema_without_a_bound_is_noticed(schema: dict[str, Any]) -> None:
    with pytest.raises(UnboundedError):
        longest(schema, schema)
