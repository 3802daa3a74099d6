"""Every emitted token of a row that asks has its log-probability, in every lane and for free."""

from __future__ import annotations

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import arrays
from engine.config import EngineConfig
from engine.draft.registry import build_drafter
from engine.errors import FmError
from engine.logprobs import score
from engine.loop import Engine
from engine.request import (
    Completion,
    Constraint,
    ConstraintKind,
    Provenance,
    Request,
    SamplingParams,
    TokenEvent,
)
from engine.testing import ScriptedDrafter, tiny_model

LANES = {
    "serial": EngineConfig(),
    "serial, not pipelined": EngineConfig(pipelined=False),
    "batch": EngineConfig(max_rows=4),
    "serial+spec": EngineConfig(num_draft_tokens=3, draft_budgets="fixed"),
    "batch+spec": EngineConfig(
        max_rows=4, num_draft_tokens=3, draft_budgets="fixed", spec_batching="batched"
    ),
    "batch+spec two_model": EngineConfig(
        max_rows=4,
        num_draft_tokens=3,
        draft_budgets="fixed",
        drafter="two_model",
        spec_batching="batched",
    ),
}
REPEATING = tuple(b"abcabcabcabcabc")


def engine_of(config: EngineConfig) -> Engine:
    """An engine on the tiny model, which drafts for itself where a draft model is asked for."""
    return Engine(tiny_model(), config, build_drafter(config, tiny_model()))


def run(engine: Engine, requests: list[Request]) -> tuple[list[Completion], list[TokenEvent]]:
    """All completions and all events."""
    ids, events = [engine.submit(request) for request in requests], []
    while engine.has_work:
        events += engine.step()
    return [engine.completion(request_id) for request_id in ids], events


def truth_of(request: Request, completion: Completion) -> np.ndarray:
    """The log-softmax after each prefix of a reply, from one forward over all of it."""
    ids = [*request.prompt_ids, *completion.token_ids]
    logits = tiny_model().model(mx.array([ids]))[0, len(request.prompt_ids) - 1 : -1]
    scores = np.array(logits.astype(mx.float32)).astype(np.float64)
    shifted = scores - scores.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def check(request: Request, completion: Completion) -> None:
    """Hold a reply's log-probabilities against those of the plain forward."""
    assert [entry.token_id for entry in completion.logprobs] == list(completion.token_ids)
    for entry, truth in zip(completion.logprobs, truth_of(request, completion), strict=True):
        assert entry.logprob == pytest.approx(truth[entry.token_id], abs=1e-4)
        num_top = request.sampling.top_logprobs
        ids, values = [token for token, _ in entry.top], [value for _, value in entry.top]
        assert len(set(ids)) == len(ids)
        assert values == sorted(values, reverse=True)
        np.testing.assert_allclose(values, truth[ids], atol=1e-4)
        likeliest = np.sort(truth)[::-1][:num_top]
        np.testing.assert_allclose(values[:num_top], likeliest, atol=1e-4)
        assert len(ids) == num_top + (num_top > 0 and entry.token_id not in ids[:num_top])
        assert num_top == 0 or entry.token_id in ids


VARIANTS = {
    "greedy": SamplingParams(logprobs=True, top_logprobs=3),
    "greedy, none beside": SamplingParams(logprobs=True),
    "sampled": SamplingParams(temperature=1.2, top_p=0.9, seed=4, logprobs=True, top_logprobs=20),
    "penalised": SamplingParams(
        repetition_penalty=1.3, logit_bias={65: 9.0}, logprobs=True, top_logprobs=2
    ),
    "at least": SamplingParams(min_tokens=9, logprobs=True, top_logprobs=1),
    "not asking": SamplingParams(temperature=0.7, seed=1),
}


@pytest.mark.parametrize("lane", LANES)
def test_logprobs_are_the_log_softmax_of_the_raw_logits_in_every_lane(lane: str) -> None:
    requests = [
        Request(prompt_ids=(*REPEATING, 65 + row), max_tokens=20, sampling=sampling)
        for row, sampling in enumerate(VARIANTS.values())
    ]
    completions, events = run(engine_of(LANES[lane]), requests)
    for request, completion in zip(requests[:-1], completions[:-1], strict=True):
        check(request, completion)
        told = [
            event.logprobs
            for event in events
            if event.request_id == completion.request_id and event.token_id is not None
        ]
        assert told == list(completion.logprobs)
    assert completions[-1].logprobs == ()
    if "spec" in lane:
        assert any(Provenance.ACCEPTED in completion.provenance for completion in completions)


