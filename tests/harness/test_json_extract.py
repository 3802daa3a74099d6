"""The schemas of json-extract: bounded, compiled strictly, and the same to mask and scorer."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema_rs
import pytest
from llguidance import LLMatcher, LLTokenizer

from harness.grade import Outcome, grade_reply
from harness.validation import DIALECT, schema_check
from harness.workload import Prompt, Workload, load_workload

WORKLOAD = load_workload("json-extract")
SCHEMAS = sorted(WORKLOAD.schemas)
PROMPTS = WORKLOAD.prompts + WORKLOAD.warmup

FORMAT_CHARS = {"date": len("2024-02-29"), "ipv4": len("255.255.255.255")}
PLAIN_DATES = "^20[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])$"

ABSENT = object()

# Field -> value; each makes a true document of its schema wrong.
INVALID: dict[str, list[dict[str, Any]]] = {
    "api-config": [
        {"host": "10.0.3.256"},
        {"port": 65536},
        {"tls": "yes"},
        {"methods": []},
        {"methods": ["FETCH"]},
        {"retry": {"tries": 3}},
        {"timeout_s": 0.25},
        {"version": "1.2"},
        {"log": ABSENT},
    ],
    "appointment": [
        {"patient": {"name": "Peter Novak"}},
        {"date": "2023-02-29"},
        {"time": "24:00"},
        {"minutes": 7},
        {"unit": "surgery"},
        {"insured": None},
        {"doctor": ABSENT},
    ],
    "calendar-event": [
        {"date": "2024-13-01"},
        {"start": "9:15"},
        {"minutes": 485},
        {"people": ["Ana", "Bo", "Cy", "Di"]},
        {"people": ["ana"]},
        {"host": {"name": "Ines", "role": "boss"}},
        {"repeat": "yearly"},
        {"title": ABSENT},
    ],
    "invoice": [
        {"number": "2041"},
        {"total": 10000},
        {"total": 1.005},
        {"total": "114.90"},
        {"lines": []},
        {"lines": [{"item": "ink", "qty": 1}]},
        {"lines": [{"item": "ink", "qty": 1.5, "price": 1}]},
        {"issued": "05.03.2024"},
        {"currency": "eur"},
        {"seller": "Paper\u00e9"},
        {"seller": ABSENT},
    ],
    "job-posting": [
        {"mode": "anywhere"},
        {"pay": {"low": 1, "high": 20000, "currency": "EUR"}},
        {"pay": {"low": 20000, "high": 30000}},
        {"skills": ["SQL"]},
        {"years": 21},
        {"closes": "soon"},
        {"city": ABSENT},
    ],
    "library-book": [
        {"year": 1449},
        {"pages": 0},
        {"language": "la"},
        {"shelf": "A1"},
        {"copies": -1},
        {"due_back": "2024-06-31"},
        {"author": ABSENT},
    ],
    "product-listing": [
        {"sku": "LM22081"},
        {"price": -1},
        {"stock": 10000},
        {"size_cm": {"w": 1, "h": 1}},
        {"size_cm": {"w": 1, "h": 1, "d": 1, "kg": 1}},
        {"tags": ["lamp", "office", "home", "desk"]},
        {"rating": 4.7},
        {"brand": ABSENT},
    ],
    "recipe": [
        {"serves": 0},
        {"level": "expert"},
        {"items": [{"item": "flour", "qty": 0, "unit": "g"}]},
        {"items": [{"item": "flour", "qty": 1, "unit": "kg"}]},
        {"items": [{"item": "flour", "unit": "g"}]},
        {"vegan": 1},
        {"oven_c": 301},
        {"name": ABSENT},
    ],
    "shipment": [
        {"tracking": "DE2044171"},
        {"carrier": "drone"},
        {"origin": {"city": "Berlin"}},
        {"target": {"city": "Porto", "country": "PRT"}},
        {"parcels": 100},
        {"weight_kg": 7.45},
        {"weight_kg": 1000},
        {"eta": "2024-05-32"},
        {"status": ABSENT},
    ],
    "support-ticket": [
        {"id": "T-44"},
        {"customer": {"name": "Marta Lind", "plan": "gold"}},
        {"severity": "extreme"},
        {"summary": ""},
        {"summary": "x" * 31},
        {"tags": []},
        {"replies": -1},
        {"opened": ABSENT},
    ],
}


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
    unit = r"[A-Za-z0-9 ,:-]|\[(?:A-Z|a-z|0-9|[A-Za-z0-9 .,:'&/()+-])+\]|[()|]"
    return re.fullmatch(rf"\^(?:(?:{unit})(?:[*+?]|\{{\d+(?:,\d+)?\}})?)+\$", pattern) is not None


def nodes(node: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(node, Mapping):
        yield node
        for value in node.values():
            yield from nodes(value)


def compact(document: Any) -> str:
    return json.dumps(document, separators=(",", ":"))


BYTES = LLTokenizer("byte")


def matcher(schema: Mapping[str, Any]) -> LLMatcher:
    grammar = LLMatcher.grammar_from_json_schema(
        json.dumps(schema), overrides={"whitespace_flexible": False}
    )
    assert LLMatcher.validate_grammar(grammar, BYTES) == ""
    return LLMatcher(BYTES, grammar)


def mask_allows(schema: Mapping[str, Any], text: str) -> bool:
    state, ids = matcher(schema), list(text.encode())
    if state.validate_tokens(ids) < len(ids):
        return False
    state.consume_tokens(ids)
    return bool(state.is_accepting())


def walk(schema: Mapping[str, Any], rng: random.Random, avoid: bytes = b"") -> str:
    """Return a document of random legal bytes; one of `avoid` only where nothing else is legal."""
    state, written = matcher(schema), bytearray()
    while not state.is_accepting():
        bias = state.compute_logit_bias()
        legal = [token for token in range(256) if bias[token]]
        written.append(rng.choice([token for token in legal if token not in avoid] or legal))
        assert state.consume_token(written[-1])
    return written.decode()


def with_plain_dates(node: Any) -> Any:
    """Return a schema whose dates exist in every year.

    llguidance lets 29 February pass in all of them; closing that is the engine's part.
    """
    if not isinstance(node, dict):
        return node
    if node.get("format") == "date":
        return {"type": "string", "pattern": PLAIN_DATES}
    return {key: with_plain_dates(value) for key, value in node.items()}


def test_the_pinned_number_of_schemas_is_all_of_them() -> None:
    assert WORKLOAD.must_compile == len(SCHEMAS) >= 8


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_compiles_strictly(name: str) -> None:
    assert not matcher(WORKLOAD.schemas[name]).is_error()


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_is_of_one_dialect_and_all_its_formats_are_checked(name: str) -> None:
    assert WORKLOAD.schemas[name]["$schema"] == DIALECT
    assert schema_check(WORKLOAD.schemas[name]).unchecked_formats == ()


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_has_6_to_15_fields(name: str) -> None:
    assert 6 <= len(WORKLOAD.schemas[name]["properties"]) <= 15


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_has_an_optional_field(name: str) -> None:
    schema = WORKLOAD.schemas[name]
    assert set(schema["required"]) < set(schema["properties"])


def test_the_schemas_are_as_mixed_as_real_ones() -> None:
    found = {name: list(nodes(schema)) for name, schema in WORKLOAD.schemas.items()}
    nested = [name for name, parts in found.items() if sum("properties" in p for p in parts) > 1]
    assert len(nested) >= 5
    for kind in ("array", "string", "integer", "number", "boolean"):
        using = [n for n, parts in found.items() if any(p.get("type") == kind for p in parts)]
        assert len(using) >= 4, kind
    for word in ("enum", "format", "pattern", "multipleOf", "$ref"):
        assert any(word in part for parts in found.values() for part in parts), word


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


@pytest.mark.parametrize("avoid", [b"", b'"]},', b'"]},.'], ids=["any", "long", "long wholes"])
@pytest.mark.parametrize("name", SCHEMAS)
def test_whatever_the_mask_allows_is_valid_and_inside_the_bound(name: str, avoid: bytes) -> None:
    schema = WORKLOAD.schemas[name]
    for seed in range(4):
        text = walk(with_plain_dates(schema), random.Random(f"{name}/{seed}"), avoid)
        assert grade_reply(text, "stop", schema).outcome is Outcome.OK, text
        assert jsonschema_rs.is_valid(schema, json.loads(text), validate_formats=True), text
        assert len(text) <= longest(schema, schema)


@pytest.mark.parametrize("item", PROMPTS, ids=[item.id for item in PROMPTS])
def test_the_facts_of_a_prompt_are_a_document_that_mask_and_scorer_accept(item: Prompt) -> None:
    schema = WORKLOAD.schemas[item.schema_name or ""]
    text = compact(item.expected)
    found = grade_reply(text, "stop", schema, expected=item.expected)
    assert (found.outcome, found.field_accuracy) == (Outcome.OK, 1.0), found.detail
    assert jsonschema_rs.is_valid(schema, item.expected, validate_formats=True)
    assert mask_allows(schema, text)


@pytest.mark.parametrize("item", PROMPTS, ids=[item.id for item in PROMPTS])
def test_a_prompt_states_its_facts(item: Prompt) -> None:
    text = item.messages[-1]["content"].casefold()
    words = [value for value in leaves(item.expected) if isinstance(value, str)]
    assert [value for value in words if value.casefold() not in text] == []
    numbers = {float(number) for number in re.findall(r"\d+(?:\.\d+)?", text)}
    for value in leaves(item.expected):
        if isinstance(value, int | float) and not isinstance(value, bool):
            assert float(value) in numbers, value


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from leaves(item)
    else:
        yield value


def test_prompts_of_one_schema_share_the_system_message_that_tells_its_shape() -> None:
    told: dict[str, set[str]] = {}
    for item in PROMPTS:
        assert item.messages[0]["role"] == "system"
        told.setdefault(item.schema_name or "", set()).add(item.messages[0]["content"])
    assert {name: len(texts) for name, texts in told.items()} == dict.fromkeys(SCHEMAS, 1)
    for name, (text,) in told.items():
        for key in keys(WORKLOAD.schemas[name]):
            assert f'"{key}":' in text, (name, key)


def keys(schema: Mapping[str, Any]) -> set[str]:
    return {key for node in nodes(schema) for key in node.get("properties", {})}


def documents(name: str) -> list[dict[str, Any]]:
    return [item.expected or {} for item in PROMPTS if item.schema_name == name]


def test_every_schema_has_enough_wrong_documents() -> None:
    assert sorted(INVALID) == SCHEMAS
    assert min(len(changes) for changes in INVALID.values()) >= 5


@pytest.mark.parametrize(
    ("name", "change"),
    [(name, change) for name, changes in INVALID.items() for change in changes],
    ids=lambda value: value if isinstance(value, str) else repr(value)[:60],
)
def test_a_wrong_document_is_refused_by_scorer_second_validator_and_mask(
    name: str, change: dict[str, Any]
) -> None:
    schema = WORKLOAD.schemas[name]
    document = {**documents(name)[0], **change}
    document = {key: value for key, value in document.items() if value is not ABSENT}
    document = {key: document[key] for key in schema["properties"] if key in document}
    found = grade_reply(compact(document), "stop", schema)
    assert found.outcome is Outcome.SCHEMA_INVALID
    assert not jsonschema_rs.is_valid(schema, document, validate_formats=True)
    assert not mask_allows(with_plain_dates(schema), compact(document))


@pytest.mark.parametrize("name", SCHEMAS)
def test_an_unknown_field_is_refused(name: str) -> None:
    document = {**documents(name)[0], "note": "x"}
    found = grade_reply(compact(document), "stop", WORKLOAD.schemas[name])
    assert found.outcome is Outcome.SCHEMA_INVALID


def test_a_document_hard_coded_for_one_schema_fails_all_others() -> None:
    for name in SCHEMAS:
        text = compact(documents(name)[0])
        passed = [
            other
            for other in SCHEMAS
            if grade_reply(text, "stop", WORKLOAD.schemas[other]).outcome is Outcome.OK
        ]
        assert passed == [name]


def test_one_hard_coded_document_fails_any_trial_of_two_prompts_or_more() -> None:
    workload: Workload = WORKLOAD
    for seed in range(50):
        chosen = workload.select(2, seed=seed)
        text = compact(chosen[0].expected)
        outcomes = [grade_reply(text, "stop", item.schema or {}).outcome for item in chosen]
        assert outcomes == [Outcome.OK, Outcome.SCHEMA_INVALID]
