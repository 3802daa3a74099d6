"""Rows come and go from any thread, at any step, and nobody else's tokens change."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from engine import arrays
from engine.config import EngineConfig
from engine.draft.registry import build_drafter
from engine.errors import RequestError
from engine.loop import Engine
from engine.oracle import Oracle
from engine.plan import StepKind
from engine.request import FinishReason, Request, SamplingParams
from engine.shapes import prefill_width
from engine.testing import tiny_model
from tests.waiting import WAIT_S

LANES = {
    "serial": EngineConfig(),
    "batch": EngineConfig(max_rows=4, prefill_chunk=32, interleaved_prefill=16),
    "batch+spec": EngineConfig(
        max_rows=4, num_draft_tokens=3, draft_budgets="fixed", spec_batching="batched"
    ),
}


def engine_of(config: EngineConfig) -> Engine:
    """An engine of the tiny model."""
    return Engine(tiny_model(), config, build_drafter(config))


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    """A prompt of printable bytes."""
    draw = random.Random(seed)
    return tuple(draw.randrange(40, 90) for _ in range(length))


def request(length: int, max_tokens: int, seed: int = 0) -> Request:
    """A row that ends by its budget alone."""
    return Request(prompt_ids=prompt(length, seed), max_tokens=max_tokens, ignore_eos=True)


def during_the_wait(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Run `act` in another thread while the engine waits for the device, at every wait."""
    read = arrays.read_tokens

    def read_and_act(*args: object) -> object:
        thread = threading.Thread(target=act)
        thread.start()
        thread.join(timeout=WAIT_S)
        assert not thread.is_alive(), "the engine holds its lock while it waits"
        return read(*args)  # type: ignore[arg-type]  # values of a test

    monkeypatch.setattr(arrays, "read_tokens", read_and_act)


