"""Whatever raises inside a step, rows end with the ids of their solo run, and nothing is left."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from inspect import CO_GENERATOR
from pathlib import Path
from types import FrameType
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import engine.loop
from engine import arrays
from engine.config import EngineConfig
from engine.draft.registry import build_drafter
from engine.draft.source import DraftSource
from engine.draft.two_model import TwoModelDrafter
from engine.loop import Engine
from engine.models.load import LoadedModel
from engine.plan import RowRange
from engine.reasoning import ReplyText
from engine.request import (
    Completion,
    Constraint,
    ConstraintKind,
    FinishReason,
    Request,
    SamplingParams,
    TokenEvent,
)
from engine.sequence import MAX_FAILURES
from engine.testing import tiny_model
from engine.text import Said
from harness.lane_audit.play import leftovers
from tests.engine.cache.families import family

SOURCES = str(Path(engine.loop.__file__).parent)


class InjectedError(Exception):
    """What no code expects."""


@dataclass
class Saboteur:
    """Raises where a step enters its `place`th function of the engine, once.

    Attributes:
        entered: the functions entered so far; generators are left out, which Python also enters to
            close them.
    """

    place: int
    entered: list[str] = field(default_factory=list)

    def step(self, served: Engine) -> list[TokenEvent]:
        """Step, watched."""
        sys.setprofile(self._enter if len(self.entered) < self.place else None)
        try:
            return served.step()
        finally:
            sys.setprofile(None)

    def _enter(self, frame: FrameType, event: str, _arg: object) -> None:
        code = frame.f_code
        is_ours = code.co_filename.startswith(SOURCES) and not code.co_flags & CO_GENERATOR
        if event == "call" and is_ours:
            self.entered.append(f"{Path(code.co_filename).stem}.{code.co_qualname}")
            if len(self.entered) == self.place:
                sys.setprofile(None)
                raise InjectedError(self.entered[-1])


@dataclass(frozen=True)
class Setting:
    """A lane on a model."""

    config: EngineConfig
    model: Callable[[], LoadedModel] = tiny_model

    def open(self) -> tuple[Engine, DraftSource | None]:
        """Return a new engine and its drafter."""
        is_drafted = self.config.drafter == "two_model"
        drafter = build_drafter(self.config, self.model() if is_drafted else None)
        return Engine(self.model(), self.config, drafter), drafter


BATCH = EngineConfig(max_rows=2, prefill_chunk=24, interleaved_prefill=16)
SPEC = replace(BATCH, num_draft_tokens=3, draft_budgets="fixed", spec_batching="batched")
SETTINGS = {
    "serial": Setting(EngineConfig(prefill_chunk=24, prefix_cache_bytes=10**7)),
    "batch": Setting(replace(BATCH, prefix_cache_bytes=10**7)),
    "batch+ngram": Setting(replace(SPEC, prefix_cache_bytes=10**7)),
    "batch+two_model": Setting(replace(SPEC, drafter="two_model")),
    "batch+kv8": Setting(replace(BATCH, kv_bits=8), lambda: family("llama")),
    "mamba2": Setting(SPEC, lambda: family("mamba2")),
    "qwen3_next": Setting(SPEC, lambda: family("qwen3_next")),
    "gemma3": Setting(BATCH, lambda: family("gemma3_text")),
}


def requests() -> list[Request]:
    """Rows with a long prompt, a grammar, and drawn tokens; one of them waits for a slot."""
    text = tuple(33 + (7 * i * i) % 60 for i in range(70))
    yes = Constraint(kind=ConstraintKind.REGEX, value="[a-f]{3}(x|y){4}")
    return [
        Request(prompt_ids=text, max_tokens=5, ignore_eos=True, request_id="long"),
        Request(prompt_ids=(65, 66, 65, 66, 67), max_tokens=12, constraint=yes, request_id="regex"),
        Request(
            prompt_ids=(70, 71, 72, 70, 71, 72, 70, 71),
            max_tokens=9,
            ignore_eos=True,
            request_id="drawn",
            sampling=SamplingParams(temperature=0.8, seed=3, logprobs=True),
        ),
    ]


@cache
def alone(name: str) -> dict[str, tuple[int, ...]]:
    """The ids of every row by itself, when nothing fails."""
    found: dict[str, tuple[int, ...]] = {}
    for request in requests():
        served, _ = SETTINGS[name].open()
        found[request.request_id] = served.generate([request])[0].token_ids
    return found


@dataclass
class Outcome:
    """A run with at most one failure."""

    completions: dict[str, Completion]
    told: dict[str, list[int]]
    entered: list[str]
    failures: int
    left: list[str]


def run(name: str, place: int) -> Outcome:
    """Run all rows while the engine fails once, on entering its `place`th function."""
    served, drafter = SETTINGS[name].open()
    ids = [served.submit(request) for request in requests()]
    told: dict[str, list[int]] = {request_id: [] for request_id in ids}
    saboteur, failures, steps = Saboteur(place), 0, 0
    while served.has_work:
        steps += 1
        assert steps < 400, f"wedged after {saboteur.entered[-1]}"
        try:
            events = saboteur.step(served)
        except InjectedError:
            failures += 1
            continue
        for event in events:
            assert event.position == len(told[event.request_id])
            told[event.request_id] += [] if event.token_id is None else [event.token_id]
    done = {request_id: served.completion(request_id) for request_id in ids}
    return Outcome(done, told, saboteur.entered, failures, leftovers(served, drafter))


@cache
def num_places(name: str) -> int:
    """How many functions a run without failures enters."""
    return len(run(name, 10**9).entered)


def check(name: str, place: int) -> None:
    outcome = run(name, place)
    where = outcome.entered[-1]
    assert not outcome.left, (where, outcome.left)
    broken = [row for row in outcome.completions.values() if row.error is not None]
    assert len(broken) + outcome.failures <= 1, (where, broken)
    for request_id, completion in outcome.completions.items():
        if completion.error is None:
            assert completion.token_ids == alone(name)[request_id], where
        else:
            assert completion.finish_reason is FinishReason.ERROR, where
        assert outcome.told[request_id] == list(completion.token_ids), where


@pytest.mark.parametrize("name", SETTINGS)
def test_one_failure_anywhere_in_a_step_ends_at_most_the_row_it_is_about(name: str) -> None:
    @settings(max_examples=25, derandomize=True, database=None)
    @given(place=st.integers(1, num_places(name)))
    def search(place: int) -> None:
        check(name, place)

    search()


class FailingDevice:
    """Fails whenever it has to compute one token.

    What is launched fails unseen: the next wait raises, whoever waits, and nothing that was
    computed can be read any more.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, served: Engine, token: int) -> None:
        self.is_failed = False
        self._served = served
        for method in ("prefill", "forward"):
            monkeypatch.setattr(
                served._runner, method, self._watched(getattr(served._runner, method), token)
            )
        for wait in ("read", "wait"):
            monkeypatch.setattr(arrays, wait, self._failing(getattr(arrays, wait)))

    def _watched(self, feed: Callable[..., Any], token: int) -> Callable[..., Any]:
        def watched(ids: mx.array, rows: RowRange) -> mx.array:
            fed = np.array(ids).reshape(len(rows.counts), -1)
            self.is_failed |= any(
                token in row[:count] for row, count in zip(fed, rows.counts, strict=True)
            )
            return feed(ids, rows)

        return watched

    def _failing(self, wait: Callable[..., Any]) -> Callable[..., Any]:
        def waited(*wanted: mx.array) -> Any:
            if self.is_failed:
                self.is_failed = False
                self._spoil()
                raise InjectedError("the device is lost")
            return wait(*wanted)

        return waited

    def _spoil(self) -> None:
        prefixes = self._served._prefixes._cache
        runs = [run.arrays for run in prefixes._runs] if prefixes is not None else []
        for layers in (self._served._runner.cache.arrays(), *runs):
            for array in (array for layer in layers for array in layer):
                array[...] = mx.nan


