"""How long the longest document of a schema can be, for schemas of the kind workloads have."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

FORMAT_CHARS = {"date": len("2024-02-29"), "ipv4": len("255.255.255.255")}


class UnboundedError(Exception):
    """A schema node that allows documents of any length, or one this file cannot bound."""


def longest(node: Mapping[str, Any], root: Mapping[str, Any]) -> int:
    """Return an upper bound of the bytes of a compact document of `node`.

    A token spells one byte at least, so it also bounds the tokens, however they are cut.
    """
    if "$ref" in node:
        return longest(root["$defs"][node["$ref"].removeprefix("#/$defs/")], root)
    if "anyOf" in node:
        return max(longest(branch, root) for branch in node["anyOf"])
    if "const" in node:
        return len(json.dumps(node["const"]))
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
