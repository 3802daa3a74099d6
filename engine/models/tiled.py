"""Weights stored as tiles that OpenBLAS multiplies straight from memory, a few rows at a time.

For few rows a product is bound by reading the weights, yet OpenBLAS first copies ("packs") them.
Its AVX-512 kernels skip that while a product is small, and they are fastest when the outputs lie
side by side. A weight [outputs, inputs] is therefore kept as [tiles, inputs, tile], and rows are
multiplied in groups that stay under the limit: a tile that has been read serves all groups from
the cache. Every output is summed input by input in one order, so a row's result does not depend on
how many rows are beside it. Many rows are bound by arithmetic instead, and half of them goes to a
second core. docs/decisions/blas.md has the figures.
"""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from engine.models.rearranged import (
    Rearranged,
    RearrangedEmbedding,
    RearrangedLinear,
    rearrange,
)
from engine.models.second_core import in_halves, is_shared

PACKLESS_LIMIT = 1_000_000
"""Largest rows x outputs x inputs that OpenBLAS's small-matrix kernels take."""

TILES = (64, 32, 16)
"""Outputs of a tile, the first that divides a weight's; fewer waste the vector units."""

MOST_ROWS = 8
"""Rows of a product; more gain nothing."""


def tile_of(outputs: int, inputs: int) -> int:
    """Return the outputs of a tile, 0 when the weight cannot be tiled."""
    fits = (size for size in TILES if outputs % size == 0 and size * inputs <= PACKLESS_LIMIT)
    return next(fits, 0)


def rows_of(tile: int, inputs: int) -> int:
    """Return the most rows that one product with a tile takes, 1 to MOST_ROWS."""
    return min(MOST_ROWS, PACKLESS_LIMIT // (tile * inputs))


def to_tiles(weight: mx.array, tile: int) -> mx.array:
    """Return a copy of [outputs, inputs] as [tiles, inputs, tile], not yet computed."""
    outputs, inputs = weight.shape
    return mx.contiguous(weight.reshape(outputs // tile, tile, inputs).swapaxes(1, 2))


def from_tiles(tiles: mx.array) -> mx.array:
    """Return [tiles, inputs, tile] as [outputs, inputs]."""
    return tiles.swapaxes(1, 2).flatten(0, 1)


def tiled_matmul(x: mx.array, tiles: mx.array) -> mx.array:
    """Return `x @ from_tiles(tiles).T`.

    Args:
        x: [..., inputs].
        tiles: [tiles, inputs, tile].

    Returns:
        [..., outputs].
    """
    count, inputs, tile = tiles.shape
    rows = x.size // inputs
    groups = max(1, -(-rows // rows_of(tile, inputs)))
    each = max(1, -(-rows // groups))
    grouped = x.reshape(rows, inputs)
    if groups * each > rows:
        grouped = mx.pad(grouped, [(0, groups * each - rows), (0, 0)])
    grouped = grouped.reshape(1, groups, each, inputs)
    if is_shared(rows, tiles.size):
        product = in_halves(lambda part: _multiply(grouped[:, part], tiles), groups // 2)
    else:
        product = _multiply(grouped, tiles)
    return product[:rows].reshape(*x.shape[:-1], count * tile)


def _multiply(x: mx.array, tiles: mx.array) -> mx.array:
    """Return groups of rows, [1, groups, each, inputs], times tiles, [groups * each, outputs]."""
    return (x @ tiles[:, None]).transpose(1, 2, 0, 3).reshape(x.shape[1] * x.shape[2], -1)


class _Tiled(Rearranged):
    """A layer that keeps its weight as tiles."""

    def in_rows(self) -> mx.array:
        """Return the weight as [outputs, inputs]."""
        return from_tiles(self.tiles)

    def product(self, x: mx.array) -> mx.array:
        """Return x @ weight.T, [..., outputs]."""
        return tiled_matmul(x, self.tiles)


class TiledLinear(_Tiled, RearrangedLinear):  # type: ignore[override]  # its weight is made
    """A Linear layer whose weight is kept as tiles, [tiles, inputs, tile]."""


class TiledEmbedding(_Tiled, RearrangedEmbedding):  # type: ignore[override]  # its weight is made
    """An Embedding kept as tiles, [tiles, features, tile]."""

    def __call__(self, ids: mx.array) -> mx.array:
        """Return the features of token ids, [..., features]."""
        tile = self.tiles.shape[-1]
        features: mx.array = self.tiles[ids // tile, :, ids % tile]
        return features


TILED: dict[type[nn.Module], type[Rearranged]] = {
    nn.Linear: TiledLinear,
    nn.Embedding: TiledEmbedding,
}


def tile_weights(model: nn.Module) -> None:
    """Let every plain float32 Linear layer and embedding of a model keep its weight as tiles.

    A weight that no tile size divides stays as it is.
    """
    rearrange(model, TILED, "tiles", _tiles_of)


def _tiles_of(weight: mx.array) -> mx.array | None:
    tile = tile_of(*weight.shape)
    return to_tiles(weight, tile) if tile else None
