"""What holds for every workload of documents whose facts the prompts tell.

The schemas are bounded, compiled strictly, and the same to mask and scorer.
"""

from __future__ import annotations

import json
import random
import re
from typing import Any

import jsonschema_rs
import pytest

from harness.judging.grade import Outcome, grade_reply
from harness.judging.validation import DIALECT, schema_check
from harness.workloads.workload import Prompt, load_workload
from tests.harness.json_documents import (
    GRAMMARS,
    compact,
    constraint,
    enforced_walk,
    keys,
    leaves,
    mask_allows,
    matcher,
    walk,
    with_plain_dates,
)
from tests.harness.longest_document import longest

WORKLOADS = {name: load_workload(name) for name in ("json-extract", "tool-call")}

TURNS = ["system", "user", "assistant", "user"]

each_workload = pytest.mark.parametrize("name", WORKLOADS)
each_schema = pytest.mark.parametrize(
    ("name", "schema_name"),
    [(name, schema) for name, workload in WORKLOADS.items() for schema in workload.schemas],
)
each_prompt = pytest.mark.parametrize(
    "item",
    [
        pytest.param(item, id=f"{name}-{item.id}")
        for name, workload in WORKLOADS.items()
        for item in workload.prompts + workload.warmup
    ],
)


def schema_of(name: str, schema_name: str) -> dict[str, Any]:
    return WORKLOADS[name].schemas[schema_name]


def first_prompts(name: str) -> dict[str, Prompt]:
    workload = WORKLOADS[name]
    return {item.schema_name or "": item for item in reversed(workload.prompts + workload.warmup)}


@each_workload
def test_the_pinned_number_of_schemas_is_all_of_them(name: str) -> None:
    assert WORKLOADS[name].must_compile == len(WORKLOADS[name].schemas) >= 8


@each_workload
def test_every_schema_has_several_prompts(name: str) -> None:
    asked = [item.schema_name for item in WORKLOADS[name].prompts]
    assert min(asked.count(schema) for schema in WORKLOADS[name].schemas) >= 3


@each_schema
def test_a_schema_compiles_strictly(name: str, schema_name: str) -> None:
    assert not matcher(schema_of(name, schema_name)).is_error()


@each_schema
def test_a_schema_is_of_one_dialect_and_all_its_formats_are_checked(
    name: str, schema_name: str
) -> None:
    schema = schema_of(name, schema_name)
    assert schema["$schema"] == DIALECT
    assert schema_check(schema).unchecked_formats == ()


@each_schema
def test_the_longest_document_fits_the_budget(name: str, schema_name: str) -> None:
    schema = schema_of(name, schema_name)
    end_token = 1
    assert longest(schema, schema) + end_token <= WORKLOADS[name].max_tokens


@each_workload
def test_the_budget_is_not_more_than_the_schemas_need(name: str) -> None:
    bounds = [longest(schema, schema) for schema in WORKLOADS[name].schemas.values()]
    assert WORKLOADS[name].max_tokens - max(bounds) < 16


@pytest.mark.parametrize("avoid", [b"", b'"]},', b'"]},.'], ids=["any", "long", "long wholes"])
@each_schema
def test_whatever_the_mask_allows_is_valid_and_inside_the_bound(
    name: str, schema_name: str, avoid: bytes
) -> None:
    schema = schema_of(name, schema_name)
    for seed in range(4):
        text = walk(with_plain_dates(schema), random.Random(f"{schema_name}/{seed}"), avoid)
        assert grade_reply(text, "stop", schema).outcome is Outcome.OK, text
        assert jsonschema_rs.is_valid(schema, json.loads(text), validate_formats=True), text
        assert len(text) < WORKLOADS[name].max_tokens


@each_schema
def test_the_engine_enforces_every_word_of_a_schema(name: str, schema_name: str) -> None:
    grammar = GRAMMARS.compile(constraint(schema_of(name, schema_name)))
    assert grammar.report.unenforced == ()


@each_schema
def test_the_scorer_finds_every_document_right_that_the_engine_lets_through(
    name: str, schema_name: str
) -> None:
    schema = schema_of(name, schema_name)
    for seed in range(10):
        text = enforced_walk(schema, random.Random(f"{schema_name}/engine/{seed}"))
        assert grade_reply(text, "stop", schema).outcome is Outcome.OK, text
        assert len(text) < WORKLOADS[name].max_tokens


@each_prompt
def test_the_facts_of_a_prompt_are_a_document_that_mask_and_scorer_accept(item: Prompt) -> None:
    schema = item.schema or {}
    text = compact(item.expected)
    found = grade_reply(text, "stop", schema, expected=item.expected)
    assert (found.outcome, found.field_accuracy) == (Outcome.OK, 1.0), found.detail
    assert jsonschema_rs.is_valid(schema, item.expected, validate_formats=True)
    assert mask_allows(schema, text)


@each_prompt
def test_a_prompt_states_its_facts(item: Prompt) -> None:
    """All but the name of a tool, which is what a model has to find."""
    text = item.messages[-1]["content"].casefold()
    facts = (item.expected or {}).get("arguments", item.expected)
    told = [value for value in leaves(facts) if isinstance(value, str)]
    assert [value for value in told if value.casefold() not in text] == []
    numbers = {float(number) for number in re.findall(r"\d+(?:\.\d+)?", text)}
    for value in leaves(facts):
        if isinstance(value, int | float) and not isinstance(value, bool):
            assert float(value) in numbers, value


@each_workload
def test_prompts_of_one_schema_begin_alike_and_tell_its_keys(name: str) -> None:
    workload = WORKLOADS[name]
    told: dict[str, set[str]] = {}
    for item in workload.prompts + workload.warmup:
        assert [message["role"] for message in item.messages] == TURNS
        told.setdefault(item.schema_name or "", set()).add(json.dumps(item.messages[:-1]))
    assert {key: len(texts) for key, texts in told.items()} == dict.fromkeys(workload.schemas, 1)
    for schema_name, item in first_prompts(name).items():
        words = set(re.findall(r"\w+", item.messages[0]["content"]))
        assert keys(workload.schemas[schema_name]) <= words


@each_schema
def test_the_example_is_right_and_is_no_prompt(name: str, schema_name: str) -> None:
    item, schema = first_prompts(name)[schema_name], schema_of(name, schema_name)
    _, asked, answered, _ = (message["content"] for message in item.messages)
    assert grade_reply(answered, "stop", schema).outcome is Outcome.OK
    assert compact(json.loads(answered)) == answered
    assert mask_allows(schema, answered)
    prompts = WORKLOADS[name].prompts + WORKLOADS[name].warmup
    assert asked not in {item.messages[-1]["content"] for item in prompts}


@each_workload
def test_a_document_hard_coded_for_one_schema_fails_all_others(name: str) -> None:
    for item in WORKLOADS[name].prompts:
        text = compact(item.expected)
        passed = [
            other
            for other, schema in WORKLOADS[name].schemas.items()
            if grade_reply(text, "stop", schema).outcome is Outcome.OK
        ]
        assert passed == [item.schema_name]


@each_workload
def test_one_hard_coded_document_fails_any_trial_of_two_prompts_or_more(name: str) -> None:
    for seed in range(50):
        chosen = WORKLOADS[name].select(2, seed=seed)
        text = compact(chosen[0].expected)
        outcomes = [grade_reply(text, "stop", item.schema or {}).outcome for item in chosen]
        assert outcomes == [Outcome.OK, Outcome.SCHEMA_INVALID]
