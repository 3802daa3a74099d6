"""What blocked products and shared rotary angles buy on a CPU: one SmolLM2-135M forward, both ways.

    uv run python benchmarks/blocked.py

Prints the process's CPU milliseconds, fastest of several, plain and tuned, interleaved; CPU time is
less disturbed by other programs than wall time is. The first two columns are the matrix products
alone, the last two the whole forward over a cache of 150 tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import engine  # noqa: F401  # before mlx, for the BLAS

# isort: split
import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from engine.backend import backend_info
from engine.cache.layout import build_stores
from engine.cache.slots import SlotCache
from engine.models.blocked import BLOCKED, blocked_matmul
from engine.models.load import load_model
from engine.models.rotary import SharedRoPE

PASSES = 7
CONTEXT = 150
PLAIN = {tuned: plain for plain, tuned in BLOCKED.items()} | {SharedRoPE: nn.RoPE}
TUNED = {plain: tuned for tuned, plain in PLAIN.items()}


def swap(model: nn.Module, classes: dict[type, type]) -> None:
    """Let every layer compute as another class does; arrays stay."""
    for _, module in model.named_modules():
        module.__class__ = classes.get(type(module), type(module))


def cpu_ms(work: Callable[[], object]) -> float:
    """CPU milliseconds of one evaluation."""
    before = time.process_time()
    mx.eval(work())
    return 1e3 * (time.process_time() - before)


def fastest(ways: dict[str, Callable[[], object]]) -> dict[str, float]:
    """The fastest of several interleaved evaluations of each way."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(PASSES + 1):
        for name, work in ways.items():
            times[name].append(cpu_ms(work))
    return {name: min(values[1:]) for name, values in times.items()}


def products(weights: list[mx.array], rows: int) -> dict[str, float]:
    """CPU milliseconds of all matrix products."""
    inputs = {size: mx.random.normal((rows, size)) for size in {w.shape[1] for w in weights}}
    mx.eval(list(inputs.values()))
    return fastest(
        {
            "plain": lambda: [inputs[w.shape[1]] @ w.T for w in weights],
            "tuned": lambda: [blocked_matmul(inputs[w.shape[1]], w) for w in weights],
        }
    )


def forwards(model: nn.Module, rows: int) -> dict[str, float]:
    """CPU milliseconds of one forward."""
    cache = SlotCache(build_stores("model", model))
    cache.resize(1, CONTEXT + rows)
    views = cache.views(0, [0], [CONTEXT], CONTEXT)
    mx.eval(model(mx.zeros((1, CONTEXT), mx.int32), cache=views))

    def forward(classes: dict[type, type]) -> mx.array:
        swap(model, classes)
        ids = mx.ones((1, rows), mx.int32)
        views = cache.views(0, [CONTEXT], [rows], rows)
        return mx.argmax(model(ids, cache=views), axis=-1)

    return fastest({"plain": lambda: forward(PLAIN), "tuned": lambda: forward(TUNED)})


def main() -> None:
    """Print the table."""
    info = backend_info()
    print(f"{info.blas_name} {info.blas_version}, {info.blas_core}, {info.blas_threads} thread(s)")
    model = load_model("smollm2-135m").model
    weights = [array for _, array in tree_flatten(model.parameters()) if array.ndim == 2]
    print("rows   products: plain  tuned   forward: plain  tuned   (CPU ms)")
    for rows in (1, 2, 4, 8, 16):
        part, whole = products(weights, rows), forwards(model, rows)
        print(
            f"{rows:4d} {part['plain']:17.1f} {part['tuned']:6.1f}"
            f" {whole['plain']:16.1f} {whole['tuned']:6.1f}"
        )


if __name__ == "__main__":
    main()
