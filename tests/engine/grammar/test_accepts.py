"""What a schema allows, the mask allows, and nothing else: verdicts by text."""

from __future__ import annotations

import itertools
import json

import pytest

DEFS = {
    "C": {"type": "object", "properties": {"p": {"$ref": "#/$defs/A"}}, "required": ["p"]},
    "A": {"type": "object", "properties": {"p": {"$ref": "#/$defs/B"}}, "required": ["p"]},
    "B": {"type": "object", "properties": {"k": {"const": "B"}}, "required": ["k"]},
}
CLOSED = {"additionalProperties": False}
ORDER = {
    "type": "object",
    "properties": {
        "thought": {"type": "string", "maxLength": 40},
        "item": {"type": "string"},
        "comment": {"type": "string"},
        "qty": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["thought", "item", "qty"],
    **CLOSED,
}

TABLE: dict[str, tuple[object, list[str], list[str]]] = {
    "an object without properties is free": (
        {"type": "object"},
        ["{}", '{"any":{"b":[1,null]}}'],
        ["[]", '"x"'],
    ),
    "a required key of a free object is there": (
        {"type": "object", "required": ["a"]},
        ['{"a":1}', '{"a":1,"b":2}'],
        ["{}", '{"b":1}'],
    ),
    "minItems holds without items": ({"type": "array", "minItems": 1}, ["[1]", "[{}]"], ["[]"]),
    "string keywords leave other types alone": (
        {
            "type": "object",
            "properties": {"code": {"pattern": "^[a-z]+$", "maxLength": 3}},
            "required": ["code"],
            **CLOSED,
        },
        ['{"code":"abc"}', '{"code":5}'],
        ['{"code":"abcd"}', '{"code":"AB"}'],
    ),
    "object keywords leave other types alone": (
        {"properties": {"n": {"type": "integer"}}, "required": ["n"]},
        ['{"n":1}', "7"],
        ['{"n":"x"}', "{}"],
    ),
    "true allows every value": (True, ["null", "[1,[2]]", '{"a":"b"}', "-1.5"], ["", "nul", "01"]),
    "an empty schema allows every value": ({}, ["null", "[]", '"x"', "12"], ["x", "{"]),
    "annotations alone allow every value": ({"title": "t", "description": "d"}, ["[]"], ["x"]),
    "an enum as root": ({"enum": ["yes", "no"]}, ['"yes"', '"no"'], ['"y"', "yes", '"maybe"']),
    "an array as root": (
        {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
        ["[]", "[1,2,3]"],
        ["[1,2,3,4]", '["a"]'],
    ),
    "a string as root": ({"type": "string", "maxLength": 5}, ['""', '"abcde"'], ['"abcdef"']),
    "an integer as root": (
        {"type": "integer", "minimum": 0, "maximum": 9},
        ["0", "9"],
        ["10", "-1", "5.0"],
    ),
    "null as root": ({"type": "null"}, ["null"], ["0", '""']),
    "a closed empty object": (
        {"type": "object", "properties": {}, **CLOSED},
        ["{}"],
        ['{"a":1}', "{ }"],
    ),
    "a reference to an enum": (
        {
            "type": "object",
            "properties": {"colour": {"$ref": "#/$defs/Colour"}},
            "required": ["colour"],
            "$defs": {"Colour": {"enum": ["red", "green"], "type": "string"}},
            **CLOSED,
        },
        ['{"colour":"red"}'],
        ['{"colour":{}}', '{"colour":"blue"}'],
    ),
    "a reference into a branch": (
        {
            "type": "object",
            "properties": {
                "l": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "r": {"$ref": "#/properties/l/anyOf/0"},
            },
            "required": ["l", "r"],
            **CLOSED,
        },
        ['{"l":null,"r":"x"}'],
        ['{"l":null,"r":null}'],
    ),
    "a recursive reference": (
        {
            "$ref": "#/$defs/n",
            "$defs": {
                "n": {
                    "type": "object",
                    "properties": {
                        "v": {"type": "integer"},
                        "c": {"type": "array", "items": {"$ref": "#/$defs/n"}},
                    },
                    "required": ["v"],
                    **CLOSED,
                }
            },
        },
        ['{"v":1,"c":[{"v":2,"c":[]}]}', '{"v":1}'],
        ['{"v":1,"c":[{"c":[]}]}'],
    ),
    "escapes in a pointer": (
        {
            "type": "object",
            "properties": {"a~b": {"$ref": "#/$defs/x~1y%20%25z"}},
            "required": ["a~b"],
            "$defs": {"x/y %z": {"const": 1}},
            **CLOSED,
        },
        ['{"a~b":1}'],
        ['{"a~b":2}'],
    ),
    "a reference by anchor": (
        {
            "items": {"$ref": "#word"},
            "type": "array",
            "$defs": {"w": {"$anchor": "word", "const": 1}},
        },
        ["[1,1]"],
        ["[2]"],
    ),
    "a reference by embedded id": (
        {
            "$id": "https://one.example/root",
            "type": "array",
            "items": {"$ref": "word"},
            "$defs": {
                "w": {
                    "$id": "https://one.example/word",
                    "$ref": "#/$defs/v",
                    "$defs": {"v": {"const": 1}},
                }
            },
        },
        ["[1]"],
        ["[2]"],
    ),
    "what looks like an id in data is none": (
        {"enum": [{"$id": "https://x.example/a"}], "$comment": "c"},
        ['{"$id":"https://x.example/a"}'],
        ["{}"],
    ),
    "a reference into a keyword nobody knows": (
        {"type": "array", "items": {"$ref": "#/x-parts/one"}, "x-parts": {"one": {"const": 1}}},
        ["[1]"],
        ["[2]"],
    ),
    "all branches of allOf hold": (
        {
            "allOf": [
                {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
                {"type": "object", "properties": {"b": {"type": "string"}}, "required": ["b"]},
            ]
        },
        ['{"a":1,"b":"x"}'],
        ['{"a":1}', '{"b":"x"}', '{"a":1,"b":2}'],
    ),
    "anyOf beside properties": (
        {
            "type": "object",
            "properties": {"k": {"type": "string"}},
            "required": ["k"],
            "anyOf": [
                {"properties": {"x": {"type": "integer"}}, "required": ["x"]},
                {"properties": {"y": {"type": "integer"}}, "required": ["y"]},
            ],
        },
        ['{"k":"a","x":1}', '{"k":"a","y":2}'],
        ['{"k":"a"}', '{"k":"a","x":"s"}'],
    ),
    "oneOf told apart by a const": (
        {
            "oneOf": [
                {
                    "type": "object",
                    "properties": {"t": {"const": name}, "v": {"type": kind}},
                    "required": ["t", "v"],
                    **CLOSED,
                }
                for name, kind in (("a", "integer"), ("b", "string"))
            ]
        },
        ['{"t":"a","v":1}', '{"t":"b","v":"x"}'],
        ['{"t":"a","v":"x"}', '{"t":"b","v":1}'],
    ),
    "numeric keywords of allOf meet": (
        {"allOf": [{"type": "integer", "minimum": 0}, {"maximum": 10}, {"multipleOf": 5}]},
        ["0", "5", "10"],
        ["3", "15", "-5"],
    ),
    "unevaluatedProperties closes an object of its own": (
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}},
            "unevaluatedProperties": False,
        },
        ["{}", '{"a":1}'],
        ['{"b":1}'],
    ),
    "unevaluatedItems closes an array of its own": (
        {"type": "array", "prefixItems": [{"const": 1}], "unevaluatedItems": False},
        ["[]", "[1]"],
        ["[1,2]"],
    ),
    "keywords that assert nothing change nothing": (
        {
            "type": "array",
            "uniqueItems": False,
            "not": False,
            "if": {"minItems": 9},
            "contains": {"const": 1},
            "minContains": 0,
            "items": {"const": 1},
            "maxItems": 2,
            "minItems": 1,
        },
        ["[1]", "[1,1]"],
        ["[]", "[2]"],
    ),
    "unique items of at most one": (
        {"type": "array", "uniqueItems": True, "maxItems": 1, "items": {"const": 1}},
        ["[]", "[1]"],
        ["[1,1]"],
    ),
    "minProperties that required implies": (
        {
            "type": "object",
            "properties": {"a": {"const": 1}, "b": {"const": 2}},
            "required": ["a"],
            "minProperties": 1,
            "maxProperties": 2,
            **CLOSED,
        },
        ['{"a":1}', '{"a":1,"b":2}'],
        ["{}"],
    ),
    "no item is allowed": (
        {"type": "array", "items": {"type": "string"}, "maxItems": 0},
        ["[]"],
        ['["a"]'],
    ),
    "no character is allowed": ({"type": "string", "maxLength": 0}, ['""'], ['"a"']),
    "a whole number as a float bounds": (
        {"type": "string", "minLength": 2.0, "maxLength": 3.0},
        ['"ab"', '"abc"'],
        ['"a"', '"abcd"'],
    ),
    "a thousand items": (
        {"type": "array", "items": {"type": "integer"}, "minItems": 1000, "maxItems": 1000},
        [json.dumps([1] * 1000, separators=(",", ":"))],
        [json.dumps([1] * count, separators=(",", ":")) for count in (999, 1001)],
    ),
    "draft-04 exclusive bounds": (
        {
            "$schema": "http://json-schema.org/draft-04/schema#",
            "type": "integer",
            "minimum": 3,
            "exclusiveMinimum": True,
            "maximum": 5,
            "exclusiveMaximum": False,
        },
        ["4", "5"],
        ["3", "6"],
    ),
    "draft-07 tuples": (
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "array",
            "items": [{"type": "integer"}, {"type": "string"}],
            "additionalItems": False,
        },
        ["[1]", '[1,"a"]'],
        ['["a"]', '[1,"a",2]'],
    ),
    "draft-07 definitions": (
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "object",
            "properties": {"a": {"$ref": "#/definitions/d"}},
            "required": ["a"],
            "definitions": {"d": {"type": "integer"}},
            **CLOSED,
        },
        ['{"a":1}'],
        ['{"a":"1"}'],
    ),
    "optional keys come in their place or not at all": (
        ORDER,
        ['{"thought":"t","item":"i","qty":1}', '{"thought":"t","item":"i","comment":"c","qty":1}'],
        ['{"thought":"t","item":"i","qty":1,"comment":"c"}', '{"item":"i","thought":"t","qty":1}'],
    ),
    "without required every key is optional": (
        {"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}}, **CLOSED},
        ["{}", '{"a":1}', '{"b":2}', '{"a":1,"b":2}'],
        ['{"b":2,"a":1}'],
    ),
    "a declared key cannot be written by an alias": (
        {"type": "object", "properties": {"a": {"type": "integer"}}},
        ['{"a":1}', '{"b":"x"}'],
        ['{"\\u0061":"x"}', '{"a":1,"\\u0061":"x"}', '{"a":1,"a":2}'],
    ),
    "text around the document is not part of it": (
        {"const": "a"},
        ['"a"'],
        [' "a"', '"a" ', '```json"a"', '"a"\n'],
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_verdicts(bench, name):
    schema, accepted, rejected = TABLE[name]

    verdicts = bench.verdicts(schema, [*accepted, *rejected])

    assert verdicts == dict.fromkeys(accepted, True) | dict.fromkeys(rejected, False)


@pytest.mark.parametrize("names", list(itertools.permutations(DEFS)), ids="".join)
def test_the_order_of_definitions_does_not_matter(bench, names):
    schema = {"$defs": {name: DEFS[name] for name in names}, "$ref": "#/$defs/C"}

    verdicts = bench.verdicts(schema, ['{"p":{"p":{"k":"B"}}}', '{"p":{"zz":1}}', '{"p":{}}'])

    assert list(verdicts.values()) == [True, False, False]


def test_every_value_of_a_large_enum_is_reachable(bench):
    values = [f"category/sub/{index:05d}" for index in range(5000)]
    grammar = bench.compile({"enum": values})

    assert all(bench.accepts(grammar, json.dumps(value)) for value in values[::97])
    assert not bench.accepts(grammar, '"category/sub/05000"')


@pytest.mark.parametrize("depth", [20, 50])
def test_a_deep_schema_within_the_limit_compiles(bench, depth):
    schema, text = {"const": 1}, "1"
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
        text = f'{{"a":{text}}}'

    assert bench.verdicts(schema, [text]) == {text: True}


def test_a_json_object_is_any_object(bench):
    grammar = bench.compile(None, kind="json_object")

    assert bench.accepts(grammar, '{"a":[1,{"b":null}]}')
    assert not bench.accepts(grammar, "[1]")


@pytest.mark.parametrize("max_blanks", [1, 3])
def test_flexible_blanks_are_bounded(make_bench, max_blanks):
    limits = type(make_bench().compiler.limits)(max_blanks=max_blanks)
    bench = make_bench(limits)
    few, many = " " * max_blanks, " " * (max_blanks + 1)
    texts = {
        '{"a":[1,2]}': True,
        f'{{{few}"a"{few}:{few}[1,{few}2]{few}}}': True,
        f'{{{many}"a":[1,2]}}': False,
        f'{{"a":[1,{many}2]}}': False,
        f'{{"a":["{many}{many}"]}}': True,
        f'{{"a":[]}}{few}': False,
        f'{few}{{"a":[]}}': False,
    }

    assert bench.verdicts({"type": "object", "required": ["a"]}, list(texts)) == texts
