"""Matrix products cut into blocks that OpenBLAS computes straight from the weights' memory.

For few rows a product is bound by reading the weights, yet OpenBLAS first copies ("packs") them.
Its AVX-512 kernels skip that while the product is small in two ways, below. A weight
[outputs, inputs] seen as [blocks, block, inputs] stays under both limits, and the view costs
nothing. docs/decisions/blas.md has the figures.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import mlx.core as mx
import mlx.nn as nn

PACKLESS_LIMIT = 1_000_000
"""Largest rows x outputs x inputs that OpenBLAS's small-matrix kernels take."""

PACKLESS_RESULTS = 1_200
"""Largest rows x outputs they take when the weights lie as [outputs, inputs]."""

MOST_ROWS = 16
"""With more rows packing pays for itself, and the product is bound by arithmetic."""

SMALLEST_BLOCK = 16


@cache
def block_size(rows: int, outputs: int, inputs: int) -> int:
    """Return the largest divisor of `outputs` whose block needs no packing; 0 when none does."""
    most = min(PACKLESS_LIMIT // (rows * inputs), PACKLESS_RESULTS // rows)
    if rows > MOST_ROWS or most < SMALLEST_BLOCK:
        return 0
    return next(
        (size for size in range(min(most, outputs), SMALLEST_BLOCK - 1, -1) if outputs % size == 0),
        0,
    )


def blocked_matmul(x: mx.array, weight: mx.array) -> mx.array:
    """Return `x @ weight.T`.

    Args:
        x: [..., inputs].
        weight: [outputs, inputs].

    Returns:
        [..., outputs].
    """
    outputs, inputs = weight.shape
    rows = x.size // inputs
    size = block_size(rows, outputs, inputs)
    if size in (0, outputs):
        return x @ weight.T
    blocks = weight.reshape(outputs // size, size, inputs)
    parts = x.reshape(1, rows, inputs) @ blocks.swapaxes(1, 2)
    return parts.swapaxes(0, 1).reshape(*x.shape[:-1], outputs)


class BlockedLinear(nn.Linear):
    """A Linear layer whose product is blocked."""

    def __call__(self, x: mx.array) -> mx.array:
        """Return x @ weight.T + bias, [..., outputs]."""
        product = blocked_matmul(x, self.weight)
        return product + self.bias if "bias" in self else product


class BlockedEmbedding(nn.Embedding):
    """An Embedding whose use as an output head is blocked."""

    def as_linear(self, x: mx.array) -> mx.array:
        """Return x @ weight.T, [..., vocab]."""
        return blocked_matmul(x, self.weight)


BLOCKED: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: BlockedLinear,
    nn.Embedding: BlockedEmbedding,
}


def use_blocked_products(model: nn.Module) -> None:
    """Let every plain float32 Linear layer and embedding of a model compute in blocks.

    The layers keep their arrays and names; only the arithmetic of their products is another.
    """
    walk: Any = model.named_modules  # has no annotations
    for _, module in walk():
        kind = BLOCKED.get(type(module))
        if kind is not None and module.weight.dtype == mx.float32:
            module.__class__ = kind
