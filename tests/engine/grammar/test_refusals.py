"""A schema that cannot be held to is refused, with the place and the keyword, at once."""

from __future__ import annotations

import contextlib
import json

import pytest

from engine.errors import SchemaError
from engine.grammar.limits import GrammarLimits
from tests.effort import effort


def inside(schema: object) -> dict[str, object]:
    """Put a schema where its pointer is /properties/x."""
    return {"type": "object", "properties": {"x": schema}, "required": ["x"]}


UNENFORCEABLE: dict[str, dict[str, object]] = {
    "uniqueItems": {"type": "array", "uniqueItems": True},
    "not": {"type": "object", "not": {"required": ["a"]}},
    "if": {"if": {"const": 1}, "then": {"const": 2}},
    "contains": {"contains": {"const": 5}},
    "dependentRequired": {"dependentRequired": {"a": ["b"]}},
    "dependentSchemas": {"dependentSchemas": {"a": {"required": ["b"]}}},
    "dependencies": {"dependencies": {"a": ["b"]}},
    "propertyNames": {"propertyNames": {"pattern": "^x"}},
    "unevaluatedProperties": {"allOf": [{"properties": {"a": {}}}], "unevaluatedProperties": False},
    "unevaluatedItems": {"anyOf": [{"prefixItems": [{}]}], "unevaluatedItems": False},
    "$dynamicRef": {"$dynamicRef": "#node"},
    "patternProperties": {
        "patternProperties": {"^a": {"type": "integer"}, "b$": {"type": "string"}},
        "additionalProperties": False,
    },
    "oneOf": {"oneOf": [{"type": "integer"}, {"type": "number"}]},
    "format": {"type": "string", "format": "regex"},
    "multipleOf": {"type": "number", "multipleOf": 1e-300},
    "minProperties": {"properties": {"a": {}, "b": {}}, "minProperties": 1},
    "const": {"const": 12345678901234567890123},
    "enum": {"enum": [1, [{"a": 2**53 + 1}]]},
    "minLength": {"minLength": 10**12},
    "minimum": {"type": "integer", "minimum": 5, "maximum": 2},
}
PATTERNS = [
    "foo**[", "(?!x)y", "(?<=x)y", r"(a)\1", "[z-a]", "a{5,2}", "(", r"\p{Nope}", r"\bx", "a^b",
    "[[:digit:]]", "[a&&b]", "a*+b", "(?x)a b", r"(?<name>a)", r"\u{61}",
]  # fmt: skip
NOT_SCHEMAS: list[tuple[object, str | None, str | None]] = [
    ({"type": "strng"}, "", "type"),
    ({"type": 5}, "", "type"),
    ({"properties": []}, "", "properties"),
    ({"type": "object", "required": "a"}, "", "required"),
    ({"enum": "a"}, "", "enum"),
    ({"type": "string", "minLength": -1}, "", "minLength"),
    ({"type": "array", "items": [{"type": "integer"}]}, "", "items"),
    (inside({"type": "object", "properties": None}), "/properties/x", "properties"),
    ({"$ref": "#/$defs/missing"}, "", "$ref"),
    (inside({"$ref": "#/properties/y"}), "/properties/x", "$ref"),
    (inside({"$ref": "https://example.invalid/s.json"}), "/properties/x", "$ref"),
    ({"$ref": "#/title", "title": "t"}, "", "$ref"),
    ({"$ref": "#"}, "", "$ref"),
    (inside({"$ref": "#"}), "", "$ref"),
    ({"anyOf": [{"type": "null"}, {"allOf": [{"$ref": "#"}]}]}, "", "$ref"),
    (
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        "/$defs/a",
        "$ref",
    ),
    ({"$schema": "https://example.invalid/dialect"}, "", "$schema"),
    (False, "", None),
    ('{"type":"object"}', "", None),
    (None, "", None),
    ([], "", None),
    ({"const": {1, 2}}, "", None),
    ({"const": float("nan")}, "", None),
]


@pytest.mark.parametrize("keyword", UNENFORCEABLE)
@pytest.mark.parametrize("has_type", [False, True], ids=["as it is", "with a type"])
def test_what_cannot_be_enforced_is_refused_where_it_stands(bench, keyword, has_type):
    types = {"type": ["object", "array", "string", "number", "null"]} if has_type else {}
    schema = {**types, **UNENFORCEABLE[keyword]}

    with pytest.raises(SchemaError, match=r"/properties/x") as caught:
        bench.compile(inside(schema))

    assert (caught.value.pointer, caught.value.keyword) == ("/properties/x", keyword)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("keyword", ["pattern", "patternProperties"])
def test_a_pattern_that_cannot_be_read_everywhere_is_refused(bench, pattern, keyword):
    schema = {"pattern": pattern} if keyword == "pattern" else {keyword: {pattern: {}}}

    with pytest.raises(SchemaError) as caught:
        bench.compile(inside(schema))

    assert (caught.value.pointer, caught.value.keyword) == ("/properties/x", keyword)


