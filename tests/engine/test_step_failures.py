"""Whatever raises inside a step, rows end with the ids of their solo run, and nothing is left."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import engine.loop
from engine.config import EngineConfig
from engine.draft.registry import build_drafter
from engine.draft.source import DraftSource
from engine.loop import Engine
from engine.models.load import LoadedModel
from engine.request import Completion, Constraint, ConstraintKind, FinishReason, Request
from engine.request import SamplingParams
from engine.sequence import MAX_FAILURES
from engine.testing import tiny_model
from harness.stress_play import leftovers
from tests.engine.cache.families import family

SOURCES = str(Path(engine.loop.__file__).parent)


class InjectedError(Exception):
    """What no code expects."""


@contextmanager
def raising_at(place: int) -> Iterator[list[str]]:
    """Raise where the engine enters its `place`th function; yields the functions entered."""
    entered: list[str] = []

    def profile(frame: FrameType, event: str, _arg: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(SOURCES):
            entered.append(f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_qualname}")
            if len(entered) == place:
                sys.setprofile(None)
                raise InjectedError(entered[-1])

    sys.setprofile(profile)
    try:
        yield entered
    finally:
        sys.setprofile(None)


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
SPEC = replace(BATCH, num_draft_tokens=3, spec_batching="batched")
SETTINGS = {
    "serial": Setting(EngineConfig(prefill_chunk=24, prefix_cache_bytes=10**7)),
    "batch": Setting(replace(BATCH, prefix_cache_bytes=10**7)),
    "batch+ngram": Setting(replace(SPEC, prefix_cache_bytes=10**7)),
    "batch+two_model": Setting(replace(SPEC, drafter="two_model")),
    "batch+kv8": Setting(replace(BATCH, kv_bits=8)),
    "mamba2": Setting(SPEC, lambda: family("mamba2")),
    "qwen3_next": Setting(SPEC, lambda: family("qwen3_next")),
    "gemma3": Setting(BATCH, lambda: family("gemma3_text")),
}


def requests() -> list[Request]:
    """Rows of which one waits for a slot, one is a grammar's, one draws and one has a long prompt."""
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
    failures = 0
    with raising_at(place) as entered:
        for _ in range(400):
            try:
                events = served.step()
            except InjectedError:
                failures += 1
                continue
            for event in events:
                assert event.position == len(told[event.request_id])
                told[event.request_id] += [] if event.token_id is None else [event.token_id]
            if not served._scheduler.has_work and not events:
                break
    sys.setprofile(None)
    assert not served.has_work, f"wedged after {entered[place - 1]}"
    done = {request_id: served.completion(request_id) for request_id in ids}
    return Outcome(done, told, entered, failures, leftovers(served, drafter))


@cache
def num_places(name: str) -> int:
    """How many functions a run without failures enters."""
    return len(run(name, 10**9).entered)


def check(name: str, place: int) -> None:
    outcome = run(name, place)
    where = outcome.entered[place - 1]
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
    @settings(max_examples=25, deadline=None, derandomize=True, database=None)
    @given(place=st.integers(1, num_places(name)))
    def search(place: int) -> None:
        check(name, place)

    search()
