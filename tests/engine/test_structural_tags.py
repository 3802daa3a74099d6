"""Rows of free text with structures: the oracle's ids in every lane, and every structure valid.

The tags are text in one vocabulary, ordinary added tokens in another, special ones in a third.
"""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from engine.config import EngineConfig
from engine.errors import SchemaError
from engine.loop import Engine
from engine.models import random_model
from engine.models.load import LoadedModel, load_model
from engine.oracle import Oracle
from engine.request import (
    Completion,
    Constraint,
    ConstraintKind,
    FinishReason,
    Reasoning,
    Request,
    SamplingParams,
)
from engine.testing import ScriptedDrafter

BEGIN, END = "<tool_call>", "</tool_call>"
THINKING = ("<think>", "</think>")
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"enum": ["add", "addition"]}, "n": {"type": "integer"}},
    "required": ["name", "n"],
    "additionalProperties": False,
}
TAG: dict[str, Any] = {
    "structures": [{"begin": BEGIN, "schema": SCHEMA, "end": END}],
    "triggers": [BEGIN],
}
MODES: dict[str, dict[str, Any]] = {
    "text and calls": {},
    "a call": {"at_least_one": True, "stop_after_first": True},
    "calls only": {"text": False, "at_least_one": True},
    "calls or a document": {"text": False, "document": {"enum": ["yes", "no"]}},
}
KINDS = ("text", "added", "special")
LANES = {
    "serial": EngineConfig(),
    "batch4+spec": EngineConfig(
        max_rows=4, num_draft_tokens=5, draft_budgets="fixed", spec_batching="batched"
    ),
}


@cache
def model_of(kind: str) -> LoadedModel:
    """A random model in whose vocabulary the tags are of a kind."""
    special, added = random_model.SPECIAL, THINKING
    if kind == "special":
        special = (*special, BEGIN, END)
    if kind == "added":
        added = (*added, BEGIN, END)
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(random_model, "SPECIAL", special)
        random_model.write_random_model(7, Path(folder), "float32", added=added)
        return load_model(folder)


def ids_of(model: LoadedModel, tag: str) -> list[int]:
    """The ids of a tag, as the model's template would write it."""
    named = model.tokenizer.vocabulary
    return [named[tag]] if tag in named else model.tokenizer.encode(tag)


def requests(model: LoadedModel, mode: str, temperature: float) -> list[Request]:
    """Rows that are drawn to begin calls, one of which reasons first."""
    value = TAG | MODES[mode]
    begin, closing = ids_of(model, BEGIN)[0], model.tokenizer.vocabulary["</think>"]
    bias = {begin: 6.0, closing: 9.0, 258: 4.0 if value.get("text", True) else 12.0}
    return [
        Request(
            prompt_ids=(65 + row,),
            max_tokens=60,
            sampling=SamplingParams(temperature=temperature, seed=row, logit_bias=bias),
            constraint=Constraint(kind=ConstraintKind.STRUCTURAL_TAG, value=value),
            reasoning=Reasoning.OPEN if row == 1 else Reasoning.NONE,
            request_id=str(row),
        )
        for row in range(4)
    ]


def half_right(truths: dict[str, list[int]]) -> ScriptedDrafter:
    """Draft three right tokens, then what begins a call, which often is not legal."""
    return ScriptedDrafter(
        lambda row: [*truths[row.request.request_id][row.num_emitted :][:3], *b"<t"]
    )


def spelled(model: LoadedModel, ids: tuple[int, ...]) -> str:
    """A row with its control tokens by name."""
    tokenizer = model.tokenizer
    return "".join(
        tokenizer.decode([item]) if tokenizer.token_bytes(item) else tokenizer.control_name(item)
        for item in ids
    )


def check(model: LoadedModel, done: Completion, mode: str) -> None:
    """Read a finished row by splitting at the tags."""
    assert done.conformance == "enforced"
    if mode == "calls or a document" and done.text in ('"yes"', '"no"'):
        return
    text = spelled(model, done.token_ids[done.reasoning_tokens :])
    first, *rest = text.split(BEGIN)
    for part in rest:
        inner, end, _ = part.partition(END)
        assert end
        jsonschema.validate(json.loads(inner), SCHEMA)
    if "text" in MODES[mode]:
        assert text.replace(f"{END}\n{BEGIN}", END + BEGIN).count("\n") == 0
        assert not first
    if MODES[mode].get("stop_after_first"):
        assert (len(rest), text.endswith(END)) == (1, True)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_with_structures_equal_the_oracle_in_every_lane(
    kind: str, mode: str, temperature: float
) -> None:
    model = model_of(kind)
    rows = requests(model, mode, temperature)
    oracle = Oracle(model)
    truths = {row.request_id: oracle.generate(row) for row in rows}
    calls = False
    for name, config in LANES.items():
        drafter = half_right(truths) if "spec" in name else None
        for row, done in zip(rows, Engine(model, config, drafter).generate(rows), strict=True):
            assert list(done.token_ids) == truths[row.request_id]
            assert done.error is None
            said = oracle.read(row, done.token_ids)
            assert (done.text, done.reasoning) == (said.text, said.reasoning)
            calls |= BEGIN in spelled(model, done.token_ids)
            if done.finish_reason is FinishReason.STOP:
                check(model, done, mode)
    # a random model does not spell a tag by itself
    assert calls or (kind == "text" and mode in ("text and calls", "a call")), "nothing was called"


