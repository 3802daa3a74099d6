"""The final check reads a text by another route, and says no to whatever is not plainly right."""

from __future__ import annotations

import pytest

from engine.errors import SchemaError
from engine.grammar.document import load_document
from engine.grammar.limits import GrammarLimits
from engine.grammar.text_check import NotADocumentError, SchemaCheck, parse_document
from tests.effort import effort

NOT_DOCUMENTS = {
    "nothing": "",
    "two documents": "{} {}",
    "a cut one": '{"a":',
    "a key twice": '{"a":1,"a":1}',
    "a key twice, once by an escape": '{"a":1,"\\u0061":1}',
    "a key twice, deep down": '[{"b":{"a":1,"c":2,"a":3}}]',
    "an infinite number": '{"x":1e999}',
    "a name for no number": "[NaN]",
    "a name for infinity": "[-Infinity]",
    "thousands of digits": "9" * 5000,
    "a tower of arrays": "[" * 100_000,
    "a second decimal point": "3.5.5",
}


@pytest.mark.parametrize("name", NOT_DOCUMENTS)
def test_a_text_is_not_a_document_with(name):
    with pytest.raises(NotADocumentError):
        parse_document(NOT_DOCUMENTS[name])


def test_a_document_is_read_as_it_stands():
    assert parse_document('{"a":[1,-2.5e3,null,"x"]}') == {"a": [1, -2500.0, None, "x"]}


def test_thousands_of_huge_numbers_are_read_with_little_effort():
    def read():
        with pytest.raises(NotADocumentError):
            parse_document("[" + ",".join(["1e4299"] * 5000) + "]")
        parse_document("[" + ",".join(["1e299"] * 5000) + "]")

    assert effort(read) < 60


WRONG_FORMATS = {
    "date": "2023-02-29",
    "date-time": "1990-02-31T15:59:59Z",
    "time": "08:30:06 PST",
    "duration": "PT1D",
    "email": "2962",
    "idn-email": "2962",
    "hostname": "-a.example",
    "idn-hostname": "a..b",
    "ipv4": "256.1.1.1",
    "ipv6": "12345::",
    "uri": "//foo.bar/?baz=qux#quux",
    "uri-reference": "\\\\WINDOWS\\fileshare",
    "iri": "/abc",
    "iri-reference": "\\\\WINDOWS\\file",
    "uri-template": "http://example.com/{term",
    "json-pointer": "/foo/bar~",
    "relative-json-pointer": "/foo/bar",
    "regex": "^(abc]",
    "uuid": "2eb8aa08-aa98-11ea-b4aa-73b441d1638",
}


@pytest.mark.parametrize("name", WRONG_FORMATS)
def test_every_format_has_a_checker_that_bites(name):
    document = load_document({"type": "string", "format": name}, GrammarLimits())

    assert not SchemaCheck.of(document).accepts(f'"{WRONG_FORMATS[name]}"'.replace("\\", "\\\\"))


@pytest.mark.parametrize(
    ("schema", "text", "verdict"),
    [
        ({"type": "array", "uniqueItems": True}, "[1,2]", "checked"),
        ({"type": "array", "uniqueItems": True}, "[1,1]", "failed"),
        ({"not": {"const": 1}, "type": "integer"}, "2", "checked"),
        ({"not": {"const": 1}, "type": "integer"}, "1", "failed"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "1.5", "checked"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "1", "failed"),
        ({"type": "string", "pattern": "(?!x)y"}, '"ay"', "checked"),
        ({"type": "string", "pattern": "(?!x)y"}, '"x"', "failed"),
        ({"properties": {"a": {}, "b": {}}, "minProperties": 1}, '{"b":1}', "checked"),
        ({"properties": {"a": {}, "b": {}}, "minProperties": 1}, "{}", "failed"),
        (
            {"patternProperties": {"^a": {"type": "integer"}, "b$": {"type": "string"}}},
            '{"ab":1}',
            "failed",
        ),
        ({"type": "number", "multipleOf": 1e-300}, "0.75", "checked"),
        ({"type": "string", "format": "regex"}, '"a+"', "checked"),
        ({"type": "string", "format": "regex"}, '"("', "failed"),
        ({"type": "integer"}, "1", "enforced"),
    ],
)
def test_what_the_mask_leaves_open_is_validated_when_that_is_asked_for(
    bench, schema, text, verdict
):
    grammar = bench.compile(schema, on_unsupported="validate")
    state = grammar.start(bench.encode(text))

    assert state.check_text(text) == verdict
    assert bool(grammar.report.unenforced) == (verdict != "enforced")


def test_invalid_schemas_are_refused_even_when_validation_is_asked_for(bench):
    for schema in ({"type": "strng"}, {"$ref": "#/missing"}, {"pattern": "("}, False):
        with pytest.raises(SchemaError, match=r"not a valid|leads nowhere|is false|reads"):
            bench.compile(schema, on_unsupported="validate")


def test_a_keyword_the_final_check_does_not_know_is_refused_all_the_same(bench):
    schema = {"dependencies": {"a": ["b"]}}
    with pytest.raises(SchemaError, match="dependencies"):
        bench.compile(schema, on_unsupported="validate")

    older = {"$schema": "http://json-schema.org/draft-07/schema#", **schema}
    grammar = bench.compile(older, on_unsupported="validate")
    assert grammar.start(bench.encode('{"a":1}')).check_text('{"a":1}') == "failed"
