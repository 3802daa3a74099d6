"""Shared angles rotate exactly as mx.fast.rope does."""

from __future__ import annotations

from threading import Thread

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.models.rotary import SharedRoPE, share_rotations


class Layers(nn.Module):
    """Two layers of one kind, one of another and one that stays as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.RoPE(16, base=10_000.0)
        self.second = nn.RoPE(16, base=10_000.0)
        self.partial = nn.RoPE(8, base=500.0, scale=0.5)
        self.traditional = nn.RoPE(16, traditional=True)


offsets = st.one_of(st.integers(0, 9_000), st.lists(st.integers(0, 9_000), min_size=2, max_size=2))


@settings(max_examples=60)
@given(offset=offsets, length=st.integers(1, 9), seed=st.integers(0, 99))
def test_rotated_features_are_bit_equal(offset: int | list[int], length: int, seed: int) -> None:
    layers = Layers()
    share_rotations(layers)
    where = mx.array(offset) if isinstance(offset, list) else offset
    x = mx.random.normal((2, 3, length, 16), key=mx.random.key(seed))
    for layer, settings_ in (
        (layers.first, (16, False, 10_000.0, 1.0)),
        (layers.partial, (8, False, 500.0, 0.5)),
    ):
        expected = nn.RoPE(*settings_)(x, offset=where)
        np.testing.assert_array_equal(np.array(layer(x, offset=where)), np.array(expected))


def test_layers_of_one_kind_share_and_others_are_left_alone() -> None:
    layers = Layers()
    share_rotations(layers)
    assert layers.first._rotation is layers.second._rotation is not layers.partial._rotation
    assert type(layers.traditional) is nn.RoPE
    assert isinstance(layers.first, SharedRoPE)
    assert not layers.first.parameters()


@pytest.mark.parametrize("second", [7, mx.array([7, 7])], ids=["another number", "an array"])
def test_new_positions_are_never_mistaken_for_the_last_ones(second: int | mx.array) -> None:
    layers = Layers()
    share_rotations(layers)
    x = mx.random.normal((2, 1, 1, 16), key=mx.random.key(1))
    layers.first(x, offset=3)
    expected = nn.RoPE(16)(x, offset=7)
    np.testing.assert_array_equal(np.array(layers.first(x, offset=second)), np.array(expected))


def test_a_thread_computes_no_angles_that_another_has_built() -> None:
    layers, found = Layers(), list[np.ndarray]()
    share_rotations(layers)
    values = np.ones((1, 1, 3, 16), dtype=np.float32)

    def rotate() -> None:
        found.append(np.array(layers.first(mx.array(values), offset=5)))

    layers.first(mx.array(values), offset=5)  # is never computed
    thread = Thread(target=rotate)
    thread.start()
    thread.join()
    np.testing.assert_array_equal(found[0], np.array(nn.RoPE(16)(mx.array(values), offset=5)))