@pytest.mark.parametrize("lane", LANES)
def test_a_grammar_does_not_change_what_the_model_thinks(lane: str) -> None:
    request = Request(
        prompt_ids=REPEATING,
        sampling=VARIANTS["greedy"],
        constraint=Constraint(kind=ConstraintKind.CHOICE, value=("abcabd", "xyz")),
    )
    completions, _ = run(engine_of(LANES[lane]), [request] * 3)
    for completion in completions:
        assert completion.text in ("abcabd", "xyz")
        check(request, completion)


@given(
    asks=st.lists(st.sampled_from(list(VARIANTS)), min_size=1, max_size=6),
    lane=st.sampled_from(list(LANES)),
)
@settings(max_examples=10)
def test_asking_for_logprobs_changes_no_token_of_any_row(asks: list[str], lane: str) -> None:
    asking = [
        Request(prompt_ids=(*REPEATING, 70 + row), max_tokens=12, sampling=VARIANTS[name])
        for row, name in enumerate(asks)
    ]
    silent = [
        replace(item, sampling=replace(item.sampling, logprobs=False, top_logprobs=0))
        for item in asking
    ]
    with_them, _ = run(engine_of(LANES[lane]), asking)
    without, _ = run(engine_of(EngineConfig()), silent)
    assert [c.token_ids for c in with_them] == [c.token_ids for c in without]


@pytest.mark.parametrize("lane", ["serial", "batch", "serial+spec", "batch+spec"])
def test_they_are_read_in_the_one_wait_of_the_step(lane: str) -> None:
    engine = engine_of(LANES[lane])
    for row in range(5):
        sampling = VARIANTS["sampled" if row % 2 else "not asking"]
        engine.submit(
            Request(prompt_ids=(*REPEATING, row), max_tokens=15, ignore_eos=True, sampling=sampling)
        )
    steps, pipelined, before = 0, 0, arrays.SYNCS.count
    while engine.has_work:
        engine.step()
        steps += 1
        pipelined += engine._flight is not None
    assert arrays.SYNCS.count - before == steps
    assert pipelined > 5 or "spec" in lane


def test_the_wrong_end_of_a_burst_has_no_logprobs() -> None:
    drafter = ScriptedDrafter(lambda row: [row.ids[-1]] * 3)
    engine = Engine(tiny_model(), EngineConfig(num_draft_tokens=3, draft_budgets="fixed"), drafter)
    request = Request(prompt_ids=REPEATING, max_tokens=30, sampling=VARIANTS["sampled"])
    (completion,), _ = run(engine, [request])
    assert completion.drafted > completion.accepted
    check(request, completion)


def test_a_replay_reports_none_and_is_not_disturbed() -> None:
    engine = engine_of(EngineConfig())
    request = Request(prompt_ids=REPEATING, sampling=VARIANTS["greedy"])
    assert len(engine.replay(request, [70, 71, 72]).step_s) == 2


@pytest.mark.parametrize(
    ("sampling", "refusal"),
    [
        ({"top_logprobs": 3}, "top_logprobs is 3 and logprobs is off"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs is 21"),
        ({"logprobs": 1}, "logprobs is 1"),
    ],
    ids=str,
)
def test_values_outside_their_bounds_are_refused(sampling: dict[str, int], refusal: str) -> None:
    with pytest.raises(FmError, match=refusal):
        SamplingParams(**sampling)


TIES = st.sampled_from([-np.inf, -2.5, -0.0, 0.0, 1.0, 1e-40, 3e38])


@given(
    rows=st.lists(
        st.lists(TIES, min_size=9, max_size=9).filter(lambda row: max(row) > -np.inf),
        min_size=1,
        max_size=4,
    ),
    num_top=st.integers(0, 20),
    dtype=st.sampled_from([mx.float32, mx.bfloat16]),
)
@settings(max_examples=100)
def test_the_likeliest_come_in_order_and_lower_ids_first_among_equals(
    rows: list[list[float]], num_top: int, dtype: mx.Dtype
) -> None:
    logits = mx.array(np.array(rows, dtype=np.float32)).astype(dtype)
    scored = score(logits, mx.zeros(len(rows), mx.int32), np.full(len(rows), num_top))
    truth = np.array(logits.astype(mx.float32))
    for entry, row in zip(scored.report(arrays.read(*scored.arrays)), truth, strict=True):
        likeliest = np.argsort(-row, kind="stable")[:num_top].tolist()
        assert [token for token, _ in entry.top[:num_top]] == likeliest
        is_added = num_top > 0 and 0 not in likeliest
        assert [token for token, _ in entry.top[num_top:]] == [0] * is_added