def step_through(served: Engine, most: int = 200) -> int:
    """Step to the end whatever is raised; returns how often it was."""
    failures = 0
    for _ in range(most):
        if not served.has_work:
            return failures
        try:
            served.step()
        except InjectedError:
            failures += 1
    raise AssertionError("wedged")


def test_prefixes_kept_before_the_device_failed_are_not_used_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, _, broken = requests()
    expected = alone("serial")[first.request_id]
    seen = {0, *first.prompt_ids, *expected}
    poison = next(token for token in range(256) if token not in seen)
    served, _ = SETTINGS["serial"].open()
    FailingDevice(monkeypatch, served, poison)
    assert served.generate([first])[0].token_ids == expected
    assert served.generate([first])[0].cached_tokens == 64
    served.submit(replace(broken, prompt_ids=(poison,)))
    step_through(served)
    assert served.generate([first])[0].token_ids == expected


@pytest.mark.parametrize("place", [0, 30, 69])
@pytest.mark.parametrize("name", ["serial", "batch", "batch+ngram", "mamba2", "gemma3"])
def test_a_prompt_the_device_cannot_compute_ends_alone_though_its_failure_comes_late(
    name: str, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = alone(name)
    served, drafter = SETTINGS[name].open()
    doomed, *others = requests()
    seen = {0}.union(*(row.prompt_ids for row in requests()), *expected.values())
    poison = next(token for token in range(256) if token not in seen)
    ids = list(doomed.prompt_ids)
    ids[place] = poison
    FailingDevice(monkeypatch, served, poison)
    names = [served.submit(row) for row in (*others, replace(doomed, prompt_ids=tuple(ids)))]
    failures = step_through(served)
    *whole, broken = [served.completion(request_id) for request_id in names]
    assert [row.token_ids for row in whole] == [expected[row.request_id] for row in others]
    assert broken.finish_reason is FinishReason.ERROR
    assert broken.error is not None
    assert f"{MAX_FAILURES} steps failed" in broken.error
    assert "the device is lost" in broken.error
    assert failures <= MAX_FAILURES + 1
    assert not leftovers(served, drafter)


def test_of_two_prompts_in_one_step_the_one_that_fails_ends_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, whole, broken = requests()
    seen = {0, *whole.prompt_ids, *alone("batch")[whole.request_id]}
    poison = next(token for token in range(256) if token not in seen)
    served, drafter = SETTINGS["batch"].open()
    FailingDevice(monkeypatch, served, poison)
    served.submit(whole)
    served.submit(replace(broken, prompt_ids=(poison, *broken.prompt_ids[:4])))
    step_through(served)
    assert served.completion(whole.request_id).token_ids == alone("batch")[whole.request_id]
    assert served.completion(broken.request_id).finish_reason is FinishReason.ERROR
    assert not leftovers(served, drafter)


@pytest.mark.parametrize("name", ["serial", "batch", "batch+two_model"])
@pytest.mark.parametrize("where", ["make_room", "prefill"])
def test_a_device_that_never_works_ends_every_row_with_an_error(
    name: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise InjectedError("out of memory")

    served, drafter = SETTINGS[name].open()
    monkeypatch.setattr(served._runner, where, fail)
    rows = [row for _ in range(3) for row in requests()]
    names = [served.submit(replace(row, request_id="")) for row in rows]
    failures = step_through(served)
    assert failures <= MAX_FAILURES * len(rows)
    for request_id in names:
        assert served.completion(request_id).finish_reason is FinishReason.ERROR
    monkeypatch.undo()
    assert served.generate(requests()[:1])[0].token_ids == alone(name)["long"]
    assert not leftovers(served, drafter)


@pytest.mark.parametrize("name", ["serial", "batch", "batch+ngram", "mamba2"])
def test_rows_come_to_their_end_though_every_decode_step_fails(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was emitted is fed in chunks, and each last chunk chooses a token."""
    expected = alone(name)

    def fail(*_: object) -> None:
        raise InjectedError("no such kernel")

    served, drafter = SETTINGS[name].open()
    monkeypatch.setattr(served._runner, "forward", fail)
    names = [served.submit(row) for row in requests()]
    assert step_through(served) > 0
    assert {row: served.completion(row).token_ids for row in names} == expected
    assert not leftovers(served, drafter)


@pytest.mark.parametrize("name", SETTINGS)
def test_after_a_step_that_raised_nothing_is_held_but_what_rows_have_said(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise InjectedError("once")

    served, drafter = SETTINGS[name].open()
    ids = [served.submit(row) for row in requests()]
    while served.stats().active and not any(row.num_emitted > 2 for row in served._live.values()):
        served.step()
    monkeypatch.setattr(arrays, "read", fail)
    failures = 0
    while not failures:  # a step inside a prompt reads nothing
        try:
            served.step()
        except InjectedError:
            failures += 1
    stats = served.stats()
    assert (stats.active, stats.kv_bytes, stats.prefix.num_bytes) == (0, 0, 0)
    assert stats.pending == len(served._live)
    assert not served._proposer._known
    if isinstance(drafter, TwoModelDrafter):
        assert drafter._runner.cache.num_bytes == 0
    monkeypatch.undo()
    step_through(served)
    assert {row: served.completion(row).token_ids for row in ids} == alone(name)


def test_a_text_that_cannot_be_made_ends_its_row_alone() -> None:
    class Broken(ReplyText):
        def push(self, token_id: int) -> Said:
            raise InjectedError("no such bytes")

    served, drafter = SETTINGS["batch"].open()
    names = [served.submit(row) for row in requests()]
    served._live["regex"].text = Broken(tiny_model().tokenizer.token_bytes)
    assert step_through(served) == 0
    done = {name: served.completion(name) for name in names}
    assert done["regex"].error is not None
    assert "InjectedError: no such bytes" in done["regex"].error
    for name in ("long", "drawn"):
        assert done[name].token_ids == alone("batch")[name]
    assert not leftovers(served, drafter)


def test_a_restarted_row_fits_the_room_it_was_let_in_with() -> None:
    """Emitted tokens are fed in chunks, whose padding may not go past the row's last position."""
    request = Request(prompt_ids=(65,) * 3, max_tokens=252, ignore_eos=True, request_id="edge")
    config = EngineConfig(prefill_chunk=9)
    expected = Engine(tiny_model(), config).generate([request])[0].token_ids
    for kept in (200, 249, 251):
        served = Engine(tiny_model(), config)
        served.submit(request)
        while served._live["edge"].num_emitted < kept:
            served.step()
        served._start_over(InjectedError("once"))
        assert step_through(served, most=400) == 0
        assert served.completion("edge").token_ids == expected


def test_a_generate_that_is_interrupted_leaves_no_row_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    served, drafter = SETTINGS["batch"].open()
    monkeypatch.setattr(arrays, "read", interrupt)
    with pytest.raises(KeyboardInterrupt):
        served.generate(requests())
    monkeypatch.undo()
    assert not leftovers(served, drafter)
    completion = served.generate(requests()[:1])[0]
    assert completion.token_ids == alone("batch")["long"]


def test_a_replay_whose_step_raises_leaves_no_row_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise InjectedError("once")

    served, drafter = SETTINGS["batch"].open()
    (done,) = served.generate(requests()[:1])
    monkeypatch.setattr(arrays, "read", fail)
    with pytest.raises(InjectedError):
        served.replay(requests()[0], done.token_ids)
    monkeypatch.undo()
    assert not served.has_work
    assert not leftovers(served, drafter)
    assert served.replay(requests()[0], done.token_ids).step_s
