"""The law gate's evidence: a wager that a lawful engine cannot lose, and that broken ones do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays as numpy_arrays

import engine.flight
import engine.rejection
from engine.config import EngineConfig
from engine.draft.ngram import NgramDrafter
from engine.draft.source import DraftSource
from engine.loop import Engine
from engine.oracle import LawfulDraw, Oracle
from engine.request import Constraint, ConstraintKind, FinishReason, Request, SamplingParams
from engine.row_params import RECORD, Draws, record_of
from engine.sampler import temper
from engine.testing import ScriptedDrafter, request_for, tiny_model
from harness.judging.law import (
    MAX_DRAWS,
    LawVerdict,
    judge_law,
    law_row,
    portions,
)
from harness.store.rows import RequestRow

REPLY = RequestRow(trial_id="t", position=0, prompt_id="p")
SERIAL = EngineConfig(num_draft_tokens=3, draft_budgets="fixed", acceptance="rejection")
BATCH = EngineConfig(
    max_rows=4,
    num_draft_tokens=3,
    draft_budgets="fixed",
    spec_batching="batched",
    acceptance="rejection",
)
PEOPLE = Constraint(
    kind=ConstraintKind.JSON_SCHEMA,
    value={
        "type": "array",
        "items": {"type": "string", "maxLength": 9},
        "minItems": 4,
        "maxItems": 9,
    },
)


# -- the evidence ------------------------------------------------------------------------------


def log_law(probs: Sequence[float]) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.log(np.array(probs, dtype=np.float64) / np.sum(probs))


def evidence(outcomes: Sequence[int], law: np.ndarray) -> LawVerdict:
    return judge_law([("p", law_row(REPLY, [LawfulDraw(outcome, law) for outcome in outcomes]))])


@given(
    numpy_arrays(np.float64, st.integers(2, 6), elements=st.floats(1e-12, 1)),
    st.integers(0, 3),
)
def test_a_wager_on_lawful_draws_is_worth_one(probs: np.ndarray, impossible: int) -> None:
    """The mean over all pairs of draws, exactly: Ville's bound on false alarms rests on it."""
    law = np.append(log_law(probs), np.full(impossible, -np.inf))
    possible = range(len(probs))
    worth = sum(
        np.exp(law[one] + law[two] + evidence([one, two], law).log_evidence)
        for one in possible
        for two in possible
    )
    assert worth == pytest.approx(1)


def test_lawful_cells_pass_however_sharp_the_law_and_few_the_draws() -> None:
    """A normalised sum of log-probabilities would alarm: one rare token is ten deviations."""
    rng = np.random.default_rng(0)
    law = log_law([0.999, 0.001])
    mean = np.exp(law) @ law
    deviation = np.sqrt(10 * (np.exp(law) @ (law - mean) ** 2))
    cells = [rng.choice(2, size=10, p=np.exp(law)) for _ in range(2_000)]
    assert np.mean([abs(sum(law[cell] - mean)) > 4 * deviation for cell in cells]) > 0.005
    assert not any(evidence(cell, law).problems for cell in cells)


@pytest.mark.parametrize(
    "exponent", [0.0, 0.5, 0.7, 1.5, 3.0], ids=lambda value: f"temperature 1/{value}"
)
def test_draws_at_another_temperature_are_told(exponent: float) -> None:
    rng = np.random.default_rng(1)
    law = log_law(rng.dirichlet(np.full(50, 0.3)))
    other = np.exp(log_law(np.exp(law * exponent)))
    assert evidence(rng.choice(50, size=MAX_DRAWS, p=other), law).problems


def test_an_impossible_token_is_a_failure_by_itself() -> None:
    verdict = evidence([0, 1, 2], log_law([0.5, 0.5, 0]))
    assert verdict.problems == ("prompt p has an impossible token at 2",)
    assert (verdict.impossible, verdict.draws) == (1, 3)
    assert np.isfinite(verdict.log_evidence)


def test_the_line_says_how_much_was_seen_and_how_often_it_is_a_false_alarm() -> None:
    line = evidence([0, 1, 0], log_law([0.5, 0.5])).line
    assert "3 draws of 1 replies" in line
    assert str(MAX_DRAWS) in line
    assert "1 of 10000" in line


def sampled(prompt: str, length: int, seed: int = 0, finish: str = "length") -> RequestRow:
    return replace(
        REPLY, prompt_id=prompt, seed=seed, token_ids=(1,) * length, finish_reason=finish
    )


def test_a_cell_is_judged_up_to_a_stated_number_of_draws() -> None:
    found = portions(sampled(f"p{index}", 500) for index in range(9))
    assert [portion.draws for portion in found] == [500, 500, 500, 500, 48]
    assert sum(portion.draws for portion in found) == MAX_DRAWS


def test_a_repeated_draw_counts_once_and_an_end_is_a_draw() -> None:
    rows = [sampled("p", 3, 1), sampled("p", 3, 1), sampled("p", 3, 2, finish="stop")]
    assert [portion.draws for portion in portions(rows)] == [3, 4]


