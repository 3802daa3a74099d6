"""Columns change how a product is computed, not what it is."""

from __future__ import annotations

from threading import Thread

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.models import second_core
from engine.models.columns import column_matmul
from engine.models.second_core import SHARED_ROWS, SHARED_WEIGHTS


@settings(max_examples=40)
@given(
    shape=st.sampled_from([(1, 1), (1, 2), (3, 5), (1, 40), (2, 3, 33), (7,), (2, 0)]),
    outputs=st.sampled_from([7, 96, 1536]),
    inputs=st.sampled_from([64, 576, 1024]),
    streams=st.sampled_from([1, 2]),
    seed=st.integers(0, 99),
)
def test_a_product_with_columns_is_the_product(
    shape: tuple[int, ...], outputs: int, inputs: int, streams: int, seed: int
) -> None:
    keys = mx.random.split(mx.random.key(seed), 2)
    x = mx.random.normal((*shape, inputs), key=keys[0])
    weight = mx.random.normal((outputs, inputs), key=keys[1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(second_core, "_num_streams", lambda: streams)
        ours = np.array(column_matmul(x, mx.contiguous(weight.T)))
    theirs = np.array(x) @ np.array(weight).T
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(ours, theirs, atol=2e-4 * np.sqrt(inputs))


@pytest.mark.parametrize("rows", [SHARED_ROWS, 45, 512])
def test_a_second_core_is_as_right_in_any_thread(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(second_core, "_num_streams", lambda: 2)
    draw = np.random.default_rng(1)
    x = draw.standard_normal((rows, 576), np.float32)
    columns = draw.standard_normal((576, 576), np.float32)
    assert columns.size >= SHARED_WEIGHTS
    found: list[np.ndarray] = []

    def multiply() -> None:
        found.append(np.array(column_matmul(mx.array(x), mx.array(columns))))
        mx.clear_streams()

    for _ in range(2):
        thread = Thread(target=multiply)
        thread.start()
        thread.join()
    assert len(found) == 2
    for product in found:
        np.testing.assert_allclose(product, x @ columns, atol=5e-3)
