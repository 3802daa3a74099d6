"""What a row gets hangs neither on its neighbours' texts nor on their number, order or length."""

from __future__ import annotations

import random
from functools import cache

import mlx.core as mx
import numpy as np
import pytest

from engine import arrays
from engine.config import EngineConfig
from engine.kv_budget import Rectangle
from engine.loop import Engine
from engine.oracle import NEAR_TIE
from engine.plan import RowRange
from engine.request import Request
from engine.runner import Runner
from engine.testing import tiny_model

LENGTHS = (1, 2, 7, 31, 32, 33, 128, 513)


def rows() -> list[Request]:
    """One row of each length."""
    draw = random.Random(0)
    return [
        Request(
            prompt_ids=tuple(draw.randrange(40, 90) for _ in range(length)),
            max_tokens=48,
            ignore_eos=True,
        )
        for length in LENGTHS
    ]


@cache
def alone() -> list[tuple[int, ...]]:
    """The ids of each row by itself."""
    engine = Engine(tiny_model(), EngineConfig())
    return [engine.generate([row])[0].token_ids for row in rows()]


@pytest.mark.parametrize("max_rows", [1, 2, 4, 8])
@pytest.mark.parametrize("order", ["ascending", "descending", "shuffled"])
def test_rows_of_any_lengths_in_any_order_get_the_ids_they_get_alone(
    max_rows: int, order: str
) -> None:
    indices = list(range(len(LENGTHS)))
    if order == "descending":
        indices.reverse()
    if order == "shuffled":
        random.Random(1).shuffle(indices)
    requests, expected = rows(), alone()
    engine = Engine(tiny_model(), EngineConfig(max_rows=max_rows))
    completions = engine.generate([requests[index] for index in indices])
    assert [completion.token_ids for completion in completions] == [expected[i] for i in indices]


@pytest.mark.parametrize("starts", [(5, 5, 5, 5), (5, 9, 2, 30)], ids=["uniform", "ragged"])
def test_a_rows_scores_have_the_same_bits_whatever_its_neighbours_hold(
    starts: tuple[int, ...],
) -> None:
    def scores(seed: int) -> np.ndarray:
        draw = random.Random(seed)
        runner = Runner(tiny_model())
        runner.make_room(Rectangle(4, 256))
        for slot, start in enumerate(starts):
            text = [65] * start if slot == 0 else [draw.randrange(40, 90) for _ in range(start)]
            where = RowRange(slot, (0,), counts=(start,), adapters=(0,))
            mx.eval(runner.prefill(arrays.ids_array([text], start), where))
        found = []
        for step in range(16):
            ids = arrays.ids_array([[70 + step], *[[draw.randrange(40, 90)] for _ in range(3)]], 1)
            now = tuple(start + step for start in starts)
            where = RowRange(0, now, counts=(1,) * 4, adapters=(0,) * 4)
            found.append(np.array(runner.forward(ids, where)[0]))
        return np.stack(found)

    np.testing.assert_array_equal(scores(1), scores(2))


@pytest.mark.parametrize("num_rows", [2, 4, 8])
@pytest.mark.parametrize("start", [1, 33, 513])
def test_a_rows_scores_move_by_less_than_a_near_tie_in_batches_of_any_size(
    num_rows: int, start: int
) -> None:
    def scores(count: int) -> np.ndarray:
        draw = random.Random(7)
        texts = [[draw.randrange(40, 90) for _ in range(start)] for _ in range(count)]
        runner = Runner(tiny_model())
        runner.make_room(Rectangle(count, 768))
        whole = RowRange(0, (0,) * count, counts=(start,) * count, adapters=(0,) * count)
        mx.eval(runner.prefill(arrays.ids_array(texts, start), whole))
        found = []
        for step in range(64):
            ids = arrays.ids_array([[40 + (7 * step + row) % 50] for row in range(count)], 1)
            now = (start + step,) * count
            where = RowRange(0, now, counts=(1,) * count, adapters=(0,) * count)
            found.append(np.array(runner.forward(ids, where)[0]))
        return np.stack(found)

    alone, beside = scores(1), scores(num_rows)
    assert np.abs(alone - beside).max() < NEAR_TIE / 2, "a gap is the difference of two scores"
    np.testing.assert_array_equal(alone.argmax(axis=-1), beside.argmax(axis=-1))
