"""A text the mask lets through as a format is one for both validators."""

from __future__ import annotations

import json
import re

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from engine.grammar.formats import FORMATS, UNENFORCEABLE_FORMATS

CHECKER = Draft202012Validator.FORMAT_CHECKER

RIGHT = {
    "date": ["2024-02-29", "2000-02-29", "0004-02-29", "9999-12-31", "0001-01-01", "1963-06-19"],
    "date-time": ["1963-06-19T08:30:06.283185Z", "1990-12-31T15:59:59-08:00"],
    "time": ["08:30:06Z", "23:59:59.123+23:59"],
    "duration": ["P4DT12H30M5S", "P1Y", "PT36H", "P2W", "P1Y2M", "PT1M"],
    "email": ["joe.bloggs@example.com", "te~st@example.com", '"joe bloggs"@example.com', "a.b.c@d"],
    "hostname": ["a.example", "www.example.com", "hostnam3", "1host", "a" * 63 + ".b"],
    "ipv4": ["192.168.0.1", "0.0.0.0", "255.255.255.255"],
    "ipv6": ["::1", "::", "::ffff:192.168.0.1", "1:2:3:4:5:6:7:8", "::42:ff:1", "d6::", "1:d6::42"],
    "uri": ["http://foo.bar/?baz=qux#quux", "urn:oasis:names", "file:///a", "ftp://[::1]:21/x%20y"],
    "uri-reference": ["/abc", "//foo.bar/x", "#frag", "", "a/b?c", "http://x"],
    "uri-template": ["http://example.com/dictionary/{term}/{?x,y*}", "dictionary"],
    "json-pointer": ["/foo/bar~0/baz~1/%a", "", "/", "/é"],
    "relative-json-pointer": ["1", "0/foo/bar", "2/0/baz/1/zip", "0#"],
    "uuid": ["2EB8AA08-AA98-11EA-B4AA-73B441D16380", "00000000-0000-0000-0000-000000000000"],
}  # fmt: skip
WRONG = {
    "date": ["2023-02-29", "2100-02-29", "1900-02-29", "2023-04-31", "0000-01-01", "06/19/1963",
             "2024-13-01", "2024-1-1", "0100-02-29"],
    "date-time": ["1998-12-31T22:59:60Z", "1998-12-31T23:59:60Z", "1990-02-31T15:59:59Z",
                  "2023-02-29T00:00:00Z", "2024-01-01T24:00:00Z", "2024-01-01T00:00:00"],
    "time": ["22:59:60Z", "23:59:60Z", "08:30:06 PST", "08:30:06", "24:00:00Z", "08:30:06+24:00"],
    "duration": ["PT1D", "P", "P1", "P1YT", "P2D1Y", "1Y", "P1W2D"],
    "email": ["2962", "joe bloggs@example.com", ".a@b.c", "a..b@c.d", "a@-b"],
    "hostname": ["-a.example", "xn--X", "a-.b", "a..b", "", "a" * 64, "a_b"],
    "ipv4": ["127.0.0.0.1", "256.1.1.1", "1.1.1", "01.1.1.1", "0x7f.0.0.1"],
    "ipv6": ["12345::", ":2:3", "1::2::3", "1:2:3:4:5:6:7:8:9", "::1%eth0", "::256.1.1.1"],
    "uri": ["//foo.bar/?baz", "/abc", "a b:", "http:// x", "http://a/\\", "bar,baz:foo"],
    "json-pointer": ["/foo/bar~", "/~2", "a", "#"],
    "uuid": ["2eb8aa08-aa98-11ea-b4aa-73b441d1638", "2eb8aa08aa9811eab4aa73b441d16380"],
}  # fmt: skip


def test_every_format_with_a_checker_has_a_pattern_or_is_refused():
    assert set(CHECKER.checkers) == set(FORMATS) | UNENFORCEABLE_FORMATS


@pytest.mark.parametrize("name", FORMATS)
@given(data=st.data())
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
def test_no_text_of_a_pattern_is_refused_by_a_checker(name, data):
    spelt = FORMATS[name].schema()
    whole = re.compile(str(spelt["pattern"]).removesuffix("$") + r"\Z", re.ASCII)
    text = data.draw(st.from_regex(whole, fullmatch=True))
    second = jsonschema_rs.validator_for({"type": "string", "format": name}, validate_formats=True)

    if len(text) <= int(str(spelt.get("maxLength", len(text)))):
        assert CHECKER.conforms(text, name)
        assert second.is_valid(text)


@pytest.mark.parametrize("name", RIGHT)
def test_the_usual_texts_of_a_format_are_allowed(bench, name):
    texts = [json.dumps(text, ensure_ascii=False) for text in RIGHT[name]]

    assert bench.verdicts({"type": "string", "format": name}, texts) == dict.fromkeys(texts, True)


@pytest.mark.parametrize("name", WRONG)
def test_texts_that_only_look_like_a_format_are_not(bench, name):
    texts = [json.dumps(text) for text in WRONG[name]]

    assert bench.verdicts({"type": "string", "format": name}, texts) == dict.fromkeys(texts, False)


def test_a_format_meets_the_other_keywords_of_its_schema(bench):
    schema = {"format": "date", "pattern": "^202", "maxLength": 10}
    texts = {'"2024-02-29"': True, '"1999-01-01"': False, '"202"': False, "5": True}

    assert bench.verdicts(schema, list(texts)) == texts


def test_an_unknown_format_is_an_annotation_and_reported(bench):
    grammar = bench.compile({"type": "string", "format": "slug"})

    assert bench.accepts(grammar, '"not a slug!"')
    assert [item.keyword for item in grammar.report.annotations] == ["format"]
    assert "slug" in str(grammar.report.annotations[0])
