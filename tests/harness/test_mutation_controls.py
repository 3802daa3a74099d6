"""A gate that cannot turn red shows nothing: broken builds have to fail it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import engine.emit
import engine.flight
import engine.loop
from engine.config import EngineConfig
from engine.errors import RowError
from engine.loop import Engine
from engine.oracle import Oracle
from engine.request import Completion, Constraint, ConstraintKind, FinishReason, Request
from engine.testing import ScriptedDrafter, request_for, tiny_model
from engine.verify import Verdict

SCHEMAS = [
    {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "maxItems": 12},
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 8}, "ok": {"type": "boolean"}},
        "required": ["name", "ok"],
        "additionalProperties": False,
    },
    {"type": "integer", "minimum": 0, "maximum": 99999},
]


def requests() -> list[Request]:
    """Rows that end by an end token, by the last bracket, and by a full document."""
    model = tiny_model()
    return [
        request_for(
            model,
            f"row {index}",
            max_tokens=60,
            temperature=1.2,
            seed=index,
            constraint=Constraint(
                kind=ConstraintKind.JSON_SCHEMA, value=SCHEMAS[index % len(SCHEMAS)]
            ),
        )
        for index in range(9)
    ]


def half_right() -> ScriptedDrafter:
    """Drafts two right tokens and one or two wrong ones, so that masks and rollbacks matter."""
    oracle, model = Oracle(tiny_model()), tiny_model()
    truths = {request.prompt_ids: oracle.generate(request) for request in requests()}

    def propose(row: object) -> list[int]:
        truth = truths[row.request.prompt_ids][row.num_emitted :]
        wrong = [token for token in model.tokenizer.encode("91e]") if token not in truth[2:3]]
        return [*truth[:2], *wrong[:2]]

    return ScriptedDrafter(propose)


def problems() -> list[str]:
    """Run the lanes of the audit on one build; return what its gates say is wrong."""
    oracle = Oracle(tiny_model())
    lanes = [
        (EngineConfig(), None),
        (EngineConfig(num_draft_tokens=7, draft_budgets="fixed"), half_right()),
        (
            EngineConfig(
                max_rows=4, num_draft_tokens=7, draft_budgets="fixed", spec_batching="batched"
            ),
            half_right(),
        ),
    ]
    found = []
    for config, drafter in lanes:
        try:
            completions = Engine(tiny_model(), config, drafter).generate(requests())
        except RowError as error:
            found.append(f"the engine failed: {error}")
            continue
        for request, completion in zip(requests(), completions, strict=True):
            if completion.finish_reason is not FinishReason.STOP:
                found.append(f"conformance: ended by {completion.finish_reason}")
            elif completion.conformance != "enforced":
                found.append(f"conformance: {completion.text}")
            if oracle.follow(request, completion.token_ids, ended=True):
                found.append("identity: not the oracle's ids")
    return found


def test_the_build_as_it_is_passes() -> None:
    assert problems() == []


def skip_a_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the mask of the third position open."""
    fill = engine.flight.fill_masks

    def broken(jobs: list[object], bitmask: np.ndarray) -> object:
        answer = fill(jobs, bitmask)
        for job in jobs:
            if len(job.draft) >= 2:
                bitmask[job.row + 2] = -1
        return answer

    monkeypatch.setattr(engine.flight, "fill_masks", broken)


def drop_a_rollback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count every draft as part of the cache."""
    accept = engine.loop.accept_match

    def broken(chosen: list[int], draft: tuple[int, ...]) -> Verdict:
        return replace(accept(chosen, draft), num_accepted=len(draft))

    monkeypatch.setattr(engine.loop, "accept_match", broken)


def feed_the_end_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the matcher see every chosen token, the end token too."""
    emit = engine.emit._emit

    def broken(sequence: object, token: int, provenance: object, ends: object, *rest: object):
        if token in ends:
            sequence.matcher.advance([token])
        return emit(sequence, token, provenance, ends, *rest)

    monkeypatch.setattr(engine.emit, "_emit", broken)


def shift_the_matchers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mask every row of a batch by the grammar of the row before it."""
    fill = engine.flight.fill_masks

    def broken(jobs: list[object], bitmask: np.ndarray) -> object:
        matchers = [jobs[index - 1].state for index in range(len(jobs))]
        return fill(
            [
                replace(job, state=matcher, draft=())
                for job, matcher in zip(jobs, matchers, strict=True)
            ],
            bitmask,
        )

    monkeypatch.setattr(engine.flight, "fill_masks", broken)


def answer_by_heart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Return one conforming document whatever was asked."""
    generate = Engine.generate

    def broken(self: Engine, asked: list[Request]) -> list[Completion]:
        done = generate(self, asked)
        return [replace(done[1], request_id=completion.request_id) for completion in done]

    monkeypatch.setattr(Engine, "generate", broken)


@pytest.mark.parametrize(
    "mutate",
    [skip_a_mask, drop_a_rollback, feed_the_end_token, shift_the_matchers, answer_by_heart],
)
def test_a_broken_build_turns_a_gate_red(
    mutate: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    assert problems()
