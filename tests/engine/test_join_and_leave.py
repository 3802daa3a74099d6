"""Rows of far apart lengths join, stop, are cancelled and follow one another in one batch.

Every row equals its solo run, and at every step the integers kept of it (slot, tokens cached) equal
those of a shadow that knows only what was submitted and what the engine reports.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import mlx.core as mx
import numpy as np
import pytest

from engine.config import EngineConfig
from engine.loop import Engine
from engine.oracle import NEAR_TIE, Oracle
from engine.plan import StepKind
from engine.request import Completion, FinishReason, Request, SamplingParams, TokenEvent
from engine.runner import Runner
from engine.sampler import draw_key
from engine.shapes import row_bucket
from tests.engine.cache.families import WINDOW, family, rows_at

CHUNK, INTERLEAVED = 64, 24
LENGTHS = {"A": 160, "B": 10, "C": 106, "D": 1, "E": 21, "F": 33}
BUDGETS = {"A": 110, "B": 90, "C": 24, "D": 40, "E": 24, "F": 12}
STOP_AFTER = 72
QUANTISED_TIE = 1e-2
"""Gap under which keys that round to neighbouring steps may decide otherwise."""


@dataclass(frozen=True)
class Case:
    """A model and what its rows are compared with."""

    name: str
    kv_bits: int | None = None
    pipelined: bool = True

    @property
    def batch(self) -> EngineConfig:
        return EngineConfig(
            max_rows=4,
            prefill_chunk=CHUNK,
            interleaved_prefill=INTERLEAVED,
            kv_bits=self.kv_bits,
            pipelined=self.pipelined,
        )

    @property
    def tie(self) -> float:
        return NEAR_TIE if self.kv_bits is None else QUANTISED_TIE


CASES = {
    "plain": Case("llama"),
    "plain, not pipelined": Case("llama", pipelined=False),
    "window smaller than A's prompt": Case("gemma3_text"),
    "quantised": Case("llama", kv_bits=8),
    "recurrent": Case("mamba2"),
    "recurrent and attention": Case("qwen3_next"),
}


def request(row: str) -> Request:
    """A row by its letter: vowels and D sample, the others are greedy."""
    ids = tuple(33 + (7 * i * i + ord(row)) % 60 for i in range(LENGTHS[row]))
    sampling = SamplingParams(temperature=float(row in "ADE"), seed=ord(row))
    return Request(
        prompt_ids=ids, max_tokens=BUDGETS[row], ignore_eos=True, sampling=sampling, request_id=row
    )


def solo(name: str, kv_bits: int | None, asked: Request) -> tuple[list[TokenEvent], Completion]:
    """A row alone, serially, in an engine of its own."""
    engine = Engine(family(name), EngineConfig(kv_bits=kv_bits, prefill_chunk=512))
    request_id = engine.submit(asked)
    events: list[TokenEvent] = []
    while engine.has_work:
        events += engine.step()
    return events, engine.completion(request_id)


def stop_text(events: list[TokenEvent]) -> str:
    """The first three characters new to a text that are complete after STOP_AFTER tokens."""
    text = ""
    for event in events:
        text += event.text
        if event.position >= STOP_AFTER and event.text and text.find(text[-3:]) == len(text) - 3:
            return text[-3:]
    raise AssertionError("the text repeats itself")


@dataclass
class ShadowRow:
    """What the shadow knows of one row."""

    num_prompt: int
    slot: int | None = None
    num_fed: int = 0
    num_emitted: int = 0

    @property
    def is_prefilling(self) -> bool:
        return self.num_fed < self.num_prompt

    @property
    def num_cached(self) -> int:
        return self.num_fed if self.is_prefilling else self.num_prompt + self.num_emitted - 1


class Script:
    """An engine driven by a script, with the shadow beside it."""

    def __init__(self, case: Case) -> None:
        self.engine = Engine(family(case.name), case.batch)
        self.num_steps = 0
        self.ended_at: dict[str, int] = {}
        self.events: dict[str, list[TokenEvent]] = {}
        self.live: dict[str, ShadowRow] = {}
        self.seen: Counter[StepKind] = Counter()

    def submit(self, asked: Request) -> None:
        self.engine.submit(asked)
        self.live[asked.request_id] = ShadowRow(len(asked.prompt_ids))
        self.events[asked.request_id] = []

    def cancel(self, row: str) -> None:
        assert self.engine.cancel(row)
        del self.live[row]

    def run_to(self, num_steps: int) -> None:
        while self.num_steps < num_steps:
            self.step()

    def step(self) -> None:
        """One step of the engine and of the shadow; then both are compared."""
        self.num_steps += 1
        if self.engine._flight is None:  # a step that was launched ahead admits nobody
            self._seat()
        prefilling = [
            row for row in self.live.values() if row.is_prefilling and row.slot is not None
        ]
        is_alone = len(prefilling) == sum(row.slot is not None for row in self.live.values())
        events = self.engine.step()
        report = self.engine.last_step
        assert report is not None
        self.seen[report.kind] += 1
        if report.kind is StepKind.PREFILL:
            self._feed(prefilling, CHUNK if is_alone else INTERLEAVED, report.prompt_tokens)
        self._take(events)
        self._compare()

    def _seat(self) -> None:
        """Close gaps that cost a bucket, then give waiting rows the lowest free slots."""
        seated = {row.slot: row for row in self.live.values() if row.slot is not None}
        while seated and max(seated) >= row_bucket(len(seated)):
            last = seated.pop(max(seated))
            last.slot = self._free(seated)
            seated[last.slot] = last
        for row in self.live.values():
            if row.slot is None and len(seated) < 4:
                row.slot = self._free(seated)
                seated[row.slot] = row

    def _free(self, seated: dict[int, ShadowRow]) -> int:
        return next(slot for slot in range(4) if slot not in seated)

    def _feed(self, prefilling: list[ShadowRow], budget: int, num_tokens: int) -> None:
        """Give a prefill step's tokens to the oldest prompt, and what is left to later ones."""
        for row in prefilling:
            chunk = min(budget, row.num_prompt - row.num_fed, num_tokens)
            row.num_fed += chunk
            num_tokens -= chunk
        assert num_tokens == 0

    def _take(self, events: list[TokenEvent]) -> None:
        for event in events:
            self.events[event.request_id].append(event)
            self.live[event.request_id].num_emitted += event.token_id is not None
            if event.finish_reason is not None:
                del self.live[event.request_id]
                self.ended_at[event.request_id] = self.num_steps

    def _compare(self) -> None:
        held = {
            row.request.request_id: (slot, row.num_cached)
            for slot, row in self.engine._scheduler._table.items()
        }
        seated = {key: row for key, row in self.live.items() if row.slot is not None}
        assert held == {key: (row.slot, row.num_cached) for key, row in seated.items()}
        room = self.engine._runner.room
        assert all(s < room.num_slots and n <= room.capacity for s, n in held.values())


