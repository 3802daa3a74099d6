"""Windowed, grouped, recurrent and hybrid models decode in slots as mlx-lm decodes a row alone."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import make_prompt_cache

from engine.config import EngineConfig
from engine.draft.two_model import TwoModelDrafter
from engine.errors import ModelError
from engine.loop import Engine
from engine.oracle import Oracle
from engine.request import Request
from engine.runner import Runner
from engine.sequence import Sequence
from engine.testing import ScriptedDrafter, tiny_model
from tests.engine.cache.families import (
    ATTENTION,
    CARRIED,
    EMITTED,
    NUM_DRAFTS,
    RECURRENT,
    WINDOW,
    family,
    padded,
    prompts,
    rows_at,
    truth,
)

TOLERANCE = 1e-4


@cache
def truth_logits(name: str, prompt: tuple[int, ...]) -> np.ndarray:
    """Logits of a row alone after each token of its prompt and of its greedy ids."""
    model = family(name).model
    ids = [*prompt, *truth(name, prompt)]
    return np.array(model(mx.array([ids]), cache=make_prompt_cache(model))[0])


@dataclass
class Row:
    """A row as the loop keeps it."""

    prompt: tuple[int, ...]
    ids: list[int] = field(default_factory=list)
    num_cached: int = 0

    @property
    def num_emitted(self) -> int:
        return len(self.ids) - len(self.prompt)


class Batch:
    """Rows of one model driven through a Runner as the loop drives them, greedily."""

    def __init__(self, name: str, read_block: int = 1, kv_bits: int | None = None) -> None:
        self.name = name
        self.runner = Runner(family(name), read_block, kv_bits)
        self.rows = [Row(prompt, list(prompt)) for prompt in prompts()]
        self.runner.cache.resize(len(self.rows), 256)

    def prefill(self, chunk: int) -> None:
        """Feed all prompts together, `chunk` tokens of each a step; then the first token."""
        last: dict[int, mx.array] = {}
        while True:
            fed = [row.prompt[row.num_cached :][:chunk] for row in self.rows]
            if not any(fed):
                break
            starts = [row.num_cached for row in self.rows]
            where = rows_at(starts, map(len, fed))
            hidden = self.runner.prefill(padded(fed, chunk + 1), where)
            for index, (row, tokens) in enumerate(zip(self.rows, fed, strict=True)):
                row.num_cached += len(tokens)
                if tokens:
                    last[index] = self.runner.head(hidden)[index]
        for index, row in enumerate(self.rows):
            self.check(row, len(row.ids) - 1, np.array(last[index]))
            row.ids.append(int(mx.argmax(last[index])))

    def burst(self, draft: list[list[int]]) -> None:
        """Verify some drafts of every row that has not finished; the others are idle."""
        live = [row.num_emitted < EMITTED for row in self.rows]
        known = [
            row.ids[row.num_cached :] if alive else []
            for row, alive in zip(self.rows, live, strict=True)
        ]
        fed = [k + d if k else [] for k, d in zip(known, draft, strict=True)]
        width = max(4, *map(len, fed))
        where = rows_at([row.num_cached for row in self.rows], map(len, fed))
        logits = self.runner.forward(padded(fed, width), where)
        chosen = np.array(mx.argmax(logits, axis=-1)).tolist()
        kept = []
        for index, row in enumerate(self.rows):
            first = len(known[index]) - 1
            accepted = 0
            if known[index]:
                drafted = draft[index]
                for offset, token in enumerate(drafted):
                    if chosen[index][first + offset] != token:
                        break
                    accepted += 1
                columns = np.array(logits[index, : first + accepted + 1])
                for column, scores in enumerate(columns):
                    self.check(row, row.num_cached + column, scores)
                row.ids += chosen[index][first : first + accepted + 1]
            kept.append(len(known[index]) + accepted)
        for row, held in zip(self.rows, self.runner.settle(0, kept), strict=True):
            row.num_cached += held

    def check(self, row: Row, position: int, scores: np.ndarray) -> None:
        """Compare one position's logits with those of the row alone."""
        expected = truth_logits(self.name, row.prompt)
        if position < len(expected):
            np.testing.assert_allclose(scores, expected[position], atol=TOLERANCE, rtol=0)


def drafts_right_until(row: Row, name: str, right: int) -> list[int]:
    """NUM_DRAFTS drafts, the first `right` of them what the model itself will choose."""
    ahead = truth(name, row.prompt)[row.num_emitted :][:NUM_DRAFTS]
    return [t if i < right else (t + 1) % 250 for i, t in enumerate(ahead)]


@pytest.mark.parametrize("read_block", [1, 256])
@pytest.mark.parametrize("drafted", [False, True], ids=["plain", "drafts rejected everywhere"])
@pytest.mark.parametrize("name", CARRIED)
def test_ragged_rows_get_the_logits_and_ids_of_a_row_alone(
    name: str, drafted: bool, read_block: int
) -> None:
    batch = Batch(name, read_block)
    batch.prefill(chunk=WINDOW - 1)
    step = 0
    while any(row.num_emitted < EMITTED for row in batch.rows):
        draft = [
            drafts_right_until(row, name, (step + index) % (NUM_DRAFTS + 1))
            if drafted and len(row.ids) - row.num_cached <= 2
            else []
            for index, row in enumerate(batch.rows)
        ]
        batch.burst(draft)
        step += 1
    for row in batch.rows:
        emitted = row.ids[len(row.prompt) :]
        assert emitted == truth(name, row.prompt)[: len(emitted)]


