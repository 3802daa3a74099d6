"""Half of a large product's rows on a second core.

Many rows are bound by arithmetic. MLX runs one stream's products one after another, so half of them
goes to a stream of its own. Streams sleep while they wait for each other: a busy core costs them
little, while threads of a BLAS spin.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import mlx.core as mx

from engine.cores import product_streams

SHARED_ROWS = 32
"""Rows from which two cores share a product; with fewer they wait for the memory anyway."""

SHARED_WEIGHTS = 300_000
"""Weights from which they do; meeting twice costs more than a smaller product takes."""


def is_shared(rows: int, weights: int) -> bool:
    """Return whether a product of so many rows and weights goes to two cores."""
    return rows >= SHARED_ROWS and weights >= SHARED_WEIGHTS and _num_streams() > 1


def in_halves(multiply: Callable[[slice], mx.array], middle: int) -> mx.array:
    """Return the product of all rows, those from the middle on computed on a second core.

    Args:
        multiply: the product of some of the rows, one below the other.
        middle: where the second half begins.
    """
    with mx.stream(_second_stream()):
        second = multiply(slice(middle, None))
    return mx.concatenate([multiply(slice(None, middle)), second])


@cache
def _second_stream() -> mx.ThreadLocalStream:
    """Return the stream whose work goes to another core; each thread has its own behind it."""
    return mx.new_thread_local_stream(mx.cpu)


@cache
def _num_streams() -> int:
    return product_streams()
