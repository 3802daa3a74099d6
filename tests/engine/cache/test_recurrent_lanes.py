"""Recurrent models in every lane: a state that cannot forget still holds its row and nothing else.

Rejected drafts, rows that leave, rows that wait inside a step and steps that fail all touch states
that no later write covers.
"""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest

from engine import arrays
from engine.config import EngineConfig
from engine.draft.ngram import NgramDrafter
from engine.draft.registry import build_drafter
from engine.loop import Engine
from engine.oracle import Oracle
from engine.plan import StepKind
from engine.request import Constraint, ConstraintKind, FinishReason, Request, SamplingParams
from engine.sequence import Sequence
from engine.testing import ScriptedDrafter, tiny_model
from tests.engine.cache.families import EMITTED, NUM_DRAFTS, RECURRENT, family, prompts, truth

Script = Callable[[Sequence], int]

LANES = {
    "serial": EngineConfig(),
    "batch": EngineConfig(max_rows=3, prefill_chunk=5),
    "serial+spec": EngineConfig(num_draft_tokens=NUM_DRAFTS, draft_budgets="fixed"),
    "batch+spec": EngineConfig(
        max_rows=3,
        num_draft_tokens=NUM_DRAFTS,
        draft_budgets="fixed",
        spec_batching="batched",
        prefill_chunk=5,
    ),
}
DRAFTED = [name for name in LANES if "spec" in name]

RIGHT: dict[str, Script] = {
    "right": lambda row: NUM_DRAFTS,
    "wrong at 0": lambda row: 0,
    "wrong at 1": lambda row: 1,
    "wrong at 2": lambda row: 2,
    "alternating": lambda row: NUM_DRAFTS if row.target_calls % 2 else 0,
}
"""How many of a step's drafts are what the model will choose."""


def rows() -> list[Request]:
    """Three rows of different lengths that end by their budget."""
    return [Request(prompt_ids=ids, max_tokens=EMITTED, ignore_eos=True) for ids in prompts()]


def scripted(name: str, right: Script) -> ScriptedDrafter:
    """A drafter whose first drafts are right, and the others wrong."""

    def propose(row: Sequence) -> list[int]:
        ahead = truth(name, row.request.prompt_ids)[row.num_emitted :][:NUM_DRAFTS]
        return [t if i < right(row) else (t + 1) % 250 for i, t in enumerate(ahead)]

    return ScriptedDrafter(propose)


@pytest.mark.parametrize("script", RIGHT)
@pytest.mark.parametrize("lane", DRAFTED)
@pytest.mark.parametrize("name", RECURRENT)
def test_drafts_right_or_wrong_leave_the_ids_of_the_model_alone(
    name: str, lane: str, script: str
) -> None:
    drafter = scripted(name, RIGHT[script])
    for request, done in zip(
        rows(), Engine(family(name), LANES[lane], drafter).generate(rows()), strict=True
    ):
        assert list(done.token_ids) == truth(name, request.prompt_ids)[:EMITTED]
        assert done.drafted > 0
        if script == "right":
            assert done.accepted == done.drafted
        else:
            assert done.accepted < done.drafted


