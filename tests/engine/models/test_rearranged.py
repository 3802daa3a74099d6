"""A weight in another order is held once, and its layer acts as before."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from engine.models.columns import ColumnEmbedding, ColumnLinear, column_weights
from engine.models.load import ARRANGE
from engine.models.rearranged import Rearranged
from engine.models.tiled import TiledEmbedding, TiledLinear, tile_weights

Kinds = tuple[type[Rearranged], type[Rearranged]]
ORDERS: dict[str, tuple[Callable[[nn.Module], None], Kinds, str]] = {
    "tiles": (tile_weights, (TiledLinear, TiledEmbedding), "tiles"),
    "columns": (column_weights, (ColumnLinear, ColumnEmbedding), "columns"),
}
"""Layout -> what puts a model into it, its classes, and the array that holds a weight."""


class Small(nn.Module):
    """A module with every kind of layer that may be rearranged, and one no tile divides."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(1008, 128)
        self.proj = nn.Linear(128, 512, bias=True)
        self.odd = nn.Linear(128, 7, bias=False)

    def __call__(self, ids: mx.array) -> list[mx.array]:
        x = self.embed(ids)
        return [x, self.proj(x), self.odd(x), self.embed.as_linear(x)]


def test_every_layout_but_the_usual_one_is_tested_here() -> None:
    assert set(ARRANGE) == {"rows", *ORDERS}
    assert all(ARRANGE[name] is order[0] for name, order in ORDERS.items())


@pytest.mark.parametrize("order", ORDERS)
def test_float32_weights_are_rearranged_and_everything_computes_as_before(order: str) -> None:
    arrange, (linear, embedding), _ = ORDERS[order]
    model, ids = Small(), mx.array([[3, 1007], [64, 63]])
    weights = {name: mx.array(getattr(model, name).weight) for name in ("embed", "proj", "odd")}
    before = [np.array(array) for array in model(ids)]

    arrange(model)

    assert isinstance(model.proj, linear)
    assert isinstance(model.embed, embedding)
    assert isinstance(model.odd, linear) == (order == "columns")
    for name, weight in weights.items():
        assert mx.array_equal(getattr(model, name).weight, weight)
    for ours, theirs in zip(model(ids), before, strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(np.array(ours), theirs, atol=1e-4)
    x = mx.random.normal((2, 128), key=mx.random.key(3))
    assert mx.allclose(model.proj.whole()(x), model.proj(x), atol=1e-4)


@pytest.mark.parametrize("order", ORDERS)
def test_a_weight_is_kept_once(order: str) -> None:
    arrange, _, name = ORDERS[order]
    layer = nn.Sequential(nn.Linear(128, 512))
    before = sum(array.nbytes for array in layer.layers[0].parameters().values())
    arrange(layer)
    after = layer.layers[0].parameters()
    assert set(after) == {name, "bias"}
    assert sum(array.nbytes for array in after.values()) == before


@pytest.mark.parametrize("order", ORDERS)
def test_other_dtypes_stay_as_they_are(order: str) -> None:
    model = Small()
    model.set_dtype(mx.bfloat16)
    weight = model.proj.weight
    ORDERS[order][0](model)
    assert model.proj.weight is weight
    assert type(model.proj) is nn.Linear


@pytest.mark.parametrize("order", ORDERS)
def test_a_weight_that_is_made_is_not_set_beside_what_it_is_made_of(order: str) -> None:
    model = Small()
    ORDERS[order][0](model)
    for layer in (model.proj, model.embed):
        with pytest.raises(AttributeError, match="weight"):
            layer.weight = mx.zeros((512, 128))
        assert "weight" not in layer
