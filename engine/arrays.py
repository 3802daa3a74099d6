"""The border between host and device: every wait for the device goes through here and is counted.

MLX builds lazily. `launch` starts work without waiting; only `read` waits, however many arrays it
is given. The engine promises one wait a step, and a test holds it to that by reading `SYNCS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray


@dataclass(slots=True)
class SyncCounter:
    """How often this process has waited for the device through this module."""

    count: int = 0


SYNCS = SyncCounter()


def launch(*arrays: mx.array) -> None:
    """Start computing `arrays`; does not wait."""
    start: Any = mx.async_eval  # has no annotations
    start(*arrays)


def read(*arrays: mx.array) -> list[NDArray[Any]]:
    """Wait once for all of `arrays`; returns their values in order."""
    SYNCS.count += 1
    mx.eval(*arrays)
    return [np.array(array) for array in arrays]


def wait(*arrays: mx.array) -> None:
    """Wait once for all of `arrays`, whose values nobody needs."""
    SYNCS.count += 1
    mx.eval(*arrays)


def read_tokens(tokens: mx.array) -> list[list[int]]:
    """Wait for sampled tokens.

    Args:
        tokens: token ids, [rows, positions].
    """
    rows: list[list[int]] = read(tokens)[0].tolist()
    return rows


def ids_array(rows: Sequence[Sequence[int]], width: int) -> mx.array:
    """Return [len(rows), width] token ids, short rows padded with id 0 on the right."""
    padded = np.zeros((len(rows), width), dtype=np.int32)
    for index, row in enumerate(rows):
        padded[index, : len(row)] = row
    return mx.array(padded)