@pytest.mark.parametrize("num_drafts", [0, NUM_DRAFTS])
def test_tokens_fed_again_fit_the_cache_up_to_the_last_position_of_a_row(num_drafts: int) -> None:
    """Tokens fed again make a step as wide as it can be, for every row and with few drafts."""
    config = EngineConfig(
        max_rows=2,
        num_draft_tokens=NUM_DRAFTS,
        draft_budgets="fixed",
        spec_batching="batched",
        prefill_chunk=128,
    )
    short = Request(prompt_ids=prompts()[0], max_tokens=2 * EMITTED, ignore_eos=True)
    long = Request(
        prompt_ids=(65,) * (256 - EMITTED - NUM_DRAFTS - 1),
        max_tokens=EMITTED,
        ignore_eos=True,
        num_draft_tokens=num_drafts,
    )
    drafter = scripted("lfm2", lambda row: NUM_DRAFTS if row.num_emitted < EMITTED // 2 else 0)
    wrong = ScriptedDrafter(lambda row: [5] * NUM_DRAFTS)
    for each in (drafter, wrong):
        engine = Engine(family("lfm2"), config, each)
        for request, done in zip((short, long), engine.generate([short, long]), strict=True):
            expected = truth("lfm2", request.prompt_ids, 3 * EMITTED)
            assert list(done.token_ids) == expected[: request.max_tokens]


CONSTRAINTS: dict[str, Constraint | None] = {
    "free": None,
    "regex": Constraint(kind=ConstraintKind.REGEX, value="[a-c]{3,6}x?[0-9]{4,12}"),
    "schema": Constraint(
        kind=ConstraintKind.JSON_SCHEMA,
        value={"type": "array", "items": {"enum": ["aa", "ab"]}, "minItems": 2, "maxItems": 4},
    ),
}


def constrained(constraint: Constraint | None, temperature: float) -> list[Request]:
    """Three rows whose prompts hold what may follow, for a drafter that looks back."""
    texts = ["x", 'aaa["aa", "ab", "aa"', "abc0123 abc0123 abc"]
    return [
        Request(
            prompt_ids=tuple(tiny_model().tokenizer.encode(text)),
            max_tokens=24,
            constraint=constraint,
            sampling=SamplingParams(temperature=temperature, seed=seed),
        )
        for seed, text in enumerate(texts)
    ]


@pytest.mark.parametrize(("kind", "temperature"), [("free", 0.9), ("regex", 0.0), ("schema", 0.9)])
@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("name", RECURRENT)
def test_rows_with_and_without_a_grammar_equal_the_oracle_whatever_ngram_drafts(
    name: str, lane: str, kind: str, temperature: float
) -> None:
    requests = constrained(CONSTRAINTS[kind], temperature)
    oracle = Oracle(family(name))
    engine = Engine(family(name), LANES[lane], NgramDrafter())
    for request, done in zip(requests, engine.generate(requests), strict=True):
        assert list(done.token_ids) == oracle.generate(request)
        assert done.error is None


@pytest.mark.parametrize("lane", ["batch", "batch+spec"])
@pytest.mark.parametrize("steps", [2, 9])
@pytest.mark.parametrize("name", RECURRENT)
def test_a_slot_given_up_by_a_cancelled_row_starts_from_nothing(
    name: str, steps: int, lane: str
) -> None:
    kept, doomed, joining = rows()
    engine = Engine(family(name), LANES[lane], scripted(name, lambda row: 1))
    kept_id, doomed_id, third = engine.submit(kept), engine.submit(doomed), engine.submit(kept)
    for _ in range(steps):
        engine.step()
    assert engine.cancel(doomed_id)
    late = engine.submit(joining)
    again = engine.submit(doomed)
    while engine.has_work:
        engine.step()
    expected = {kept_id: kept, third: kept, late: joining, again: doomed}
    for request_id, request in expected.items():
        ids = list(engine.completion(request_id).token_ids)
        assert ids == truth(name, request.prompt_ids)[:EMITTED]
    assert engine.completion(doomed_id).finish_reason is FinishReason.CANCELLED


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("name", RECURRENT)
def test_copies_compute_their_own_prompt_and_equal_the_oracle(name: str, lane: str) -> None:
    request = constrained(None, 0.9)[1]
    engine = Engine(family(name), LANES[lane], NgramDrafter())
    ids = engine.submit_copies(request, 3)
    while engine.has_work:
        engine.step()
    oracle = Oracle(family(name))
    for seed, request_id in enumerate(ids, start=1):
        alone = Request(
            prompt_ids=request.prompt_ids,
            max_tokens=request.max_tokens,
            sampling=SamplingParams(temperature=0.9, seed=seed),
        )
        done = engine.completion(request_id)
        assert list(done.token_ids) == oracle.generate(alone)
        assert done.cached_tokens == 0


def states_of(engine: Engine, slot: int) -> list[np.ndarray]:
    """What the recurrent layers hold of one slot."""
    kept = engine._runner.cache.read(slot, 0, 0)
    return [np.array(array) for arrays in kept for array in arrays if array.size]


@pytest.mark.parametrize("lane", ["batch", "batch+spec"])
@pytest.mark.parametrize("name", RECURRENT)
def test_the_state_of_a_row_inside_its_prompt_stands_still_while_others_decode(
    name: str, lane: str
) -> None:
    first, second, joining = rows()
    engine = Engine(family(name), LANES[lane], scripted(name, lambda row: 1))
    ids = {engine.submit(first): first, engine.submit(second): second}
    while engine.stats().tokens < len(first.prompt_ids) + len(second.prompt_ids) + 6:
        engine.step()
    ids[engine.submit(joining)] = joining
    steps_beside = 0
    while engine.has_work:
        waiting = [
            (slot, row.num_cached, states_of(engine, slot))
            for slot, row in engine._scheduler._table.items()
            if 0 < row.num_cached < row.num_prompt
        ]
        engine.step()
        assert engine.last_step is not None
        if waiting and engine.last_step.kind is StepKind.DECODE:
            steps_beside += 1
            [(slot, _, before)] = waiting
            assert all(map(np.array_equal, states_of(engine, slot), before))
    assert steps_beside >= 4
    for request_id, request in ids.items():
        emitted = list(engine.completion(request_id).token_ids)
        assert emitted == truth(name, request.prompt_ids)[:EMITTED]


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("wait", [2, 7])
@pytest.mark.parametrize("name", RECURRENT)
def test_a_step_that_fails_after_it_was_launched_is_undone(
    name: str, wait: int, lane: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, waits = arrays.read, iter(range(1, 1000))

    def read_or_fail(*wanted: mx.array) -> list[np.ndarray]:
        if next(waits) == wait:
            raise RuntimeError("out of memory")
        return read(*wanted)

    monkeypatch.setattr(arrays, "read", read_or_fail)
    engine = Engine(family(name), LANES[lane], build_drafter(LANES[lane]))
    ids = [engine.submit(request) for request in rows()]
    failures = 0
    while engine.has_work:
        try:
            engine.step()
        except RuntimeError:
            failures += 1
    assert failures == 1
    for request_id, request in zip(ids, rows(), strict=True):
        emitted = list(engine.completion(request_id).token_ids)
        assert emitted == truth(name, request.prompt_ids)[:EMITTED]
