"""Tiles change how a product is computed, not what it is."""

from __future__ import annotations

from threading import Thread

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.backend import weight_layout
from engine.models import second_core
from engine.models.second_core import SHARED_ROWS, SHARED_WEIGHTS
from engine.models.tiled import (
    MOST_ROWS,
    PACKLESS_LIMIT,
    from_tiles,
    rows_of,
    tile_of,
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


@pytest.mark.skipif(weight_layout() != "tiles", reason="the BLAS here packs every product")
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
        monkeypatch.setattr(second_core, "_num_streams", lambda count=streams: count)
        multiply()
        thread = Thread(target=multiply)
        thread.start()
        thread.join()
    assert len(found) == 4
    assert all(np.array_equal(found[0], other) for other in found)
