"""What OpenBLAS multiplies fastest: 30 products [1536, 576], whole, in columns and in tiles.

    uv run python benchmarks/tile_sizes.py

Prints milliseconds, the fastest of several, all interleaved in one process on one stream.
"""

from __future__ import annotations

import os
from collections.abc import Callable

os.environ["FM_BLAS_THREADS"] = "1"  # one stream: what a tile costs, not what a second core saves

import engine  # noqa: F401  # before mlx, for the BLAS

# isort: split
import mlx.core as mx
from layouts import fastest_ms

from engine.models.columns import column_matmul
from engine.models.tiled import tiled_matmul, to_tiles

PRODUCTS, OUTPUTS, INPUTS = 30, 1536, 576


def main() -> None:
    """Print the table."""
    weights = [mx.random.normal((OUTPUTS, INPUTS)) for _ in range(PRODUCTS)]
    tiled = {size: [to_tiles(weight, size) for weight in weights] for size in (64, 32, 16)}
    columns = [mx.contiguous(weight.T) for weight in weights]
    mx.eval(weights, tiled, columns)
    print("| rows | whole | columns |" + "".join(f" tiles of {size} |" for size in tiled))
    for rows in (1, 8, 32, 512):
        x = mx.random.normal((rows, INPUTS))
        mx.eval(x)
        ways: list[Callable[[], list[mx.array]]] = [
            lambda x=x: [x @ w.T for w in weights],
            lambda x=x: [column_matmul(x, held) for held in columns],
        ]
        ways += [
            lambda x=x, held=held: [tiled_matmul(x, tiles) for tiles in held]
            for held in tiled.values()
        ]
        print(f"| {rows} |" + "".join(f" {ms:.1f} |" for ms in fastest_ms(ways)), flush=True)


if __name__ == "__main__":
    main()
