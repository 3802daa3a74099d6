"""Nothing in a schema is ignored without a line in its report."""

from __future__ import annotations

import json

from engine.grammar.graph import SILENT
from engine.grammar.rewrite import ENFORCED
from engine.grammar.unenforced import CHECKS, IMPOSSIBLE, NO_OPS


def test_every_keyword_has_one_place():
    assert not ENFORCED & SILENT
    assert not IMPOSSIBLE & (ENFORCED | SILENT)
    assert set(CHECKS) <= ENFORCED
    assert set(NO_OPS) <= ENFORCED | IMPOSSIBLE | {"minContains", "maxContains"}


def test_a_plain_schema_is_enforced_as_it_stands(bench):
    schema = {"type": "array", "items": {"enum": ["a"]}, "maxItems": 3, "title": "t"}

    report = bench.compile(schema).report

    assert report.enforced == ("enum", "items", "maxItems", "type")
    assert report.as_dict() == {
        "enforced": ["enum", "items", "maxItems", "type"],
        "rewritten": [],
        "annotations": [],
        "unenforced": [],
    }


def test_rewrites_are_listed_where_they_are(bench):
    schema = {
        "type": "object",
        "properties": {
            "day": {"format": "date", "type": "string"},
            "n": {"type": "number"},
            "free": True,
            "code": {"type": "string", "pattern": r"^\w+$"},
            "list": {"type": "array", "uniqueItems": False, "items": {"const": 1}},
        },
        "unevaluatedProperties": False,
    }

    report = bench.compile(schema).report

    found = {(item.pointer, item.keyword) for item in report.rewritten}
    assert found == {
        ("", "unevaluatedProperties"),
        ("/properties/day", "format"),
        ("/properties/n", "maximum, minimum, multipleOf"),
        ("/properties/code", "pattern"),
        ("/properties/list", "uniqueItems"),
        ("/properties/free", "true"),
    }
    json.dumps(report.as_dict())


def test_words_that_assert_nothing_are_listed(bench):
    schema = {
        "type": "string",
        "nullable": True,
        "contentEncoding": "base64",
        "x-guidance": {"lenient": True},
        "description": "d",
    }

    grammar = bench.compile(schema)

    keywords = [item.keyword for item in grammar.report.annotations]
    assert keywords == ["nullable", "contentEncoding", "x-guidance"]
    assert grammar.report.enforced == ("type",)
    assert not bench.accepts(grammar, "null")


def test_options_for_the_compiler_inside_a_schema_have_no_effect(bench):
    schema = {
        "type": "array",
        "items": {"const": 1},
        "x-guidance": {"whitespace_flexible": True, "lenient": True, "item_separator": ";"},
    }

    assert bench.verdicts(schema, ["[1,1]", "[1, 1]", "[1;1]"]) == {
        "[1,1]": True,
        "[1, 1]": False,
        "[1;1]": False,
    }


def test_what_is_left_to_the_final_check_is_listed(bench):
    schema = {"type": "array", "uniqueItems": True, "items": {"not": {"const": 1}}}

    report = bench.compile(schema, on_unsupported="validate").report

    assert [(item.pointer, item.keyword) for item in report.unenforced] == [
        ("", "uniqueItems"),
        ("/items", "not"),
    ]
