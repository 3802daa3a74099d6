"""Validation is exact: decimals by their digits, `$` at the end, formats really checked."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import SchemaError
from harness.judging.validation import DIALECT, FORMATS, schema_check

WRONG = {
    "date": "2023-02-29",
    "date-time": "2024-01-01 10:00",
    "duration": "1 day",
    "email": "2962",
    "hostname": "-a.example",
    "idn-email": "2962",
    "idn-hostname": "\u302ea.example",
    "ipv4": "256.1.1.1",
    "ipv6": "12345::",
    "iri": "no scheme",
    "iri-reference": "\\\\a\\b",
    "json-pointer": "a",
    "regex": "(",
    "relative-json-pointer": "/a",
    "time": "25:00:00Z",
    "uri": "//no-scheme",
    "uri-reference": "\\\\a\\b",
    "uri-template": "{a",
    "uuid": "2962",
}

FORMAT_ROWS: list[tuple[str, str, bool]] = [
    ("date", "2024-02-29", True),
    ("date", "2100-02-29", False),
    ("date", "2023-04-31", False),
    ("date", "0000-01-01", False),
    ("date", "06/19/1963", False),
    ("date", "2024-02-29\n", False),
    ("date-time", "2024-02-29T08:30:06Z", True),
    ("date-time", "1998-12-31T22:59:60Z", False),
    ("date-time", "1990-02-31T15:59:59Z", False),
    ("time", "08:30:06Z", True),
    ("time", "22:59:60Z", False),
    ("time", "08:30:06 PST", False),
    ("ipv4", "10.0.3.17", True),
    ("ipv4", "10.0.3.017", False),
    ("ipv6", "::ffff:192.168.0.1", True),
    ("ipv6", "::1", True),
    ("hostname", "a.example", True),
    ("email", '"joe bloggs"@example.com', True),
]

DIFFERS_FROM_STANDARD = {
    "refuses every leap second": ("date-time", "1998-12-31T23:59:60Z", False),
    "does not decode punycode": ("hostname", "xn--X", True),
}


def accepts(schema: dict[str, Any], document: Any) -> bool:
    return schema_check(schema).first_error(document) is None


def test_every_format_with_a_checker_refuses_a_wrong_value() -> None:
    assert set(WRONG) == set(FORMATS.checkers), "jsonschema[format-nongpl] is not fully installed"
    assert [name for name, value in WRONG.items() if accepts({"format": name}, value)] == []


@pytest.mark.parametrize(("name", "value", "is_right"), FORMAT_ROWS)
def test_formats_follow_the_standard(name: str, value: str, is_right: bool) -> None:
    assert accepts({"type": "string", "format": name}, value) is is_right


@pytest.mark.parametrize(
    ("name", "value", "verdict"), DIFFERS_FROM_STANDARD.values(), ids=DIFFERS_FROM_STANDARD
)
def test_known_differences_from_the_standard_are_these(
    name: str, value: str, verdict: bool
) -> None:
    assert accepts({"type": "string", "format": name}, value) is verdict


def test_formats_without_a_checker_are_named_wherever_they_stand() -> None:
    schema = {
        "properties": {
            "format": {"type": "string", "format": "slug"},
            "list": {"items": {"anyOf": [{"format": "date"}, {"format": "color-name"}]}},
        },
        "examples": [{"format": "not-an-assertion"}],
    }
    assert schema_check(schema).unchecked_formats == ("color-name", "slug")


@given(st.integers(0, 10**7), st.sampled_from([(1, 0.1), (2, 0.01), (3, 0.001), (1, 0.5)]))
def test_decimals_are_multiples_by_their_digits(units: int, case: tuple[int, float]) -> None:
    digits, divisor = case
    value = json.loads(f"{units // 10**digits}.{units % 10**digits:0{digits}d}")
    assert accepts({"multipleOf": divisor}, value) is (units % round(divisor * 10**digits) == 0)


@pytest.mark.parametrize("value", [0.07, 0.29, 1.1, 9999.99, 12, 0, -0.07])
def test_two_validators_agree_on_cents(value: float) -> None:
    assert accepts({"multipleOf": 0.01}, value)
    assert jsonschema_rs.is_valid({"multipleOf": 0.01}, value)


@pytest.mark.parametrize("value", [0.075, 1e-300, 0.001])
def test_parts_of_a_cent_are_refused(value: float) -> None:
    assert not accepts({"multipleOf": 0.01}, value)


@pytest.mark.parametrize(
    ("pattern", "value", "is_match"),
    [
        ("^[A-Z]+$", "ABC", True),
        ("^[A-Z]+$", "ABC\n", False),
        ("^(a$|b$)", "b\n", False),
        ("^[$]$", "$", True),
        (r"^\$$", "$", True),
        (r"^[\]$]+$", "]$", True),
        ("b", "abc", True),
    ],
)
def test_a_dollar_ends_the_string_and_nothing_comes_after(
    pattern: str, value: str, is_match: bool
) -> None:
    assert accepts({"pattern": pattern}, value) is is_match


def test_exactness_survives_a_reference_to_the_root() -> None:
    schema = {
        "$schema": DIALECT,
        "properties": {"price": {"multipleOf": 0.01}, "next": {"$ref": "#"}},
    }
    assert accepts(schema, {"next": {"next": {"price": 0.07}}})
    assert not accepts(schema, {"next": {"next": {"price": 0.075}}})


def test_an_error_is_one_short_line_that_names_the_place() -> None:
    error = schema_check({"properties": {"a": {"maxLength": 3}}}).first_error({"a": "x\n" * 500})
    assert error is not None
    assert error.startswith("$.a: ")
    assert "\n" not in error
    assert len(error) <= 200


def test_a_document_nested_too_deep_is_refused_not_a_crash() -> None:
    document: Any = 1
    for _ in range(900):
        document = [document]
    schema = {"$defs": {"list": {"items": {"$ref": "#/$defs/list"}}}, "$ref": "#/$defs/list"}
    error = schema_check(schema).first_error(document)
    assert error == "nested too deep to be checked"


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"properties": {"a": {"type": "strin"}}}, "/properties/a/type"),
        ({"maxLength": -1}, "/maxLength"),
        ({"pattern": "("}, "/pattern"),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, "/$schema"),
    ],
)
def test_what_is_no_schema_is_refused_with_its_place(schema: dict[str, Any], pointer: str) -> None:
    with pytest.raises(SchemaError) as caught:
        schema_check(schema)
    assert caught.value.pointer == pointer


@pytest.mark.parametrize("ref", ["#/$defs/missing", "https://example.invalid/schema.json"])
def test_a_reference_that_leads_nowhere_is_an_error_and_never_fetched(ref: str) -> None:
    with pytest.raises(SchemaError, match="leads nowhere"):
        schema_check({"$ref": ref}).first_error({})