def gap(case: Case, asked: Request, ids: list[int], expected: int) -> float:
    """How far the last of `ids` stays behind `expected` in final score, in a cache of its own."""
    runner = Runner(family(case.name), kv_bits=case.kv_bits)
    fed = [*asked.prompt_ids, *ids[:-1]]
    runner.cache.resize(1, len(fed))
    scores = np.array(runner.head(runner.prefill(mx.array([fed]), rows_at((0,), (len(fed),)))))[0]
    if asked.sampling.temperature:
        key = draw_key(asked.sampling.seed or 0, len(ids) - 1)
        noise = mx.random.gumbel(scores.shape, key=mx.array(np.array(key, dtype=np.uint32)))
        scores = scores + np.array(noise)
    return float(scores[expected] - scores[ids[-1]])


def check_alone(case: Case, asked: Request, ids: list[int]) -> None:
    """Compare a row's ids with its solo run, up to a tie that rounding decides."""
    expected = list(solo(case.name, case.kv_bits, asked)[1].token_ids)[: len(ids)]
    first = next(
        (i for i, pair in enumerate(zip(ids, expected, strict=True)) if len({*pair}) > 1), -1
    )
    if first >= 0:
        assert gap(case, asked, ids[: first + 1], expected[first]) < case.tie, (
            first,
            ids,
            expected,
        )


def play(script: Script, case: Case) -> dict[str, Request]:
    """Run the script once on an engine without rows; returns its requests."""
    asked = {row: request(row) for row in LENGTHS}
    events, _ = solo(case.name, case.kv_bits, asked["A"])
    asked["A"] = replace(asked["A"], stop=(stop_text(events),))
    script.num_steps = 0
    script.submit(asked["A"])
    script.run_to(60)
    script.submit(asked["B"])
    script.run_to(75)
    script.submit(asked["C"])
    script.submit(asked["D"])
    script.run_to(100)
    assert 75 < script.ended_at["A"] < 100
    script.cancel("B")
    script.run_to(101)
    script.submit(asked["E"])
    while script.live:
        script.step()
    assert script.engine.step() == []
    script.submit(asked["F"])
    while script.live:
        script.step()
    return asked


@pytest.mark.parametrize("name", CASES)
def test_every_row_equals_its_solo_run_and_its_integers_those_of_a_shadow(name: str) -> None:
    case = CASES[name]
    assert case.name != "gemma3_text" or LENGTHS["A"] > WINDOW
    script = Script(case)
    for _ in range(2):  # the second time in the slots that the first has used
        for row, asked in play(script, case).items():
            done = script.engine.completion(row)
            ids = list(done.token_ids)
            assert done.finish_reason is {
                "A": FinishReason.STOP,
                "B": FinishReason.CANCELLED,
            }.get(row, FinishReason.LENGTH)
            assert [e.token_id for e in script.events[row] if e.token_id is not None] == ids
            if row != "B":
                assert "".join(event.text for event in script.events[row]) == done.text
            check_alone(case, asked, ids)
            if case.kv_bits is None and name != "plain, not pipelined":
                found = Oracle(family(case.name)).follow(asked, ids, ended=False)
                assert all(divergence.is_near_tie for divergence in found)
    stats = script.engine.stats()
    assert (stats.active, stats.pending, stats.projected_bytes) == (0, 0, 0)
    assert script.seen[StepKind.PREFILL] > 20