LANES = {
    "serial": EngineConfig(prefill_chunk=512),
    "serial, chunks that cross the window": EngineConfig(prefill_chunk=5),
    "batch": EngineConfig(max_rows=3, prefill_chunk=5),
}
DRAFTED = {
    "serial+spec": EngineConfig(num_draft_tokens=NUM_DRAFTS, draft_budgets="fixed"),
    "batch+spec": EngineConfig(
        max_rows=3,
        num_draft_tokens=NUM_DRAFTS,
        draft_budgets="fixed",
        spec_batching="batched",
        prefill_chunk=5,
    ),
}


@pytest.mark.parametrize(
    ("name", "lane"),
    [
        *((name, lane) for name in CARRIED for lane in LANES),
        *((name, lane) for name in ATTENTION for lane in DRAFTED),
    ],
)
def test_every_lane_emits_the_ids_of_the_model_alone(name: str, lane: str) -> None:
    def propose(sequence: Sequence) -> list[int]:
        ahead = truth(name, sequence.request.prompt_ids)[sequence.num_emitted :][:NUM_DRAFTS]
        right = sequence.num_emitted % (NUM_DRAFTS + 1)
        return [t if i < right else (t + 1) % 250 for i, t in enumerate(ahead)]

    requests = [
        Request(prompt_ids=prompt, max_tokens=EMITTED, ignore_eos=True) for prompt in prompts()
    ]
    engine = Engine(family(name), (LANES | DRAFTED)[lane], ScriptedDrafter(propose))
    for request, completion in zip(requests, engine.generate(requests), strict=True):
        assert list(completion.token_ids) == truth(name, request.prompt_ids)[:EMITTED]
        assert list(completion.token_ids) == Oracle(family(name)).generate(request)


@pytest.mark.parametrize("name", RECURRENT)
def test_padding_and_idle_rows_leave_states_exactly_as_they_were(name: str) -> None:
    kept = []
    for padding in (9, 200):
        runner = Runner(family(name))
        runner.cache.resize(3, 256)
        runner.prefill(mx.array([[1, 2, 3]] * 3), rows_at((0, 0, 0), (3, 3, 3)))
        before = runner.cache.read(2, 0, 3)
        ids = mx.array([[4, 5, 6, 7], [4, 5, padding, padding], [padding] * 4])
        runner.forward(ids, rows_at((3, 3, 3), (4, 2, 0)))
        for old, new in zip(before, runner.cache.read(2, 0, 3), strict=True):
            assert all(mx.array_equal(a, b) for a, b in zip(old, new, strict=True))
        kept.append(runner.cache.read(1, 0, 5))
    for layers in zip(*kept, strict=True):
        assert all(mx.array_equal(a, b) for a, b in zip(*layers, strict=True))


@pytest.mark.parametrize("name", CARRIED)
def test_a_row_whose_drafts_were_rejected_is_bit_equal_to_one_that_never_drafted(
    name: str,
) -> None:
    after = []
    for drafts in ((), (90, 91, 92)):
        runner = Runner(family(name))
        runner.cache.resize(2, 256)
        runner.prefill(mx.array([[1, 2, 3], [4, 5, 6]]), rows_at((0, 0), (3, 3)))
        if drafts:
            fed = mx.array([[7, *drafts], [8, *drafts]])
            runner.forward(fed, rows_at((3, 3), (4, 4)))
            rejected = 1 if runner.cache.is_rewindable else 0
            assert runner.settle(0, (1, 1)) == (rejected, rejected)
        after.append(runner.forward(mx.array([[7], [8]]), rows_at((3, 3), (1, 1))))
    assert mx.array_equal(*after)


@pytest.mark.parametrize("name", RECURRENT)
def test_a_slot_that_is_taken_again_starts_from_nothing(name: str) -> None:
    runner = Runner(family(name))
    runner.cache.resize(1, 256)
    first = runner.prefill(mx.array([[1, 2, 3]]), rows_at((0,), (3,)))
    again = runner.prefill(mx.array([[1, 2, 3]]), rows_at((0,), (3,)))
    assert mx.array_equal(first, again)


@pytest.mark.parametrize("name", ["mamba", "nemotron_h"])
def test_a_recurrent_family_that_lets_padding_in_is_refused(name: str) -> None:
    with pytest.raises(ModelError, match=f"^{name}: its model file in mlx-lm lets padding"):
        Runner(family(name))


def test_a_model_that_cannot_mix_lengths_is_served_alone_and_refused_for_batches() -> None:
    gemma2 = family("gemma2")
    unknown = replace(gemma2, model=type(gemma2.model)(gemma2.model.args))
    unknown.model.model_type = "unknown"
    Engine(unknown, EngineConfig())
    with pytest.raises(ModelError, match="set max_rows to 1"):
        Engine(unknown, EngineConfig(max_rows=2))


def test_a_recurrent_draft_model_is_refused() -> None:
    drafter = TwoModelDrafter(family("mamba2"), prefill_chunk=64)
    with pytest.raises(ModelError, match="cannot take a chain of drafts back"):
        drafter.open(tiny_model())
