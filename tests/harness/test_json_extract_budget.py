"""The budget of json-extract: the longest legal document of every schema fits into it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest

from harness.workload import load_workload

WORKLOAD = load_workload("json-extract")
SCHEMAS = sorted(WORKLOAD.schemas)

FORMAT_CHARS = {"date": len("2024-02-29"), "ipv4": len("255.255.255.255")}


class UnboundedError(Exception):
    """A schema node that allows documents of any length, or one this file cannot bound."""


def longest(node: Mapping[str, Any], root: Mapping[str, Any]) -> int:
    """Return an upper bound of the bytes of a compact document of `node`.

    A token spells one byte at least, so it also bounds the tokens, however they are cut.
    """
    if "$ref" in node:
        return longest(root["$defs"][node["$ref"].removeprefix("#/$defs/")], root)
    if "enum" in node:
        return max(len(json.dumps(value)) for value in node["enum"])
    try:
        return LONGEST[node["type"]](node, root)
    except KeyError as missing:
        raise UnboundedError(f"{missing} in {node}") from None


def _longest_string(node: Mapping[str, Any], root: Mapping[str, Any]) -> int:
    quotes = 2
    if "format" in node:
        return FORMAT_CHARS[node["format"]] + quotes
    if not is_plain_ascii(node["pattern"]):
        raise UnboundedError(f"pattern {node['pattern']} allows more than plain ASCII")
    return int(node["maxLength"]) + quotes


def _longest_integer(node: Mapping[str, Any], root: Mapping[str, Any]) -> int:
    return max(len(str(node["minimum"])), len(str(node["maximum"])))


def _longest_number(node: Mapping[str, Any], root: Mapping[str, Any]) -> int:
    decimals = len(str(node["multipleOf"]).partition(".")[2])
    wholes = _longest_integer({key: int(node[key]) for key in ("minimum", "maximum")}, root)
    return wholes + len(".") + decimals


def _longest_array(node: Mapping[str, Any], root: Mapping[str, Any]) -> int:
    count = node["maxItems"]
    return 2 + count * longest(node["items"], root) + max(0, count - 1)


def _longest_object(node: Mapping[str, Any], root: Mapping[str, Any]) -> int:
    if node["additionalProperties"] is not False:
        raise UnboundedError("additionalProperties")
    members = node["properties"].items()
    inner = sum(len(json.dumps(key)) + 1 + longest(value, root) for key, value in members)
    return 2 + inner + max(0, len(members) - 1)


LONGEST = {
    "object": _longest_object,
    "array": _longest_array,
    "string": _longest_string,
    "integer": _longest_integer,
    "number": _longest_number,
    "boolean": lambda node, root: len("false"),
}


def is_plain_ascii(pattern: str) -> bool:
    """True when every string that matches is ASCII that JSON writes without an escape.

    Only patterns from ^ to $ of literals, groups and positive classes pass, and a class holds
    single characters and the ranges of letters and digits.
    """
    unit = r"[A-Za-z0-9 ,:-]|\[(?:A-Z|a-z|[0-9]-[0-9]|[A-Za-z0-9 .,:'&/()+])+-?\]|[()|]"
    return re.fullmatch(rf"\^(?:(?:{unit})(?:[*+?]|\{{\d+(?:,\d+)?\}})?)+\$", pattern) is not None


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_longest_document_fits_the_budget(name: str) -> None:
    bound = longest(WORKLOAD.schemas[name], WORKLOAD.schemas[name])
    end_token = 1
    assert bound + end_token <= WORKLOAD.max_tokens


def test_the_budget_is_not_more_than_the_schemas_need() -> None:
    bounds = [longest(schema, schema) for schema in WORKLOAD.schemas.values()]
    assert WORKLOAD.max_tokens - max(bounds) < 16


@pytest.mark.parametrize(
    ("schema", "bound"),
    [
        ({"type": "integer", "minimum": -5, "maximum": 10}, 2),
        ({"type": "number", "minimum": 0, "maximum": 999.99, "multipleOf": 0.01}, 6),
        ({"type": "number", "minimum": -10, "maximum": 5, "multipleOf": 0.5}, 5),
        ({"type": "boolean"}, 5),
        ({"enum": ["a", "bcd", None]}, 5),
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
        {"type": "object", "properties": {}},
        {"type": "object", "properties": {}, "additionalProperties": True},
        {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False},
    ],
)
def test_a_schema_without_a_bound_is_noticed(schema: dict[str, Any]) -> None:
    with pytest.raises(UnboundedError):
        longest(schema, schema)
