"""Weights stored with the outputs of an input side by side, [inputs, outputs].

OpenBLAS's AVX2 kernels copy ("pack") both operands of every product, and for few rows copying the
weights is most of it. In this order the copy reads memory in a row. docs/decisions/blas.md has the
figures.
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


def column_matmul(x: mx.array, columns: mx.array) -> mx.array:
    """Return `x @ columns`, [..., outputs], half of many rows computed on a second core.

    Args:
        x: [..., inputs].
        columns: [inputs, outputs].
    """
    inputs, outputs = columns.shape
    rows = x.size // inputs
    if not is_shared(rows, columns.size):
        return x @ columns
    flat = x.reshape(rows, inputs)
    product = in_halves(lambda part: flat[part] @ columns, rows // 2)
    return product.reshape(*x.shape[:-1], outputs)


class _Columns(Rearranged):
    """A layer that keeps its weight in columns."""

    def in_rows(self) -> mx.array:
        """Return the weight as [outputs, inputs]."""
        rows: mx.array = self.columns.T
        return rows

    def product(self, x: mx.array) -> mx.array:
        """Return x @ weight.T, [..., outputs]."""
        return column_matmul(x, self.columns)


class ColumnLinear(_Columns, RearrangedLinear):  # type: ignore[override]  # its weight is made
    """A Linear layer whose weight is kept in columns."""


class ColumnEmbedding(_Columns, RearrangedEmbedding):  # type: ignore[override]  # its weight is made
    """An Embedding kept in columns, [features, vocab]."""


COLUMNS: dict[type[nn.Module], type[Rearranged]] = {
    nn.Linear: ColumnLinear,
    nn.Embedding: ColumnEmbedding,
}


def column_weights(model: nn.Module) -> None:
    """Let every plain float32 Linear layer and embedding keep its weight in columns."""
    rearrange(model, COLUMNS, "columns", lambda weight: mx.contiguous(weight.T))
