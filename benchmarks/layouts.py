"""What the layout of weights and plain arithmetic buy on a CPU, for SmolLM2-135M.

    uv run python benchmarks/layouts.py [ROWS,...] [WIDTH]

Prints milliseconds of one forward, the fastest of several, all ways interleaved in one process:
as mlx-lm's layers compute, with shared rotary angles, with weights laid out for this processor's
BLAS beside them, and with plain arithmetic for exponentials too, which is how fm loads a model.
Rows hold 150 tokens each and take WIDTH (1) new ones. The last column is the matrix products alone.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

import engine  # noqa: F401  # before mlx, for the BLAS

# isort: split
import mlx.core as mx
import mlx.nn as nn

from engine.backend import backend_info, weight_layout
from engine.cache.layout import build_stores
from engine.cache.slots import SlotCache
from engine.models import load

PASSES = 9
CONTEXT = 150

WAYS: dict[str, tuple[str, ...]] = {
    "mlx-lm": ("share_rotations", "weight_layout", "exchange_functions"),
    "+ rotary": ("weight_layout", "exchange_functions"),
    "+ layout": ("exchange_functions",),
    "+ arithmetic": (),
}
"""Way -> what loading leaves out."""


@contextmanager
def without(names: tuple[str, ...]) -> Iterator[None]:
    """Let loading leave out some of its steps."""
    # "rows" is what weight_layout says where weights stay as they are; nobody reads the others.
    patches = [mock.patch.object(load, name, return_value="rows") for name in names]
    for patch in patches:
        patch.start()
    yield
    for patch in patches:
        patch.stop()


def forward(name: str, rows: int, width: int) -> Callable[[], mx.array]:
    """Return a forward of `rows` rows of about CONTEXT tokens."""
    with without(WAYS[name]):
        model = load.load_model("smollm2-135m").model
    cache = SlotCache(build_stores("model", model))
    starts = [CONTEXT - row % 30 for row in range(rows)]
    cache.resize(rows, CONTEXT + width)
    ids = mx.ones((rows, width), mx.int32)

    def run() -> mx.array:
        logits: mx.array = model(ids, cache=cache.views(0, starts, [width] * rows, width))
        return mx.argmax(logits, axis=-1)

    return run


def products(rows: int) -> Callable[[], list[mx.array]]:
    """Return all matrix products of a forward."""
    model = load.load_model("smollm2-135m").model
    work: list[tuple[Callable[[mx.array], mx.array], mx.array]] = []
    for _, layer in model.named_modules():
        if isinstance(layer, nn.Linear | nn.Embedding):
            multiply = layer if isinstance(layer, nn.Linear) else layer.as_linear
            work.append((multiply, mx.random.normal((rows, layer.weight.shape[1]))))
    mx.eval([x for _, x in work])
    return lambda: [multiply(x) for multiply, x in work]


def fastest_ms(ways: list[Callable[[], object]]) -> list[float]:
    """Return the fastest of several interleaved evaluations of each way, the first left out."""
    times: list[list[float]] = [[] for _ in ways]
    for _ in range(PASSES):
        for index, work in enumerate(ways):
            before = time.perf_counter()
            mx.eval(work())
            times[index].append(1e3 * (time.perf_counter() - before))
    return [min(values[1:]) for values in times]


def main() -> None:
    """Print the table."""
    rows = [int(text) for text in sys.argv[1].split(",")] if sys.argv[1:] else [1, 2, 4, 8, 16, 32]
    width = int(sys.argv[2]) if sys.argv[2:] else 1
    info = backend_info()
    print(f"{info.blas_name} {info.blas_version}, {info.blas_core}, {info.blas_threads} thread(s)")
    print(f"weights in {weight_layout()}")
    print("| rows |" + "".join(f" {name} |" for name in WAYS) + " products |")
    for count in rows:
        ways: list[Callable[[], object]] = [forward(name, count, width) for name in WAYS]
        figures = fastest_ms([*ways, products(count * width)])
        print(f"| {count} |" + "".join(f" {ms:.1f} |" for ms in figures), flush=True)


if __name__ == "__main__":
    main()