def bytes_of(text: str) -> list[int]:
    return list(text.encode())


@pytest.mark.parametrize("kind", KINDS)
def test_a_tag_is_the_models_token_where_there_is_one_and_text_where_there_is_none(
    kind: str,
) -> None:
    model = model_of(kind)
    constraint = Constraint(kind=ConstraintKind.STRUCTURAL_TAG, value=TAG)
    grammar = Engine(model, EngineConfig())._intake._grammars.compile(constraint)
    begin, end = ids_of(model, BEGIN), ids_of(model, END)
    assert (len(begin) == 1) == (kind != "text")
    document = bytes_of('{"name":"add","n":1}')
    call = [*bytes_of("so "), *begin, *document, *end, *bytes_of(" done")]
    state = grammar.start(call)
    assert state.is_accepting
    assert state.check_text(model.tokenizer.decode(call)) == "enforced"
    # the characters of the tag are no text in any vocabulary, and no tag where it is a token
    wrong = bytes_of(BEGIN) if kind != "text" else [*begin, *bytes_of("[")]
    assert grammar.start().legal_prefix(wrong) == len(wrong) - 1
    closing = [*begin, *document, *bytes_of(END)]
    num_right = len(begin) + len(document)
    assert grammar.start().legal_prefix(closing) == (len(closing) if kind == "text" else num_right)


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_that_a_stop_string_cuts_inside_a_call_has_failed(kind: str) -> None:
    model = model_of(kind)
    value = TAG | MODES["a call"]
    script = [*ids_of(model, BEGIN), *bytes_of('{"name":"add","n":1}'), *ids_of(model, END)]
    request = Request(
        prompt_ids=(65,),
        max_tokens=90,
        stop=('"n"',),
        constraint=Constraint(kind=ConstraintKind.STRUCTURAL_TAG, value=value),
    )
    engine = Engine(model, EngineConfig())
    sequence = engine._intake.row(request, tuple(script))
    engine._enqueue(sequence)
    while engine.has_work:
        engine.step()
    done = engine.completion(sequence.request.request_id)
    assert done.finish_reason is FinishReason.STOP
    assert done.text.endswith('{"name":"add",')
    assert done.conformance == "failed"


def test_a_call_that_the_budget_cuts_has_failed() -> None:
    model = model_of("added")
    row = requests(model, "a call", 0.0)[0]
    length = len(Oracle(model).generate(row))
    cut = Request(
        prompt_ids=row.prompt_ids,
        max_tokens=length - 1,
        sampling=row.sampling,
        constraint=row.constraint,
    )
    done = Engine(model, EngineConfig()).generate([cut])[0]
    assert (done.finish_reason, done.conformance) == (FinishReason.LENGTH, "failed")


def test_end_tokens_and_text_before_a_control_token_are_refused() -> None:
    engine = Engine(model_of("special"), EngineConfig())
    for value, message in {
        "<|im_end|>": "ends a reply",
        "call: <tool_call>": "text before a control token",
    }.items():
        changed = {**TAG, "structures": [{"begin": value, "schema": SCHEMA}], "triggers": [value]}
        constraint = Constraint(kind=ConstraintKind.STRUCTURAL_TAG, value=changed)
        with pytest.raises(SchemaError, match=message):
            engine.submit(Request(prompt_ids=(65,), constraint=constraint))
    assert not engine.has_work


def test_free_text_goes_on_where_no_structure_is_asked_for() -> None:
    """With the trigger barred from the start the row is the free row: nothing else is lost."""
    model = model_of("text")
    tag = {"structures": [{"begin": "\x01\x02\x03", "schema": True}], "triggers": ["\x01\x02\x03"]}
    constraint = Constraint(kind=ConstraintKind.STRUCTURAL_TAG, value=tag)
    # bytes that are no UTF-8 and control tokens are no text: keep to ASCII
    bias = dict.fromkeys((*range(128, 256), *range(256, 261)), -100.0)
    sampling = SamplingParams(logit_bias=bias, temperature=1.0, seed=3)
    free = Request(prompt_ids=(65,), max_tokens=40, sampling=sampling)
    bound = Request(prompt_ids=(65,), max_tokens=40, sampling=sampling, constraint=constraint)
    one, other = Engine(model, EngineConfig(max_rows=2)).generate([free, bound])
    assert one.token_ids == other.token_ids
