"""Reasoning and text are split exactly at the tag, and what is constrained begins right behind it.

Wherever the closing tag falls in a draft window, in whichever lane, ids and both texts are those of
the oracle, which searches for the tag in all that was emitted.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from engine.config import EngineConfig
from engine.errors import RequestError
from engine.grammar.behind import BehindReasoning
from engine.loop import Engine
from engine.models import random_model
from engine.models.load import LoadedModel, load_model
from engine.oracle import Oracle
from engine.reasoning import Place, ReasoningTags, Stage
from engine.request import (
    Completion,
    Constraint,
    ConstraintKind,
    FinishReason,
    Reasoning,
    Request,
    SamplingParams,
)
from engine.sequence import Sequence as Row
from engine.testing import CLEAR, ScriptedDrafter, table_model, tiny_model

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "string", "maxLength": 5}, "n": {"enum": [1, 22, 333]}},
    "required": ["a", "n"],
    "additionalProperties": False,
}
JSON = Constraint(kind=ConstraintKind.JSON_SCHEMA, value=SCHEMA)
OPENING, CLOSING = 259, 260
BUDGET = 4
LANES = {
    "serial": EngineConfig(),
    "batch4": EngineConfig(max_rows=4),
    "spec": EngineConfig(num_draft_tokens=BUDGET, draft_budgets="fixed"),
    "batch4+spec": EngineConfig(
        max_rows=4, num_draft_tokens=BUDGET, draft_budgets="fixed", spec_batching="batched"
    ),
}


def requests(temperature: float, constraint: Constraint | None) -> list[Request]:
    """Rows that close their block after different lengths, one that may open one, and one free."""
    model = tiny_model()
    kinds = [Reasoning.OPEN, Reasoning.OPEN, Reasoning.OPTIONAL, Reasoning.NONE]
    biases = [{CLOSING: 7.0}, {OPENING: 9.0, CLOSING: 7.0}, {OPENING: 9.0, CLOSING: 9.0}, {}]
    return [
        Request(
            prompt_ids=tuple(model.tokenizer.apply_chat_template(chat("xabc"[index]))),
            max_tokens=60,
            sampling=SamplingParams(logit_bias=bias, temperature=temperature, seed=0),
            constraint=constraint,
            reasoning=reasoning,
            request_id=f"row-{index}",
        )
        for index, (reasoning, bias) in enumerate(zip(kinds, biases, strict=True))
    ]


def chat(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


@cache
def truth(temperature: float, is_constrained: bool) -> dict[str, list[int]]:
    """What the oracle emits for each row."""
    oracle = Oracle(tiny_model())
    rows = requests(temperature, JSON if is_constrained else None)
    return {row.request_id: oracle.generate(row) for row in rows}


def place_of(ids: Sequence[int]) -> int:
    """Where the closing tag is."""
    return list(ids).index(CLOSING)


def check(request: Request, done: Completion, expected: list[int]) -> None:
    """Compare a row with the oracle's ids, and its texts with the oracle's reading of them."""
    said = Oracle(tiny_model()).read(request, expected)
    assert list(done.token_ids) == expected
    assert (done.text, done.reasoning) == (said.text, said.reasoning)
    assert done.error is None
    if request.constraint is not None:
        assert (done.finish_reason, done.conformance) == (FinishReason.STOP, "enforced")
        jsonschema.validate(json.loads(done.text), SCHEMA)
    if request.reasoning is Reasoning.OPEN:
        assert done.reasoning_tokens == place_of(expected) + 1


def tag_at(offset: int, truths: dict[str, list[int]], tail: Sequence[int]) -> ScriptedDrafter:
    """Draft once a row, so that the closing tag is at `offset` of the window.

    Args:
        offset: BUDGET means behind the last draft.
        tail: what is drafted behind the tag in place of the truth; nothing keeps the truth.
    """

    def propose(row: Row) -> list[int]:
        ids = truths[row.request.request_id]
        if CLOSING not in ids or row.num_emitted != place_of(ids) - offset:
            return []
        window = ids[row.num_emitted :][:BUDGET]
        return [*window[: offset + 1], *tail][:BUDGET] if tail else window

    return ScriptedDrafter(propose)


TAILS = {
    "the truth": (),
    "illegal text": (33, 34, 35, 36),
    "another block": (OPENING, 65, CLOSING, 123),
    "an end": (258, 258),
}


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("is_constrained", [True, False], ids=["constrained", "free"])
@pytest.mark.parametrize("lane", [name for name in LANES if "spec" not in name])
def test_rows_with_reasoning_equal_the_oracle(
    lane: str, is_constrained: bool, temperature: float
) -> None:
    rows = requests(temperature, JSON if is_constrained else None)
    for request, done in zip(rows, Engine(tiny_model(), LANES[lane]).generate(rows), strict=True):
        check(request, done, truth(temperature, is_constrained)[request.request_id])


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize(
    ("is_constrained", "tail"), [(False, "the truth"), *((True, tail) for tail in TAILS)]
)
@pytest.mark.parametrize("offset", range(BUDGET + 1))
@pytest.mark.parametrize("lane", [name for name in LANES if "spec" in name])
def test_the_tag_may_fall_anywhere_in_a_draft_window(
    lane: str, offset: int, is_constrained: bool, tail: str, temperature: float
) -> None:
    truths = truth(temperature, is_constrained)
    rows = requests(temperature, JSON if is_constrained else None)
    assert all(place_of(truths[row.request_id]) > BUDGET for row in rows[:2])
    drafter = tag_at(offset, truths, TAILS[tail])
    engine = Engine(tiny_model(), LANES[lane], drafter)
    for request, done in zip(rows, engine.generate(rows), strict=True):
        check(request, done, truths[request.request_id])
    assert drafter.commits, "nothing was drafted"
    assert max(drafter.commits) >= min(offset, BUDGET)


def test_a_drafted_tag_that_the_target_does_not_write_is_no_tag() -> None:
    """The target is greedy: its own tokens stand, and the constraint has not begun."""
    truths = truth(0.0, True)
    drafter = ScriptedDrafter(lambda row: [CLOSING, *b'{"a"'][:BUDGET])
    config = LANES["batch4+spec"]
    rows = requests(0.0, JSON)
    for request, done in zip(
        rows, Engine(tiny_model(), config, drafter).generate(rows), strict=True
    ):
        check(request, done, truths[request.request_id])


def test_events_tell_reasoning_and_text_apart() -> None:
    engine = Engine(tiny_model(), LANES["batch4"])
    names = [engine.submit(row) for row in requests(0.0, JSON)]
    events = []
    while engine.has_work:
        events += engine.step()
    for name in names:
        own, done = [item for item in events if item.request_id == name], engine.completion(name)
        assert "".join(item.text for item in own) == done.text
        assert "".join(item.reasoning for item in own) == done.reasoning
        assert not any(item.text and item.reasoning for item in own)
        assert not any(item.reasoning for item in own[done.reasoning_tokens :])


# -- ends ------------------------------------------------------------------------------------------


def one(**settings: Any) -> Completion:
    """Decode the first row with other settings."""
    request = replace(requests(0.0, None)[0], **settings)
    return Engine(tiny_model(), EngineConfig()).generate([request])[0]


def biased(bias: dict[int, float], **settings: Any) -> SamplingParams:
    return SamplingParams(logit_bias=bias, seed=0, **settings)


@pytest.mark.parametrize("constraint", [JSON, None], ids=["constrained", "free"])
def test_a_budget_that_ends_inside_the_reasoning_is_a_length(constraint: Constraint | None) -> None:
    done = one(max_tokens=5, constraint=constraint, sampling=biased({CLOSING: -100.0, 258: -100.0}))
    assert (done.finish_reason, done.text) == (FinishReason.LENGTH, "")
    assert done.reasoning_tokens == 5
    assert done.reasoning
    assert done.conformance == ("failed" if constraint else None)


def test_no_end_token_is_legal_inside_the_reasoning_of_a_constrained_row() -> None:
    ends = {258: 100.0, 256: 100.0, CLOSING: 8.0}
    done = one(constraint=JSON, sampling=biased(ends))
    assert done.finish_reason is FinishReason.STOP
    assert (done.reasoning_tokens > 1, done.conformance) == (True, "enforced")
    free = one(sampling=biased(ends))
    assert (free.finish_reason, free.token_ids) == (FinishReason.STOP, ())


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_reasoning_is_the_same_whether_a_constraint_follows_or_not(temperature: float) -> None:
    """Bytes that are no UTF-8 and control tokens may stand in it, as in any reasoning."""
    sampling = biased({CLOSING: 7.0, 256: -100.0, 258: -100.0}, temperature=temperature)
    bound, free = (one(constraint=item, sampling=sampling) for item in (JSON, None))
    assert bound.reasoning == free.reasoning
    assert bound.token_ids[: bound.reasoning_tokens] == free.token_ids[: free.reasoning_tokens]


def test_a_document_may_end_with_the_last_token_of_the_budget() -> None:
    ids = truth(0.0, True)["row-0"]
    done = one(constraint=JSON, max_tokens=len(ids))
    assert (done.finish_reason, done.conformance) == (FinishReason.STOP, "enforced")
    cut = one(constraint=JSON, max_tokens=len(ids) - 1)
    assert (cut.finish_reason, cut.conformance) == (FinishReason.LENGTH, "failed")


def test_stop_strings_are_looked_for_in_the_text_alone() -> None:
    free = one()
    again = next(char for char in free.text if char in free.reasoning)
    done = one(stop=(again,))
    assert done.finish_reason is FinishReason.STOP
    assert done.reasoning == free.reasoning
    assert done.text == free.text[: free.text.index(again)]


@pytest.mark.parametrize("reasoning", [Reasoning.OPEN, Reasoning.OPTIONAL])
def test_a_row_that_starts_over_goes_on_where_it_was(reasoning: Reasoning) -> None:
    request = replace(requests(0.0, JSON)[0], reasoning=reasoning)
    expected = Oracle(tiny_model()).generate(request)
    for kept in range(len(expected)):
        engine = Engine(tiny_model(), EngineConfig())
        name = engine.submit(request)
        while engine._live[name].num_emitted < kept:
            engine.step()
        engine._start_over(RuntimeError("once"))
        while engine.has_work:
            engine.step()
        done = engine.completion(name)
        said = Oracle(tiny_model()).read(request, expected)
        assert (list(done.token_ids), done.text) == (expected, said.text)
        assert (done.reasoning, done.conformance) == (said.reasoning, "enforced")


def test_a_model_without_tags_takes_no_reasoning() -> None:
    request = Request(prompt_ids=(65,), reasoning=Reasoning.OPEN)
    with pytest.raises(RequestError, match="no tags"):
        Engine(own_model("<a>", "</a>"), EngineConfig()).submit(request)


def own_model(*added: str) -> LoadedModel:
    """A random model of its own, with these added tokens."""
    with tempfile.TemporaryDirectory() as folder:
        random_model.write_random_model(3, Path(folder), "float32", added=added)
        return load_model(folder)


# -- builds that begin at the wrong token ----------------------------------------------------------


class Late(ReasoningTags):
    """Ends the reasoning one token behind the tag."""

    def after(self, place: Place, token: int) -> Place:
        found = super().after(replace(place, begun=()), token)
        if place.begun == (-1,):
            return Place(Stage.CONTENT)
        is_end = (place.stage, found.stage) == (Stage.INSIDE, Stage.CONTENT)
        return Place(Stage.INSIDE, (-1,)) if is_end else found


class Early(ReasoningTags):
    """Ends the reasoning with the token before a tag that is a token long: it takes any."""

    def after(self, place: Place, token: int) -> Place:
        is_inside = place.stage is Stage.INSIDE and token != CLOSING
        return Place(Stage.CONTENT) if is_inside else super().after(place, token)


@pytest.mark.parametrize("mutant", [Late, Early])
@pytest.mark.parametrize("lane", ["serial", "batch4+spec"])
def test_a_build_that_begins_one_token_late_or_early_is_caught(
    mutant: type[ReasoningTags], lane: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = BehindReasoning.__init__

    def broken(self: BehindReasoning, state: Any, vocabulary: Any, tags: Any, *rest: Any) -> None:
        build(self, state, vocabulary, mutant(tags.opening, tags.closing), *rest)

    monkeypatch.setattr(BehindReasoning, "__init__", broken)
    truths, rows = truth(0.0, True), requests(0.0, JSON)
    config = LANES[lane]
    drafter = tag_at(1, truths, ()) if config.num_draft_tokens else None
    for request, done in zip(
        rows[:2], Engine(tiny_model(), config, drafter).generate(rows[:2]), strict=True
    ):
        with pytest.raises(AssertionError):
            check(request, done, truths[request.request_id])


# -- tags of several tokens ------------------------------------------------------------------------

PARTS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|open|>", "<|close|>", "<|sep|>")


@pytest.fixture(scope="module")
def xtml() -> LoadedModel:
    """A model whose tags are special tokens around a word, and that writes one from "~"."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(random_model, "SPECIAL", (*PARTS, "<|end_of_msg|>"))
        model = own_model("<|a|>", "<|b|>")
    ids = model.tokenizer.vocabulary
    closing = model.tokenizer.think_end_ids
    assert closing == (ids["<|close|>"], *b"think", ids["<|sep|>"])
    draw = np.random.default_rng(5)
    table = draw.normal(size=(model.vocab_size, model.vocab_size)).astype(np.float32)
    for token, follower in zip((126, *closing), (*closing, 123), strict=True):
        table[token, follower] += CLEAR
    table[120, 121] = table[121, 126] = CLEAR  # "xy~"
    return replace(table_model(table), tokenizer=model.tokenizer, eos_ids=model.eos_ids)


@pytest.mark.parametrize("offset", range(9))
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_tag_of_several_tokens_may_fall_anywhere_too(
    xtml: LoadedModel, offset: int, temperature: float
) -> None:
    request = Request(
        prompt_ids=(120,),
        reasoning=Reasoning.OPEN,
        constraint=JSON,
        max_tokens=80,
        sampling=SamplingParams(temperature=temperature, seed=1),
    )
    oracle = Oracle(xtml)
    expected = oracle.generate(request)
    assert expected[:2] == [121, 126]

    def script(row: Row) -> list[int]:
        return expected[row.num_emitted :][:8] if row.num_emitted >= 1 + offset else []

    config = EngineConfig(num_draft_tokens=8, draft_budgets="fixed")
    done = Engine(xtml, config, ScriptedDrafter(script)).generate([request])[0]
    assert list(done.token_ids) == expected
    assert (done.text, done.reasoning) == ((said := oracle.read(request, expected)).text, "y~")
    assert done.conformance == "enforced"
    assert done.reasoning_tokens == 2 + len(xtml.tokenizer.think_end_ids)
    assert json.loads(said.text)
