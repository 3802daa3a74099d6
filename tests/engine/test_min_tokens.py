"""No row ends on an end token before its `min_tokens`, in any lane, unless its grammar is over."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.config import EngineConfig
from engine.draft.registry import build_drafter
from engine.errors import RequestError
from engine.loop import Engine
from engine.oracle import Oracle
from engine.request import Constraint, ConstraintKind, FinishReason, Request, SamplingParams
from engine.testing import ScriptedDrafter, scripted_model, start_id, tiny_model

LANES = {
    "serial": EngineConfig(),
    "serial, not pipelined": EngineConfig(pipelined=False),
    "batch": EngineConfig(max_rows=4),
    "serial+spec": EngineConfig(num_draft_tokens=3, draft_budgets="fixed"),
    "batch+spec": EngineConfig(
        max_rows=4, num_draft_tokens=3, draft_budgets="fixed", spec_batching="batched"
    ),
    "serial+spec two_model": EngineConfig(
        num_draft_tokens=4, draft_budgets="fixed", drafter="two_model"
    ),
    "batch+spec two_model": EngineConfig(
        max_rows=4,
        num_draft_tokens=3,
        draft_budgets="fixed",
        drafter="two_model",
        spec_batching="batched",
    ),
}
EAGER = dict.fromkeys(tiny_model().eos_ids, 60.0)
"""A bias towards the end tokens that no logit of the tiny model resists."""


def engine_of(config: EngineConfig) -> Engine:
    """An engine on the tiny model, which drafts for itself where a draft model is asked for."""
    return Engine(tiny_model(), config, build_drafter(config, tiny_model()))


def eager(min_tokens: int, **settings: object) -> Request:
    """A row that ends as soon as it may."""
    sampling = SamplingParams(
        logit_bias=EAGER, min_tokens=min_tokens, temperature=settings.pop("temperature", 0), seed=5
    )
    return Request(
        prompt_ids=(*b"abcabcabc", 65 + min_tokens),
        max_tokens=20,
        sampling=sampling,
        **settings,
    )


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_row_that_wants_to_end_ends_right_after_its_min_tokens(
    lane: str, temperature: float
) -> None:
    requests = [eager(least, temperature=temperature) for least in (0, 1, 2, 3, 7, 20)]
    oracle = Oracle(tiny_model())
    completions = engine_of(LANES[lane]).generate(requests)
    for request, completion in zip(requests, completions, strict=True):
        assert len(completion.token_ids) == request.sampling.min_tokens
        assert list(completion.token_ids) == oracle.generate(request)
        assert oracle.follow(request, completion.token_ids, ended=True) == []
        assert not tiny_model().eos_ids & set(completion.token_ids)


def test_the_oracle_objects_to_a_row_that_ends_early() -> None:
    model = tiny_model()
    request, end = eager(5), min(model.eos_ids)
    truth = Oracle(model).generate(request)
    assert Oracle(model).follow(request, truth[:3], ended=True)
    assert not Oracle(model).follow(request, [*truth[:3], end], ended=False)[0].is_near_tie


GRAMMARS = {
    "runs on": (Constraint(kind=ConstraintKind.REGEX, value="(ab){2,}"), 9, 10),
    "is over": (Constraint(kind=ConstraintKind.CHOICE, value=("ab", "abab")), 15, 4),
    "must end": (Constraint(kind=ConstraintKind.CHOICE, value=("xy",)), 15, 2),
}


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("name", GRAMMARS)
def test_a_grammar_goes_on_while_it_can_and_wins_when_it_cannot(lane: str, name: str) -> None:
    constraint, least, length = GRAMMARS[name]
    requests = [eager(least, constraint=constraint), eager(3), eager(0, constraint=constraint)]
    oracle = Oracle(tiny_model())
    completions = engine_of(LANES[lane]).generate(requests)
    for request, completion in zip(requests, completions, strict=True):
        assert list(completion.token_ids) == oracle.generate(request)
        assert completion.finish_reason is FinishReason.STOP
    assert len(completions[0].token_ids) == length
    assert completions[0].conformance == "enforced"


def test_a_drafted_end_token_that_comes_too_early_is_an_illegal_draft() -> None:
    model = tiny_model()
    end = min(model.eos_ids)
    drafter = ScriptedDrafter(lambda row: [end, 65])
    completion = Engine(
        model, EngineConfig(num_draft_tokens=3, draft_budgets="fixed"), drafter
    ).generate([eager(6)])[0]
    assert len(completion.token_ids) == 6
    assert completion.illegal_drafts == 5  # one for each of tokens 2 to 6; the seventh may end
    assert completion.drafted == 6


def test_a_drafter_equal_to_its_target_drafts_no_end_before_its_time() -> None:
    completion = engine_of(LANES["serial+spec two_model"]).generate(
        [eager(18, temperature=0.8), eager(20)]
    )[0]
    assert completion.illegal_drafts == 0
    assert completion.accepted == completion.drafted > 10


def test_stop_texts_and_ignore_eos_are_untouched() -> None:
    model = scripted_model("ABCDE")
    sampling = SamplingParams(min_tokens=6)
    prompt = (start_id(model),)
    stopped = Request(prompt_ids=prompt, sampling=sampling, stop=("CD",))
    assert Engine(model, EngineConfig()).generate([stopped])[0].text == "AB"
    request = Request(prompt_ids=prompt, max_tokens=6, sampling=sampling, ignore_eos=True)
    completion = Engine(model, EngineConfig()).generate([request])[0]
    assert completion.token_ids[5] in model.eos_ids
    assert list(completion.token_ids) == Oracle(model).generate(request)


def test_min_tokens_beyond_the_budget_are_refused_and_beyond_the_context_cut_with_it() -> None:
    with pytest.raises(RequestError, match="min_tokens is 5 and max_tokens 4"):
        Request(prompt_ids=(65,), max_tokens=4, sampling=SamplingParams(min_tokens=5))
    model = tiny_model()
    model = replace(model, config={**model.config, "max_position_embeddings": 15})
    completion = Engine(model, EngineConfig()).generate([eager(18)])[0]
    assert completion.finish_reason is FinishReason.LENGTH
    assert len(completion.token_ids) == 5


def test_a_replay_forces_ids_whatever_the_least_is() -> None:
    report = engine_of(EngineConfig()).replay(eager(18), [70, 71, 72])
    assert len(report.step_s) == 2
