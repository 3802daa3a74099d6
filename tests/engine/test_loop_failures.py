"""A step that fails takes no row half way: the next one is planned again from what rows hold."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from engine import arrays
from engine.config import EngineConfig
from engine.draft.registry import build_drafter
from engine.draft.source import DraftRequest
from engine.errors import RequestError, RowError
from engine.loop import Engine
from engine.oracle import Oracle
from engine.request import Completion, FinishReason, Request
from engine.sequence import Sequence
from engine.testing import ScriptedDrafter, tiny_model

LANES = {
    "serial": EngineConfig(),
    "batch": EngineConfig(max_rows=4),
    "batch+spec": EngineConfig(
        max_rows=4, num_draft_tokens=3, draft_budgets="fixed", spec_batching="batched"
    ),
}


class FailingDrafter(ScriptedDrafter):
    """Drafts nonsense and raises in one of its methods, once or whenever a row is concerned."""

    def __init__(self, method: str, victim: int | None = None) -> None:
        super().__init__(lambda sequence: [sequence.ids[-1]] * 3)
        self.fails_in = method
        self.victim = victim
        self.calls_left = 3 if victim is None else 10**9

    def _fail(self, method: str, sequences: list[Sequence]) -> None:
        if method != self.fails_in:
            return
        self.calls_left -= 1
        if self.calls_left == 0 or any(row.ids[0] == self.victim for row in sequences):
            raise RuntimeError(f"broken in {method}")

    def propose(self, requests: Rows[DraftRequest]) -> list[list[int]]:
        """Raise, or propose."""
        self._fail("propose", [request.sequence for request in requests])
        return super().propose(requests)

    def commit(self, sequence: Sequence, num_accepted: int) -> None:
        """Raise, or record."""
        self._fail("commit", [sequence])
        super().commit(sequence, num_accepted)

    def close(self, sequence: Sequence) -> None:
        """Raise, or forget."""
        self._fail("close", [sequence])
        super().close(sequence)


def run_through_failures(engine: Engine, requests: list[Request]) -> tuple[list[Completion], int]:
    """Step to the end whatever is raised; returns the completions and how often it was."""
    ids, failures = [engine.submit(request) for request in requests], 0
    while engine.has_work:
        try:
            engine.step()
        except RuntimeError:
            failures += 1
    return [engine.completion(request_id) for request_id in ids], failures


def two_rows() -> list[Request]:
    """Rows of different lengths that end together."""
    prompts = [(65, 66, 65, 66, 67), (70, 71, 72, 70, 71, 72, 70, 71, 90)]
    return [Request(prompt_ids=ids, max_tokens=12, ignore_eos=True) for ids in prompts]


def test_a_drafter_that_fails_once_for_a_whole_step_costs_nothing() -> None:
    oracle = Oracle(tiny_model())
    engine = Engine(tiny_model(), LANES["batch+spec"], FailingDrafter("propose"))
    for request, completion in zip(two_rows(), engine.generate(two_rows()), strict=True):
        assert list(completion.token_ids) == oracle.generate(request)


@pytest.mark.parametrize("method", ["propose", "commit"])
def test_a_row_whose_drafter_fails_ends_alone_with_an_error(method: str) -> None:
    oracle = Oracle(tiny_model())
    engine = Engine(tiny_model(), LANES["batch+spec"], FailingDrafter(method, victim=65))
    broken, whole = engine.generate(two_rows())
    assert broken.finish_reason is FinishReason.ERROR
    assert broken.error is not None
    assert f"RuntimeError: broken in {method}" in broken.error
    assert list(whole.token_ids) == oracle.generate(two_rows()[1])
    assert engine.stats().active == 0


def test_a_drafter_that_cannot_forget_a_row_disturbs_nobody() -> None:
    oracle = Oracle(tiny_model())
    engine = Engine(tiny_model(), LANES["batch+spec"], FailingDrafter("close", victim=65))
    for request, completion in zip(two_rows(), engine.generate(two_rows()), strict=True):
        assert list(completion.token_ids) == oracle.generate(request)


def test_a_drafter_that_answers_for_too_few_rows_breaks_the_rows_it_left_out() -> None:
    class Short(ScriptedDrafter):
        def propose(self, requests: Rows[DraftRequest]) -> list[list[int]]:
            return super().propose(requests)[1:]

    engine = Engine(tiny_model(), LANES["batch+spec"], Short(lambda sequence: []))
    for completion in engine.generate(two_rows()):
        assert completion.error is not None
        assert "0 proposals for 1 rows" in completion.error


@pytest.mark.parametrize("draft", [["a"], [None], [65, 1.5]], ids=str)
@pytest.mark.parametrize("acceptance", ["match", "rejection"])
def test_a_draft_that_is_no_token_id_ends_its_row_alone(acceptance: str, draft: list[Any]) -> None:
    drafter = ScriptedDrafter(lambda sequence: draft if sequence.ids[0] == 65 else [70])
    config = replace(LANES["batch+spec"], acceptance=acceptance)
    broken, whole = Engine(tiny_model(), config, drafter).generate(two_rows())
    assert broken.error is not None
    assert "the drafter failed (TypeError" in broken.error
    assert list(whole.token_ids) == Oracle(tiny_model()).generate(two_rows()[1])
    assert not drafter.open_rows


class FailingMatcher:
    """A grammar that allows all and fails when it is asked one thing."""

    def __init__(self, method: str, error: type[Exception]) -> None:
        self.fails_in = method
        self.error = error

    def _fail(self, method: str) -> None:
        if method == self.fails_in:
            raise self.error(f"broken in {method}")

    @property
    def is_accepting(self) -> bool:
        """Fail, or say no."""
        self._fail("is_accepting")
        return self.fails_in == "check_text"

    @property
    def is_finished(self) -> bool:
        """Fail, or say no."""
        self._fail("is_finished")
        return False

    def legal_prefix(self, tokens: Rows[int]) -> int:
        """Allow all."""
        return len(tokens)

    def advance(self, tokens: Rows[int]) -> None:
        """Fail, or take them."""
        self._fail("advance")

    def fill(self, draft: Rows[int], rows: np.ndarray) -> str | None:
        """Fail as a matcher does here, or as it should not, or leave everything legal."""
        self._fail("raise_in_fill")
        return "broken in fill" if self.fails_in == "fill" else None

    def check_text(self, text: str) -> str:
        """Fail."""
        self._fail("check_text")
        return "enforced"

    @property
    def schema_report(self) -> dict[str, object]:
        """Say nothing."""
        return {}


@pytest.mark.parametrize("lane", ["serial", "batch", "batch+spec"])
@pytest.mark.parametrize("error", [RowError, RuntimeError])
@pytest.mark.parametrize(
    "method", ["advance", "is_finished", "is_accepting", "fill", "raise_in_fill", "check_text"]
)
def test_a_row_whose_grammar_fails_ends_alone(
    lane: str, method: str, error: type[Exception]
) -> None:
    engine = Engine(tiny_model(), LANES[lane], build_drafter(LANES[lane]))
    broken_id, whole_id = [engine.submit(request) for request in two_rows()]
    engine._live[broken_id].matcher = FailingMatcher(method, error)
    while engine.has_work:
        engine.step()
    broken, whole = engine.completion(broken_id), engine.completion(whole_id)
    assert list(whole.token_ids) == Oracle(tiny_model()).generate(two_rows()[1])
    assert broken.conformance == "failed"
    if method == "check_text":
        assert broken.finish_reason is FinishReason.STOP
    else:
        assert broken.finish_reason is FinishReason.ERROR
        assert broken.error is not None
        assert f"broken in {method}" in broken.error
    assert engine.stats().active == 0


@pytest.mark.parametrize("lane", ["serial", "batch", "batch+spec"])
@pytest.mark.parametrize("wait", [1, 2, 4, 7])
def test_a_step_whose_wait_fails_is_taken_again(
    lane: str, wait: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    oracle = Oracle(tiny_model())
    read, waits = arrays.read, iter(range(1, 1000))

    def read_or_fail(*wanted: mx.array) -> list[np.ndarray]:
        if next(waits) == wait:
            raise RuntimeError("out of memory")
        return read(*wanted)

    monkeypatch.setattr(arrays, "read", read_or_fail)
    engine = Engine(tiny_model(), LANES[lane], build_drafter(LANES[lane]))
    completions, failures = run_through_failures(engine, two_rows())
    assert failures == 1
    for request, completion in zip(two_rows(), completions, strict=True):
        assert list(completion.token_ids) == oracle.generate(request)


def test_a_prompt_that_fills_the_context_is_refused_and_a_budget_beyond_it_is_cut() -> None:
    model = tiny_model()
    model = replace(model, config={**model.config, "max_position_embeddings": 40})
    engine = Engine(model, EngineConfig())
    with pytest.raises(RequestError, match="40 tokens and the model's context is 40"):
        engine.submit(Request(prompt_ids=(65,) * 40))
    request = Request(prompt_ids=(65,) * 30, max_tokens=100, ignore_eos=True)
    completion = engine.generate([request])[0]
    assert len(completion.token_ids) == 10
    assert completion.finish_reason is FinishReason.LENGTH


def test_a_token_id_that_is_no_whole_number_is_refused_at_submission() -> None:
    engine = Engine(tiny_model(), EngineConfig())
    with pytest.raises(RequestError, match=r"65\.7"):
        engine.submit(Request(prompt_ids=(65, 65.7)))  # type: ignore[arg-type]  # the point
    assert not engine.has_work
