"""A constrained row is legal and the oracle's, and ends truthfully, whatever drafts for it."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from engine.config import EngineConfig
from engine.draft.registry import build_drafter
from engine.errors import SchemaError
from engine.loop import Engine
from engine.oracle import Oracle
from engine.request import (
    Completion,
    Constraint,
    ConstraintKind,
    FinishReason,
    Request,
    SamplingParams,
)
from engine.testing import ScriptedDrafter, request_for, tiny_model

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "k": {"enum": ["aa", "ab", "b"]},
        "n": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["k", "n"],
    "additionalProperties": False,
}
CONSTRAINTS = {
    "schema": Constraint(kind=ConstraintKind.JSON_SCHEMA, value=SCHEMA),
    "integer root": Constraint(
        kind=ConstraintKind.JSON_SCHEMA, value={"type": "integer", "minimum": 0, "maximum": 999}
    ),
    "choice": Constraint(kind=ConstraintKind.CHOICE, value=("red", "redder", "blue")),
    "regex": Constraint(kind=ConstraintKind.REGEX, value="[a-c]{3,6}x?"),
    "lark": Constraint(kind=ConstraintKind.LARK, value='start: "a" ("b" | "cd")* "."'),
}
LANES = {
    "serial": EngineConfig(),
    "serial, not pipelined": EngineConfig(pipelined=False),
    "batch": EngineConfig(max_rows=4),
    "serial+spec": EngineConfig(num_draft_tokens=7, draft_budgets="fixed"),
    "batch+spec": EngineConfig(
        max_rows=4, num_draft_tokens=3, draft_budgets="fixed", spec_batching="batched"
    ),
}


def requests_for(constraint: Constraint | None, temperature: float) -> list[Request]:
    """Four rows with prompts of different lengths."""
    model = tiny_model()
    return [
        request_for(
            model,
            text,
            constraint=constraint,
            max_tokens=40,
            temperature=temperature,
            seed=seed,
        )
        for seed, text in enumerate(["a", "k is ab, n is 42", "redder abcabc", "0123456789" * 4])
    ]


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("name", CONSTRAINTS)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_constrained_rows_equal_the_oracle_in_every_lane(
    lane: str, name: str, temperature: float
) -> None:
    model, oracle = tiny_model(), Oracle(tiny_model())
    config = LANES[lane]
    requests = requests_for(CONSTRAINTS[name], temperature)
    for request, completion in zip(
        requests, Engine(model, config, build_drafter(config)).generate(requests), strict=True
    ):
        assert list(completion.token_ids) == oracle.generate(request)
        assert completion.error is None


def test_constrained_and_free_rows_share_a_batch_without_bleeding() -> None:
    model, config = tiny_model(), EngineConfig(max_rows=4)
    kinds = [*CONSTRAINTS.values(), None, None]
    requests = [requests_for(kind, 0.7)[i % 4] for i, kind in enumerate(kinds)]
    together = Engine(model, config).generate(requests)
    alone = [Engine(model, EngineConfig()).generate([request])[0] for request in requests]
    assert [c.token_ids for c in together] == [c.token_ids for c in alone]


def document(completion: Completion) -> Any:
    """The parsed text of a conforming completion."""
    assert completion.finish_reason is FinishReason.STOP
    assert completion.conformance == "enforced"
    value = json.loads(completion.text)
    jsonschema.validate(value, SCHEMA)
    return value


def drafts(text: str, *extra: int) -> list[int]:
    """Ids of a text, then raw ids."""
    return [*tiny_model().tokenizer.encode(text), *extra]


RIGHT = requests_for(CONSTRAINTS["schema"], 0.0)[1]


def right_ids() -> list[int]:
    """What the grammar lane emits for RIGHT."""
    return list(Engine(tiny_model(), EngineConfig()).generate([RIGHT])[0].token_ids)


@pytest.mark.parametrize("budget", [1, 4, 15])
@pytest.mark.parametrize(
    "variant",
    [
        "fence first",
        "raw newline",
        "past the end",
        "token by token",
        "all illegal",
        "no such token",
    ],
)
def test_any_draft_leaves_the_constrained_text_as_it_is(variant: str, budget: int) -> None:
    model, truth = tiny_model(), right_ids()
    eos = min(model.eos_ids)
    scripts = {
        "fence first": lambda row: drafts("```json"),
        "raw newline": lambda row: [*truth[row.num_emitted :][:2], *drafts("\n")],
        "past the end": lambda row: [*truth[row.num_emitted :], eos, *drafts("{}{}")],
        "token by token": lambda row: truth[row.num_emitted :][:1],
        "all illegal": lambda row: drafts("]]]]"),
        "no such token": lambda row: [*truth[row.num_emitted :][:1], 10**8],
    }
    config = EngineConfig(num_draft_tokens=budget, draft_budgets="fixed")
    engine = Engine(model, config, ScriptedDrafter(scripts[variant]))
    completion = engine.generate([RIGHT])[0]
    assert list(completion.token_ids) == truth
    document(completion)
    assert completion.accepted + completion.illegal_drafts <= completion.drafted
    if variant in ("past the end", "token by token"):
        assert completion.accepted > 0


def test_a_draft_that_leads_into_a_dead_end_does_not_end_the_row() -> None:
    """The grammar asks for an end token by name, which is never fed: nothing can follow "ca"."""
    grammar = 'start: "c" ("b" | "a" <|im_end|> "b")'
    request = Request(
        prompt_ids=tuple(drafts("x")),
        constraint=Constraint(kind=ConstraintKind.LARK, value=grammar),
        sampling=SamplingParams(logit_bias={drafts("b")[0]: 50.0}),
    )
    engine = Engine(
        tiny_model(),
        EngineConfig(num_draft_tokens=3, draft_budgets="fixed"),
        ScriptedDrafter(lambda row: drafts("a")),
    )
    completion = engine.generate([request])[0]
    assert (completion.text, completion.error) == ("cb", None)
    assert completion.drafted == 1


@pytest.mark.parametrize("lane", LANES)
def test_a_budget_that_cuts_the_document_is_reported_as_length(lane: str) -> None:
    model, truth, config = tiny_model(), right_ids(), LANES[lane]
    whole = model.tokenizer.decode(truth)
    for budget in range(1, len(truth) + 3):
        request = Request(
            prompt_ids=RIGHT.prompt_ids, max_tokens=budget, constraint=RIGHT.constraint
        )
        completion = Engine(model, config, build_drafter(config)).generate([request])[0]
        if budget < len(truth):
            assert completion.finish_reason is FinishReason.LENGTH
            assert completion.conformance == "failed"
            assert whole.startswith(completion.text)
            assert len(completion.token_ids) == budget
        else:
            document(completion)


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 1.0, "top_k": 1},
        {"temperature": 1.0, "top_p": 0.0},
        {"temperature": 1.0, "top_p": 1e-9},
        {"temperature": 2.0, "min_p": 0.99},
        {"temperature": 1e-6},
        {"temperature": 1.0, "frequency_penalty": 2.0, "presence_penalty": 2.0},
        {"logit_bias": {34: -100.0}},
    ],
    ids=str,
)
def test_the_mask_comes_before_truncation(sampling: dict[str, Any]) -> None:
    constraint = Constraint(kind=ConstraintKind.JSON_SCHEMA, value={"enum": ["alpha", "beta"]})
    request = Request(
        prompt_ids=tuple(drafts("Write a poem, no JSON.")),
        constraint=constraint,
        sampling=SamplingParams(seed=1, **sampling),
    )
    completion = Engine(tiny_model(), EngineConfig()).generate([request])[0]
    assert json.loads(completion.text) in ("alpha", "beta")


def test_a_schema_that_cannot_be_enforced_is_refused_at_submission_and_leaves_nothing() -> None:
    engine = Engine(tiny_model(), EngineConfig())
    constraint = Constraint(
        kind=ConstraintKind.JSON_SCHEMA, value={"type": "array", "uniqueItems": True}
    )
    with pytest.raises(SchemaError) as refused:
        engine.submit(request_for(tiny_model(), constraint=constraint))
    assert refused.value.keyword == "uniqueItems"
    assert engine.stats().submitted == 0
    assert not engine.has_work


def test_grammar_rows_are_pipelined_too_and_still_wait_once_a_step() -> None:
    engine = Engine(tiny_model(), EngineConfig(max_rows=4))
    engine.generate(requests_for(CONSTRAINTS["schema"], 0.0))
    stats = engine.stats()
    assert stats.host_syncs == stats.steps


def test_a_replay_with_masks_fills_one_mask_a_token() -> None:
    model = tiny_model()
    engine = Engine(model, EngineConfig())
    truth = right_ids()
    masked = engine.replay(RIGHT, truth)
    assert len(masked.step_s) == len(truth) - 1
    assert all(seconds > 0 for seconds in masked.mask_s)


@pytest.mark.parametrize("text", ["<|im_end|> is text", "a <|im_start|>", "<think>b</think>"])
@pytest.mark.parametrize("lane", ["serial", "batch+spec"])
def test_the_name_of_a_control_token_in_a_constraint_is_written_as_text(
    lane: str, text: str
) -> None:
    config = LANES[lane]
    engine = Engine(tiny_model(), config, build_drafter(config))
    for kind, value in (
        (ConstraintKind.JSON_SCHEMA, {"const": text}),
        (ConstraintKind.CHOICE, [text]),
    ):
        constraint = Constraint(kind=kind, value=value)
        (done,) = engine.generate(
            [request_for(tiny_model(), "hi", max_tokens=60, constraint=constraint)]
        )
        written = json.loads(done.text) if kind is ConstraintKind.JSON_SCHEMA else done.text
        assert (written, done.finish_reason) == (text, FinishReason.STOP)
        assert not set(done.token_ids) & tiny_model().tokenizer.special_ids
