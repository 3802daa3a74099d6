"""Tiles change how a product is computed, not what it is."""

from __future__ import annotations

from threading import Thread

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.backend import prefers_tiled_weights
from engine.models import tiled
from engine.models.tiled import (
    MOST_ROWS,
    PACKLESS_LIMIT,
    SHARED_ROWS,
    SHARED_WEIGHTS,
    TiledEmbedding,
    TiledLinear,
    from_tiles,
    rows_of,
    tile_of,
    tile_weights,
    tiled_matmul,
    to_tiles,
)

OUTPUTS = [16, 96, 192, 576, 1536, 49152]
INPUTS = [64, 576, 2048, 8192, 20_000]


@pytest.mark.parametrize("outputs", [*OUTPUTS, 10, 10007])
@pytest.mark.parametrize("inputs", [*INPUTS, 100_000])
def test_a_tile_divides_the_outputs_and_its_products_stay_under_the_limit(
    outputs: int, inputs: int
) -> None:
    tile = tile_of(outputs, inputs)
    if tile:
        assert outputs % tile == 0
        assert 1 <= rows_of(tile, inputs) <= MOST_ROWS
        assert rows_of(tile, inputs) * tile * inputs <= PACKLESS_LIMIT
    else:
        assert outputs % 16 or inputs > PACKLESS_LIMIT // 16


@settings(max_examples=40)
@given(
    shape=st.sampled_from([(1, 1), (1, 2), (4, 1), (3, 5), (1, 40), (1, 1, 9), (7,), (2, 0)]),
    outputs=st.sampled_from([16, 96, 1536, 4800]),
    inputs=st.sampled_from([64, 576, 1024, 2500]),
    seed=st.integers(0, 99),
)
def test_a_tiled_product_is_the_product(
    shape: tuple[int, ...], outputs: int, inputs: int, seed: int
) -> None:
    keys = mx.random.split(mx.random.key(seed), 2)
    x = mx.random.normal((*shape, inputs), key=keys[0])
    weight = mx.random.normal((outputs, inputs), key=keys[1])
    tiles = to_tiles(weight, tile_of(outputs, inputs))
    assert mx.array_equal(from_tiles(tiles), weight)
    ours = np.array(tiled_matmul(x, tiles))
    theirs = np.array(x) @ np.array(weight).T
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(ours, theirs, atol=2e-4 * np.sqrt(inputs))


@pytest.mark.skipif(not prefers_tiled_weights(), reason="the BLAS here packs every product")
@pytest.mark.parametrize("inputs", [576, 1536, 4096])
def test_a_rows_product_does_not_depend_on_the_rows_beside_it(inputs: int) -> None:
    x = mx.random.normal((40, inputs), key=mx.random.key(1))
    tiles = mx.random.normal((3, inputs, 64), key=mx.random.key(2))
    alone = [np.array(tiled_matmul(x[row : row + 1], tiles)) for row in range(40)]
    for rows in (2, 7, 9, 40):
        together = np.array(tiled_matmul(x[:rows], tiles))
        assert np.array_equal(together, np.concatenate(alone[:rows]))


@pytest.mark.parametrize("rows", [SHARED_ROWS, 45, 512])
def test_a_second_core_changes_no_bit_in_any_thread(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = mx.random.normal((rows, 576), key=mx.random.key(1))
    tiles = mx.random.normal((9, 576, 64), key=mx.random.key(2))
    assert tiles.size >= SHARED_WEIGHTS
    found: list[np.ndarray] = []

    def multiply() -> None:
        a, b = mx.array(np.array(x)), mx.array(np.array(tiles))  # a thread has streams of its own
        found.append(np.array(tiled_matmul(a, b)))

    for streams in (1, 2):
        monkeypatch.setattr(tiled, "_num_streams", lambda count=streams: count)
        multiply()
        thread = Thread(target=multiply)
        thread.start()
        thread.join()
    assert len(found) == 4
    assert all(np.array_equal(found[0], other) for other in found)


class Small(nn.Module):
    """A module with every kind of layer that may be tiled, and one that may not."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(1008, 128)
        self.proj = nn.Linear(128, 512, bias=True)
        self.odd = nn.Linear(128, 7, bias=False)

    def __call__(self, ids: mx.array) -> list[mx.array]:
        x = self.embed(ids)
        return [x, self.proj(x), self.odd(x), self.embed.as_linear(x)]


def test_float32_weights_become_tiles_and_everything_computes_as_before() -> None:
    model, ids = Small(), mx.array([[3, 1007], [64, 63]])
    weights = {name: mx.array(getattr(model, name).weight) for name in ("embed", "proj", "odd")}
    before = [np.array(array) for array in model(ids)]

    tile_weights(model)

    assert isinstance(model.proj, TiledLinear)
    assert isinstance(model.embed, TiledEmbedding)
    assert type(model.odd) is nn.Linear
    for name, weight in weights.items():
        assert mx.array_equal(getattr(model, name).weight, weight)
    for ours, theirs in zip(model(ids), before, strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(np.array(ours), theirs, atol=1e-4)
    x = mx.random.normal((2, 128))
    assert mx.allclose(model.proj.whole()(x), model.proj(x), atol=1e-4)


def test_a_weight_is_kept_once() -> None:
    layer = nn.Sequential(nn.Linear(128, 512))
    before = sum(array.nbytes for array in layer.layers[0].parameters().values())
    tile_weights(layer)
    after = layer.layers[0].parameters()
    assert set(after) == {"tiles", "bias"}
    assert sum(array.nbytes for array in after.values()) == before


def test_other_dtypes_stay_as_they_are() -> None:
    model = Small()
    model.set_dtype(mx.bfloat16)
    weight = model.proj.weight
    tile_weights(model)
    assert model.proj.weight is weight
    assert type(model.proj) is nn.Linear


def test_a_weight_that_is_made_of_tiles_is_not_set_beside_them() -> None:
    model = Small()
    tile_weights(model)
    for layer in (model.proj, model.embed):
        with pytest.raises(AttributeError, match="weight"):
            layer.weight = mx.zeros((512, 128))
        assert "weight" not in layer