# -- the oracle's laws -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 1.0},
        {"temperature": 0.3},
        {"temperature": 1.4, "top_k": 7},
        {"temperature": 1.2, "top_p": 0.7},
        {"temperature": 2.0, "min_p": 0.2, "top_k": 50, "top_p": 0.9},
    ],
    ids=str,
)
def test_the_oracles_law_is_the_samplers(settings: dict[str, Any]) -> None:
    model = tiny_model()
    sampling = SamplingParams(seed=3, **settings)
    request = replace(request_for(model, "law", max_tokens=6, ignore_eos=True), sampling=sampling)
    (done,) = Engine(model, EngineConfig()).generate([request])
    record = np.array([record_of(request, seed=3)], dtype=RECORD)
    logits = model.model(mx.array([[*request.prompt_ids, *done.token_ids]]))[0]
    draws = list(Oracle(model).draws(request, done.token_ids, ended=False))
    assert len(draws) == 6
    for place, draw in enumerate(draws):
        scores = logits[len(request.prompt_ids) - 1 + place][None]
        law = mx.softmax(temper(scores, Draws(record, np.array([place]))), axis=-1)
        assert np.exp(draw.log_probs) == pytest.approx(np.array(law[0]), abs=1e-5)


def test_all_end_tokens_are_one_outcome() -> None:
    model = tiny_model()
    request = request_for(model, "end", temperature=1.0, seed=0)
    (draw,) = Oracle(model).draws(request, [], ended=True)
    free = replace(request, ignore_eos=True)
    (apart,) = Oracle(model).draws(free, [65], ended=False)
    ends = sorted(model.eos_ids)
    assert draw.outcome == ends[0]
    together = np.exp(apart.log_probs[ends]).sum()
    # Two forwards, one of them a token longer: in float32 they may round otherwise.
    assert np.exp(draw.log_probs[ends[0]]) == pytest.approx(together, rel=1e-5)
    assert np.exp(draw.log_probs).sum() == pytest.approx(1)


# -- engines -----------------------------------------------------------------------------------


def parrot() -> DraftSource:
    """Drafts what the law finds unlikely as often as not: letters, whatever came before."""
    letters = tiny_model().tokenizer.encode('ab"')
    return ScriptedDrafter(lambda row: letters)


DRAFTERS: dict[str, Callable[[], DraftSource]] = {"parrot": parrot, "ngram": NgramDrafter}


def requests(temperature: float, constraint: Constraint | None) -> list[Request]:
    return [
        request_for(
            tiny_model(),
            f"row {index} row {index}",
            max_tokens=60,
            temperature=temperature,
            seed=index,
            constraint=constraint,
            ignore_eos=constraint is None,
        )
        for index in range(12)
    ]


def verdict_on(
    config: EngineConfig,
    drafter: DraftSource,
    asked: list[Request],
    due: list[Request] | None = None,
) -> LawVerdict:
    """Judge what an engine makes of requests by the laws of these, or of others."""
    oracle, rows = Oracle(tiny_model()), []
    completions = Engine(tiny_model(), config, drafter).generate(asked)
    for request, done in zip(due or asked, completions, strict=True):
        assert done.finish_reason in (FinishReason.STOP, FinishReason.LENGTH), done.error
        ended = done.finish_reason is FinishReason.STOP
        rows.append(("p", law_row(REPLY, oracle.draws(request, done.token_ids, ended))))
    return judge_law(rows)


@pytest.mark.parametrize("constraint", [None, PEOPLE], ids=["free", "grammar"])
@pytest.mark.parametrize("drafter", list(DRAFTERS))
@pytest.mark.parametrize("config", [SERIAL, BATCH], ids=["serial", "batch"])
def test_the_engine_draws_from_the_law(
    config: EngineConfig, drafter: str, constraint: Constraint | None
) -> None:
    verdict = verdict_on(config, DRAFTERS[drafter](), requests(0.4, constraint))
    assert verdict.draws > 150
    assert not verdict.problems, verdict


def accept_every_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep whatever is possible at all."""

    def broken(p: mx.array, q: mx.array, ids: mx.array, uniforms: mx.array) -> mx.array:
        return mx.take_along_axis(p, ids[..., None], axis=-1)[..., 0] > 0

    monkeypatch.setattr(engine.rejection, "accepts", broken)


def ignore_the_temperature(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.flight, "law", lambda scores, draws: scores.astype(mx.float32))


@pytest.mark.parametrize("config", [SERIAL, BATCH], ids=["serial", "batch"])
@pytest.mark.parametrize(
    ("mutate", "constraint"),
    [
        (accept_every_draft, None),
        (accept_every_draft, PEOPLE),
        (ignore_the_temperature, None),
        (ignore_the_temperature, PEOPLE),
    ],
    ids=lambda value: getattr(value, "__name__", "grammar" if value else "free"),
)
def test_a_broken_acceptance_is_told(
    mutate: Callable[[pytest.MonkeyPatch], None],
    constraint: Constraint | None,
    config: EngineConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mutate(monkeypatch)
    verdict = verdict_on(config, parrot(), requests(0.4, constraint))
    assert verdict.problems
    assert not verdict.impossible


def test_a_grammar_dropped_in_silence_is_told() -> None:
    asked = requests(1.0, PEOPLE)
    free = [replace(request, constraint=None) for request in asked]
    verdict = verdict_on(SERIAL, parrot(), free, due=asked)
    assert verdict.impossible > 0
    assert "impossible token at" in verdict.problems[0]
