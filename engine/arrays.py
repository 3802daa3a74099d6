"""The border between host and device: every wait for the device goes through here and is counted.

MLX builds lazily. `launch` starts work without waiting; only the `read_*` functions wait. The
engine promises one wait a step, and a test holds it to that by reading `host_syncs()`.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

_host_syncs = 0


def host_syncs() -> int:
    """Return how often this process has waited for the device through this module."""
    return _host_syncs


def launch(*arrays: mx.array) -> None:
    """Start computing `arrays`; does not wait."""
    mx.async_eval(*arrays)


def read_tokens(tokens: mx.array) -> list[list[int]]:
    """Wait for sampled tokens.

    Args:
        tokens: token ids, [rows, positions].
    """
    global _host_syncs
    _host_syncs += 1
    rows: list[list[int]] = tokens.tolist()  # type: ignore[assignment]  # stub says scalar or list
    return rows


def read_floats(values: mx.array) -> NDArray[np.float32]:
    """Wait for `values` and copy them to the host as float32, same shape."""
    global _host_syncs
    _host_syncs += 1
    return np.array(values.astype(mx.float32))


def ids_array(rows: Sequence[Sequence[int]], width: int) -> mx.array:
    """Return [len(rows), width] token ids, short rows padded with id 0 on the right."""
    padded = np.zeros((len(rows), width), dtype=np.int32)
    for index, row in enumerate(rows):
        padded[index, : len(row)] = row
    return mx.array(padded)
