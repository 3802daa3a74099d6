"""The schemas of json-extract: bounded, compiled strictly, and the same to mask and scorer."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema_rs
import numpy as np
import pytest
from llguidance import LLMatcher, LLTokenizer

from engine.grammar.compile import GrammarCompiler
from engine.grammar.mask import words
from engine.grammar.state import GrammarState
from engine.request import Constraint, ConstraintKind
from harness.grade import Outcome, grade_reply
from harness.validation import DIALECT, schema_check
from harness.workload import Prompt, Workload, load_workload

WORKLOAD = load_workload("json-extract")
SCHEMAS = sorted(WORKLOAD.schemas)
PROMPTS = WORKLOAD.prompts + WORKLOAD.warmup

PLAIN_DATES = "^20[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])$"

TURNS = ["system", "user", "assistant", "user"]

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
        {"total": "10000.00"},
        {"total": "1.005"},
        {"total": "01.00"},
        {"total": 114.9},
        {"lines": []},
        {"lines": [{"item": "ink", "qty": 1}]},
        {"lines": [{"item": "ink", "qty": 1.5, "price": "1.00"}]},
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
        {"price": "-1.00"},
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


def nodes(node: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(node, Mapping):
        yield node
        for value in node.values():
            yield from nodes(value)


def compact(document: Any) -> str:
    return json.dumps(document, separators=(",", ":"))


BYTES = LLTokenizer("byte")
GRAMMARS = GrammarCompiler(BYTES, BYTES.vocab_size, frozenset({BYTES.eos_token}))


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


@pytest.mark.parametrize("avoid", [b"", b'"]},', b'"]},.'], ids=["any", "long", "long wholes"])
@pytest.mark.parametrize("name", SCHEMAS)
def test_whatever_the_mask_allows_is_valid_and_inside_the_bound(name: str, avoid: bytes) -> None:
    schema = WORKLOAD.schemas[name]
    for seed in range(4):
        text = walk(with_plain_dates(schema), random.Random(f"{name}/{seed}"), avoid)
        assert grade_reply(text, "stop", schema).outcome is Outcome.OK, text
        assert jsonschema_rs.is_valid(schema, json.loads(text), validate_formats=True), text
        assert len(text) < WORKLOAD.max_tokens


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_engine_enforces_every_word_of_a_schema(name: str) -> None:
    assert GRAMMARS.compile(constraint(name)).report.unenforced == ()


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_scorer_finds_every_document_right_that_the_engine_lets_through(name: str) -> None:
    grammar, schema = GRAMMARS.compile(constraint(name)), WORKLOAD.schemas[name]
    for seed in range(10):
        state, written = grammar.start(), bytearray()
        rng = random.Random(f"{name}/engine/{seed}")
        while not state.is_finished:
            written.append(rng.choice(legal_bytes(state)))
            state.advance(written[-1:])
        text = written.decode()
        assert state.check_text(text) == "enforced", text
        assert grade_reply(text, "stop", schema).outcome is Outcome.OK, text
        assert len(text) < WORKLOAD.max_tokens


def legal_bytes(state: GrammarState) -> list[int]:
    rows = np.zeros((1, words(BYTES.vocab_size)), dtype=np.int32)
    assert state.fill((), rows) is None
    bits = np.unpackbits(rows.view(np.uint8), bitorder="little")[:256]
    return [int(token) for token in np.flatnonzero(bits)]


def constraint(name: str) -> Constraint:
    return Constraint(kind=ConstraintKind.JSON_SCHEMA, value=WORKLOAD.schemas[name])


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


def test_prompts_of_one_schema_begin_alike_and_tell_its_keys() -> None:
    told: dict[str, set[str]] = {}
    for item in PROMPTS:
        assert [message["role"] for message in item.messages] == TURNS
        told.setdefault(item.schema_name or "", set()).add(json.dumps(item.messages[:-1]))
    assert {name: len(texts) for name, texts in told.items()} == dict.fromkeys(SCHEMAS, 1)
    for name, item in first_prompts().items():
        words = set(re.findall(r"\w+", item.messages[0]["content"]))
        assert keys(WORKLOAD.schemas[name]) <= words


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_example_is_right_and_is_no_prompt(name: str) -> None:
    _, asked, answered, _ = (message["content"] for message in first_prompts()[name].messages)
    schema = WORKLOAD.schemas[name]
    assert grade_reply(answered, "stop", schema).outcome is Outcome.OK
    assert compact(json.loads(answered)) == answered
    assert mask_allows(schema, answered)
    assert asked not in {item.messages[-1]["content"] for item in PROMPTS}


def first_prompts() -> dict[str, Prompt]:
    return {item.schema_name or "": item for item in reversed(PROMPTS)}


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