@pytest.mark.parametrize("case", NOT_SCHEMAS, ids=lambda case: str(case[0])[:60])
def test_what_is_no_schema_is_refused(bench, case):
    schema, pointer, keyword = case

    with pytest.raises(SchemaError) as caught:
        bench.compile(schema)

    assert (caught.value.pointer, caught.value.keyword) == (pointer, keyword)
    assert "\n" not in str(caught.value)


def test_a_refused_constraint_is_refused_again(bench):
    for _ in range(2):
        with pytest.raises(SchemaError, match="not a regular expression"):
            bench.compile({"type": "string", "pattern": "("})


def test_unreachable_definitions_are_not_looked_at(bench):
    schema = {"type": "null", "$defs": {"unused": {"uniqueItems": True, "$ref": "#/nowhere"}}}

    assert bench.verdicts(schema, ["null"]) == {"null": True}


def test_the_first_of_several_reasons_is_named_and_the_rest_counted(bench):
    schema = {"type": "array", "uniqueItems": True, "items": {"not": {"const": 1}}}

    with pytest.raises(SchemaError, match=r"uniqueItems at the root: .* \(and 1 more\)"):
        bench.compile(schema)


def wrap(depth: int, keyword: str) -> object:
    schema: object = {"type": "integer"}
    for _ in range(depth):
        schema = {keyword: [schema]} if keyword == "anyOf" else {"properties": {"a": schema}}
    return schema


@pytest.mark.parametrize("keyword", ["properties", "anyOf"])
@pytest.mark.parametrize("depth", [60, 100, 500, 3000])
def test_nesting_beyond_the_limit_is_refused_by_name(bench, keyword, depth):
    with pytest.raises(SchemaError, match="depth limit"):
        bench.compile(wrap(depth, keyword))


def test_a_schema_that_contains_itself_is_refused(bench):
    schema: dict[str, object] = {"type": "object"}
    schema["properties"] = {"a": schema}

    with pytest.raises(SchemaError, match="depth limit"):
        bench.compile(schema)


def test_a_long_chain_of_references_is_refused_before_it_hurts_the_process(bench):
    chain = {f"a{n}": {"properties": {"p": {"$ref": f"#/$defs/a{n + 1}"}}} for n in range(3000)}
    schema = {"$ref": "#/$defs/a0", "$defs": {**chain, "a3000": {"type": "integer"}}}

    with pytest.raises(SchemaError, match="depth limit"):
        bench.compile(schema)


def test_a_chain_of_references_just_within_the_limit_compiles(bench):
    chain = {f"a{n}": {"items": {"$ref": f"#/$defs/a{n + 1}"}} for n in range(480)}
    schema = {"$ref": "#/$defs/a0", "$defs": {**chain, "a480": {"const": 1}}}

    assert bench.verdicts(schema, ["[[[]]]"]) == {"[[[]]]": True}


@pytest.mark.parametrize(
    ("limits", "schema", "words"),
    [
        ({"max_schema_bytes": 50}, {"const": "x" * 60}, "takes .* bytes; the limit is 50"),
        ({"max_properties": 2}, {"properties": {"a": {}, "b": {}, "c": {}}}, "has 3 properties"),
        ({"max_enum_values": 2}, {"enum": [1, 2, 3]}, "has 3 values; the limit is 2"),
        ({"max_pattern_bytes": 5}, {"pattern": "abcdef"}, "has 6 bytes; the limit is 5"),
        ({"max_nodes": 3}, {"prefixItems": [{}, {}, {}]}, "more than 3 subschemas"),
    ],
    ids=lambda value: next(iter(value), "") if isinstance(value, dict) else "",
)
def test_sizes_are_limited_before_compiling(make_bench, limits, schema, words):
    with pytest.raises(SchemaError, match=words):
        make_bench(GrammarLimits(**limits)).compile(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "minLength": 2_000_000_000, "maxLength": 2**31 - 1},
        {"type": "string", "maxLength": 10**20},
        {"type": "array", "minItems": 1000, "items": {"type": "array", "minItems": 1000}},
        {"type": "string", "pattern": "^(a|b){1,100000}$"},
        {"enum": [f"category/sub/{index:05d}" for index in range(20_000)]},
        {"allOf": [{"anyOf": [{"required": [f"{a}{b}"]} for b in range(4)]} for a in range(8)]},
    ],
    ids=lambda schema: json.dumps(schema)[:50],
)
def test_extreme_bounds_compile_or_are_refused_with_little_effort(bench, schema):
    def compile_it():
        with contextlib.suppress(SchemaError):
            bench.compile(schema)

    assert effort(compile_it) < 200
