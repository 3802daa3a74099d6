"""Blocks change how a product is computed, not what it is."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.models.blocked import (
    MOST_ROWS,
    PACKLESS_LIMIT,
    PACKLESS_RESULTS,
    BlockedLinear,
    block_size,
    blocked_matmul,
    use_blocked_products,
)


@given(
    rows=st.integers(1, 40),
    outputs=st.sampled_from([96, 192, 576, 1536, 4096, 49152, 10007]),
    inputs=st.sampled_from([64, 576, 2048, 8192]),
)
def test_a_block_divides_the_outputs_and_stays_under_the_limit(
    rows: int, outputs: int, inputs: int
) -> None:
    size = block_size(rows, outputs, inputs)
    if size:
        assert outputs % size == 0
        assert rows * size * inputs <= PACKLESS_LIMIT
        assert rows * size <= PACKLESS_RESULTS
        assert rows <= MOST_ROWS


@settings(max_examples=40, deadline=None)
@given(
    shape=st.sampled_from([(1, 1), (1, 2), (4, 1), (3, 5), (1, 40)]),
    outputs=st.sampled_from([64, 1536, 3000, 10007]),
    inputs=st.sampled_from([64, 576, 1024]),
    seed=st.integers(0, 99),
)
def test_a_blocked_product_is_the_product(
    shape: tuple[int, int], outputs: int, inputs: int, seed: int
) -> None:
    keys = mx.random.split(mx.random.key(seed), 2)
    x = mx.random.normal((*shape, inputs), key=keys[0])
    weight = mx.random.normal((outputs, inputs), key=keys[1])
    ours = np.array(blocked_matmul(x, weight))
    theirs = np.array(x) @ np.array(weight).T
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(ours, theirs, atol=2e-4 * np.sqrt(inputs))


class Small(nn.Module):
    """A module with every kind of layer that may be blocked."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(1000, 128)
        self.proj = nn.Linear(128, 512, bias=True)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=["float32", "bfloat16"])
def test_only_float32_layers_are_blocked_and_names_and_arrays_stay(dtype: mx.Dtype) -> None:
    model = Small()
    model.set_dtype(dtype)
    weight = model.proj.weight
    x = mx.random.normal((2, 1, 128)).astype(dtype)
    before = [
        np.array(model.proj(x).astype(mx.float32)),
        np.array(model.embed.as_linear(x).astype(mx.float32)),
    ]
    use_blocked_products(model)
    assert isinstance(model.proj, BlockedLinear) == (dtype == mx.float32)
    assert model.proj.weight is weight
    after = [
        np.array(model.proj(x).astype(mx.float32)),
        np.array(model.embed.as_linear(x).astype(mx.float32)),
    ]
    for ours, theirs in zip(after, before, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)
