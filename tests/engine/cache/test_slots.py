"""The slot cache gives every row the logits it would have alone, whatever its neighbours do."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.models.llama import Model, ModelArgs

from engine.cache.layout import build_stores
from engine.cache.shape import StepShape
from engine.cache.slots import SlotCache
from engine.shapes import round_up

VOCAB = 97
TOLERANCE = 2e-5


@pytest.fixture(scope="module")
def model() -> Model:
    """A random two-layer llama."""
    mx.random.seed(7)
    args = ModelArgs(
        model_type="llama",
        hidden_size=48,
        num_hidden_layers=2,
        intermediate_size=96,
        num_attention_heads=4,
        num_key_value_heads=2,
        rms_norm_eps=1e-5,
        vocab_size=VOCAB,
    )
    built = Model(args)
    mx.eval(built.parameters())
    return built


def solo_logits(model: Model, ids: list[int]) -> np.ndarray:
    """Logits after each token of one row, with mlx-lm's own cache."""
    return np.array(model(mx.array([ids]), cache=make_prompt_cache(model))[0])


class Table:
    """Rows driven through one SlotCache, with a shadow copy of what each holds."""

    def __init__(self, model: Model, read_block: int = 1) -> None:
        self.model = model
        self.read_block = read_block
        self.cache = SlotCache(build_stores("llama", model), read_block)
        self.rows: list[list[int]] = []

    def prefill(self, ids: list[int]) -> np.ndarray:
        """Join a row at the end and feed its prompt."""
        self.rows.append(list(ids))
        self.make_room(len(ids))
        views = self.cache.views(len(self.rows) - 1, [0], [len(ids)], len(ids))
        return np.array(self.model(mx.array([ids]), cache=views)[0])

    def burst(self, tokens: list[list[int]], kept: list[int], width: int) -> np.ndarray:
        """Feed some tokens to every row and keep only the first `kept` of each."""
        fed = [row + [0] * (width - len(row)) for row in tokens]
        starts = [len(row) for row in self.rows]
        self.make_room(max(starts) + width)
        views = self.cache.views(0, starts, [len(row) for row in tokens], width)
        logits = self.model(mx.array(fed), cache=views)
        for row, new, count in zip(self.rows, tokens, kept, strict=True):
            row.extend(new[:count])
        return np.array(logits)

    def make_room(self, num_positions: int) -> None:
        """Take a slot a row, and positions in small blocks, so that sizes change often."""
        block = max(8, self.read_block)
        capacity = max(self.cache.capacity, round_up(num_positions, block))
        self.cache.resize(len(self.rows), capacity)

    def leave(self, index: int) -> None:
        """Let the last row take the place of row `index`."""
        last = self.rows.pop()
        if index < len(self.rows):
            self.rows[index] = last
            self.cache.move(len(self.rows), index)


token = st.integers(0, VOCAB - 1)
prompt = st.lists(token, min_size=1, max_size=20)


@settings(max_examples=30)
@given(data=st.data(), read_block=st.sampled_from([1, 256]))
def test_rows_of_any_lengths_get_their_solo_logits_through_joins_leaves_and_rollbacks(
    model: Model, data: st.DataObject, read_block: int
) -> None:
    table = Table(model, read_block)
    for _ in range(data.draw(st.integers(2, 8))):
        action = data.draw(st.sampled_from(["join", "burst", "burst", "leave"]))
        if action == "join" or not table.rows:
            ids = data.draw(prompt)
            np.testing.assert_allclose(
                table.prefill(ids), solo_logits(model, ids), atol=TOLERANCE, rtol=0
            )
        elif action == "leave":
            table.leave(data.draw(st.integers(0, len(table.rows) - 1)))
        else:
            tokens = [data.draw(st.lists(token, min_size=1, max_size=4)) for _ in table.rows]
            kept = [data.draw(st.integers(1, len(new))) for new in tokens]
            before = [list(row) for row in table.rows]
            logits = table.burst(tokens, kept, width=4)
            for row, (held, new) in enumerate(zip(before, tokens, strict=True)):
                expected = solo_logits(model, held + new)[len(held) :]
                np.testing.assert_allclose(
                    logits[row, : len(new)], expected, atol=TOLERANCE, rtol=0
                )


def test_another_capacity_keeps_what_was_written(model: Model) -> None:
    table = Table(model)
    ids = [(7 * i) % VOCAB for i in range(250)]
    table.prefill(ids)
    assert table.cache.capacity == 256
    logits = table.burst([[1] * 16], [16], width=16)
    assert table.cache.capacity == 272
    expected = solo_logits(model, ids + [1] * 16)[250:]
    np.testing.assert_allclose(logits[0], expected, atol=TOLERANCE, rtol=0)


def test_neighbours_content_does_not_change_a_rows_bits(model: Model) -> None:
    rows = []
    for filler in (3, 90):
        table = Table(model)
        table.prefill([5, 6, 7])
        table.prefill([filler] * 9)
        rows.append(table.burst([[8], [filler]], [1, 1], width=1)[0])
    np.testing.assert_array_equal(rows[0], rows[1])


@pytest.mark.parametrize(
    ("starts", "width", "window", "expected"),
    [
        ((3,), 1, None, None),
        ((3,), 4, None, "causal"),
        ((3, 3), 2, 8, "causal"),
    ],
    ids=["one token sees all", "a burst is causal", "a window that is not full yet"],
)
def test_a_uniform_step_needs_no_mask_array(
    model: Model, starts: tuple[int, ...], width: int, window: int | None, expected: str | None
) -> None:
    cache = SlotCache(build_stores("llama", model))
    cache.resize(len(starts), 256)
    view = cache.views(0, starts, [width] * len(starts), width)[0]
    assert view.make_mask(width, window_size=window) == expected


def test_a_windowed_mask_hides_what_is_too_far_back() -> None:
    mask = np.array(StepShape(0, (4, 1), (2, 2), 2).mask(window=3))
    assert mask.shape == (2, 1, 2, 6)
    assert mask[0, 0].tolist() == [
        [False, False, True, True, True, False],
        [False, False, False, True, True, True],
    ]
    assert mask[1, 0, 0].tolist() == [True, True, False, False, False, False]
