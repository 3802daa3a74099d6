"""Batches in which every row has a grammar of its own: all conform, and none is another's."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import jsonschema
import pytest

from engine import arrays
from engine.config import EngineConfig
from engine.draft.registry import build_drafter
from engine.loop import Engine
from engine.oracle import Oracle
from engine.request import Completion, Constraint, ConstraintKind, FinishReason, Request
from engine.testing import request_for, tiny_model

SCHEMAS: list[dict[str, Any]] = [
    {
        "type": "object",
        "properties": {"k": {"enum": ["aa", "ab", "b"]}, "n": {"type": "integer", "maximum": 99}},
        "required": ["k", "n"],
        "additionalProperties": False,
    },
    {"type": "integer", "minimum": 1000, "maximum": 99999},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4},
    {"enum": ["red", "redder", "blue"]},
    {"type": "string", "pattern": "^[a-d]{3,6}$"},
    {"type": "array", "items": {"enum": [0, 1]}, "minItems": 3, "maxItems": 9},
    {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    },
    {"enum": [None, [1, 2, 3], {"deep": {"deeper": []}}]},
]
"""No document is valid under two of them."""

LANES = {
    "plain": EngineConfig(),
    "not pipelined": EngineConfig(pipelined=False),
    "ngram": EngineConfig(num_draft_tokens=3, draft_budgets="fixed", spec_batching="batched"),
    "two_model": EngineConfig(
        num_draft_tokens=7, draft_budgets="fixed", spec_batching="batched", drafter="two_model"
    ),
}


def rows(count: int, temperature: float, max_tokens: int = 60) -> list[Request]:
    """Rows of different schemas, prompts and seeds; every prompt is one chunk."""
    return [
        request_for(
            tiny_model(),
            "k is ab, n is 42. "[: 1 + 5 * seed] * (1 + seed // 2),
            constraint=Constraint(kind=ConstraintKind.JSON_SCHEMA, value=schema),
            max_tokens=max_tokens,
            temperature=temperature,
            seed=seed,
        )
        for seed, schema in enumerate(SCHEMAS[:count])
    ]


def engine_of(lane: str, max_rows: int) -> Engine:
    config = replace(LANES[lane], max_rows=max_rows)
    return Engine(tiny_model(), config, build_drafter(config, tiny_model()))


def valid_under(text: str) -> list[int]:
    """Which of the schemas a text is a document of."""
    value = json.loads(text)
    validators = [jsonschema.Draft202012Validator(schema) for schema in SCHEMAS]
    return [index for index, validator in enumerate(validators) if validator.is_valid(value)]


def assert_own(requests: list[Request], completions: list[Completion]) -> None:
    """Every row is the oracle's, and what is complete conforms to its own schema alone."""
    oracle = Oracle(tiny_model())
    for request, done in zip(requests, completions, strict=True):
        assert list(done.token_ids) == oracle.generate(request)
        if done.finish_reason is FinishReason.STOP:
            assert done.conformance == "enforced"
            assert request.constraint is not None
            assert [SCHEMAS[i] for i in valid_under(done.text)] == [request.constraint.value]
        else:
            assert (done.finish_reason, done.conformance) == (FinishReason.LENGTH, "failed")
            assert len(done.token_ids) == request.max_tokens


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("num_rows", [4, 8])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_of_different_schemas_conform_to_their_own(
    lane: str, num_rows: int, temperature: float
) -> None:
    requests = rows(num_rows, temperature)
    completions = engine_of(lane, num_rows).generate(requests)
    assert {done.lane for done in completions} == {"batch"}
    assert sum(done.finish_reason is FinishReason.STOP for done in completions) >= num_rows - 1
    assert_own(requests, completions)


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("num_rows", [4, 8])
def test_joiners_land_beside_grammar_rows_and_leave_them_alone(lane: str, num_rows: int) -> None:
    engine, requests = engine_of(lane, num_rows), rows(num_rows, 1.0)
    ids = [engine.submit(requests[0])]
    for request in requests[1:]:
        engine.step()
        engine.step()
        ids.append(engine.submit(request))
    lived_together = 0
    while engine.has_work:
        engine.step()
        lived_together = max(lived_together, engine.stats().active)
    assert lived_together > 1
    assert_own(requests, [engine.completion(request_id) for request_id in ids])


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("num_rows", [4, 8])
@pytest.mark.parametrize("max_tokens", [1, 2, 5])
def test_rows_cut_in_mid_document_leave_the_others_whole(
    lane: str, num_rows: int, max_tokens: int
) -> None:
    requests = rows(num_rows, 0.0)
    requests[::2] = [replace(request, max_tokens=max_tokens) for request in requests[::2]]
    completions = engine_of(lane, num_rows).generate(requests)
    assert any(done.finish_reason is FinishReason.LENGTH for done in completions[::2])
    assert_own(requests, completions)


@pytest.mark.parametrize("lane", LANES)
def test_rows_that_end_in_their_prefill_step_free_their_slot_for_the_next(lane: str) -> None:
    requests = rows(8, 0.0)
    digit = Constraint(kind=ConstraintKind.JSON_SCHEMA, value={"type": "integer", "maximum": 9})
    first_token = replace(rows(1, 0.0)[0], stop=("{",))  # every document of it begins with that
    enders = [
        replace(requests[2], max_tokens=1),
        first_token,
        replace(requests[0], constraint=digit, max_tokens=1),
    ]
    engine = engine_of(lane, 4)
    done = engine.generate([requests[0], *enders, *requests[1:]])
    cut, stopped, small = done[1:4]
    assert (cut.finish_reason, cut.target_calls) == (FinishReason.LENGTH, 0)
    assert (stopped.finish_reason, stopped.text, stopped.target_calls) == (
        FinishReason.STOP,
        "",
        0,
    )
    assert len(small.token_ids) == 1
    assert_own(requests, [done[0], *done[4:]])


@pytest.mark.parametrize("lane", LANES)
def test_all_grammar_batches_wait_for_the_device_once_a_step(lane: str) -> None:
    engine = engine_of(lane, 8)
    proposals = 0
    drafter = engine._proposer._drafter
    if lane == "two_model":
        assert drafter is not None
        propose = drafter.propose

        def counted(requests: Any) -> list[list[int]]:
            nonlocal proposals
            proposals += 1
            return propose(requests)

        drafter.propose = counted  # type: ignore[method-assign]  # the same call, counted
    before = arrays.SYNCS.count
    requests = rows(8, 1.0)
    requests[::3] = [replace(request, max_tokens=2) for request in requests[::3]]
    for request in requests:
        engine.submit(request)
        engine.step()
    while engine.has_work:
        engine.step()
    assert arrays.SYNCS.count - before == engine.stats().steps + proposals
    assert proposals > 0 or lane != "two_model"