@pytest.mark.parametrize("lane", LANES)
def test_rows_submitted_and_cancelled_while_the_engine_waits_leave_others_alone(
    lane: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(LANES[lane])
    kept = [request(10 + 7 * index, 20 + index, seed=index) for index in range(3)]
    kept_ids = [engine.submit(row) for row in kept]
    victims: list[str] = []

    def act() -> None:
        if len(victims) < 25:
            victims.append(engine.submit(request(12, 30, seed=len(victims))))
        if len(victims) % 3 == 2:
            engine.cancel(victims[-2])

    during_the_wait(monkeypatch, act)
    while engine.has_work:
        engine.step()
    oracle = Oracle(tiny_model())
    for row, request_id in zip(kept, kept_ids, strict=True):
        assert list(engine.completion(request_id).token_ids) == oracle.generate(row)
    for request_id in victims:
        engine.completion(request_id)
    stats = engine.stats()
    assert (stats.active, stats.pending, stats.projected_bytes) == (0, 0, 0)


def test_many_threads_submit_at_once_and_every_row_equals_its_solo_run() -> None:
    engine = engine_of(LANES["batch"])
    rows = [request(5 + index % 40, 6 + index % 9, seed=index) for index in range(24)]
    ids: dict[int, str] = {}

    def submit(part: int) -> None:
        for index in range(part, len(rows), 6):
            ids[index] = engine.submit(rows[index])

    threads = [threading.Thread(target=submit, args=(part,)) for part in range(6)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) or engine.has_work:
        engine.step()
    oracle = Oracle(tiny_model())
    for index, row in enumerate(rows):
        assert list(engine.completion(ids[index]).token_ids) == oracle.generate(row)


def test_one_id_submitted_by_many_threads_is_taken_once() -> None:
    engine = engine_of(LANES["batch"])
    row = Request(prompt_ids=prompt(5), max_tokens=3, request_id="same", ignore_eos=True)
    outcomes: list[str] = []

    def submit() -> None:
        try:
            outcomes.append(engine.submit(row))
        except RequestError:
            outcomes.append("refused")

    threads = [threading.Thread(target=submit) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["refused"] * 7 + ["same"]


def test_a_joining_row_gets_its_first_token_within_two_steps_and_its_own_prompt() -> None:
    engine = engine_of(EngineConfig(max_rows=5))
    for index in range(4):
        engine.submit(request(60, 200, seed=index))
    for _ in range(40):
        engine.step()
    late = engine.submit(request(8, 4))
    kinds: list[StepKind] = []
    while True:
        events = engine.step()
        assert engine.last_step is not None
        kinds.append(engine.last_step.kind)
        if any(event.request_id == late for event in events):
            break
    assert kinds.count(StepKind.PREFILL) == 1
    assert kinds.count(StepKind.DECODE) <= 2


@pytest.mark.parametrize("num_live", [0, 1])
def test_prompts_that_arrive_together_are_computed_in_one_step(num_live: int) -> None:
    columns = 32 * prefill_width(40)
    engine = engine_of(EngineConfig(max_rows=33, prefill_chunk=64, interleaved_prefill=columns))
    for _ in range(num_live):
        engine.submit(request(8, 100))
        for _ in range(3):
            engine.step()
    rows = [request(40, 3, seed=index) for index in range(32)]
    ids = [engine.submit(row) for row in rows]
    firsts: set[str] = set()
    while not firsts:
        firsts = {event.request_id for event in engine.step()} & set(ids)
    assert firsts == set(ids)
    assert engine.last_step is not None
    assert engine.last_step.positions == columns
    while engine.stats().finished < len(ids):
        engine.step()
    assert [list(engine.completion(name).token_ids) for name in ids] == [
        Oracle(tiny_model()).generate(row) for row in rows
    ]


def test_live_rows_get_a_token_between_any_two_chunks_of_a_long_prompt() -> None:
    engine = engine_of(EngineConfig(max_rows=2, interleaved_prefill=16))
    live = engine.submit(request(8, 60))
    for _ in range(4):
        engine.step()
    engine.submit(request(300, 2))
    columns = 0
    while engine.stats().active == 2 or engine.stats().pending:
        events = engine.step()
        step = engine.last_step
        assert step is not None
        columns = 0 if any(e.request_id == live for e in events) else columns + step.positions
        assert columns <= 16, "the gap is one chunk of interleaved_prefill columns"


def test_copies_share_their_prompt_and_draw_different_reproducible_texts() -> None:
    row = Request(
        prompt_ids=prompt(70),
        max_tokens=12,
        ignore_eos=True,
        sampling=SamplingParams(temperature=1.0, seed=5),
    )
    engine = engine_of(EngineConfig(max_rows=4))
    ids = engine.submit_copies(row, 4)
    while engine.has_work:
        engine.step()
    copies = [engine.completion(request_id) for request_id in ids]
    oracle = Oracle(tiny_model())
    for index, copy in enumerate(copies):
        alone = Request(
            prompt_ids=row.prompt_ids,
            max_tokens=12,
            ignore_eos=True,
            sampling=SamplingParams(temperature=1.0, seed=5 + index),
        )
        assert list(copy.token_ids) == oracle.generate(alone)
    assert [copy.cached_tokens for copy in copies] == [0, 69, 69, 69]
    assert len({copy.token_ids for copy in copies}) == 4
    assert engine.stats().tokens < 70 + 3 + 4 * 12


@pytest.mark.parametrize("lane", LANES)
def test_copies_are_whole_when_the_first_of_them_is_cancelled(lane: str) -> None:
    engine = engine_of(LANES[lane])
    row = request(50, 6)
    ids = engine.submit_copies(row, 3)
    engine.step()
    engine.cancel(ids[0])
    while engine.has_work:
        engine.step()
    expected = Oracle(tiny_model()).generate(row)
    assert engine.completion(ids[0]).finish_reason is FinishReason.CANCELLED
    for request_id in ids[1:]:
        assert list(engine.completion(request_id).token_ids) == expected


@pytest.mark.parametrize("num_done", [0, 1, 2])
def test_a_prompt_is_computed_by_one_copy_at_a_time_when_the_ones_before_it_are_cancelled(
    num_done: int,
) -> None:
    engine = engine_of(LANES["batch"])
    row = request(70, 6)
    ids = engine.submit_copies(row, 4)
    for request_id in ids[:num_done]:
        engine.step()
        engine.cancel(request_id)
    computed = engine.stats().tokens
    while engine.has_work:
        engine.step()
    copies = [engine.completion(request_id) for request_id in ids]
    expected = tuple(Oracle(tiny_model()).generate(row))
    assert [copy.token_ids for copy in copies[num_done:]] == [expected] * (4 - num_done)
    assert [copy.cached_tokens for copy in copies[num_done:]] == [0] + [69] * (3 - num_done)
    assert engine.stats().tokens < computed + 70 + 3 + 4 * 6


def test_copies_that_wait_for_a_slot_take_the_prompt_of_any_copy_that_holds_it() -> None:
    engine = engine_of(replace(LANES["batch"], max_rows=2))
    ids = engine.submit_copies(request(70, 6), 6)
    while engine.has_work:
        engine.step()
    cached = [engine.completion(request_id).cached_tokens for request_id in ids]
    assert cached[:2] == [0, 69]
    assert cached.count(0) <= 3, "rows that end together leave nobody to copy from"


def test_copies_of_a_row_too_many_or_none_are_refused_and_none_is_left() -> None:
    engine = engine_of(LANES["serial"])
    with pytest.raises(RequestError, match="n is 0"):
        engine.submit_copies(request(5, 5), 0)
    assert not engine.has_work


def test_copies_of_which_one_id_is_taken_are_refused_together() -> None:
    engine = engine_of(LANES["batch"])
    taken = Request(prompt_ids=prompt(5), max_tokens=3, request_id="a/2", ignore_eos=True)
    engine.submit(taken)
    with pytest.raises(RequestError, match="'a/2' is live"):
        engine.submit_copies(replace(taken, request_id="a"), 4)
    assert engine.stats().submitted == 1
    engine.generate([replace(taken, request_id="a/0")])
