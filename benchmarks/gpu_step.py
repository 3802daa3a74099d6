"""What a decode step costs on an NVIDIA GPU, for several ways to build it.

    python benchmarks/gpu_step.py [--parts check,steps,...] [--rows 1,4] [--model NAME] [--out DIR]

Parts: check (kernels against plain MLX), project (kernel against cuBLAS), steps (every way, on
SmolLM2's shape), large (shapes of 3B and 8B parameters against the time the memory needs). Weights
are random.
Each time is a median over 30 steps after a warm-up, in milliseconds: "piped" launches a step on
tokens that are still on the device and then reads the step before, "synced" waits for each step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import engine  # noqa: F401  # before mlx

# isort: split
import mlx.core as mx
import numpy as np
from gpu_ways import (
    RAGGED,
    UNIFORM,
    WAYS,
    Advance,
    fill,
    layers_of,
    random_model,
    slots_of,
    weight_bytes,
)

from engine.fused import kernels, reference
from engine.fused.parts import Parts, take_parts
from engine.fused.step import FusedStep, decode, fused_step

STEPS = 30
WARM = 6
LENGTH = 300


@dataclass
class Log:
    """Every raw number, and where it goes."""

    folder: Path
    entries: list[dict[str, Any]] = field(default_factory=list)

    def add(self, **entry: Any) -> None:
        """Keep and print one result; raw lists are kept only."""
        self.entries.append(entry)
        print(*(f"{value}" for value in entry.values() if not isinstance(value, list)), flush=True)
        (self.folder / "gpu_step.json").write_text(json.dumps(self.entries))


def lengths(rows: int, kind: str, length: int) -> list[int]:
    """Cache lengths of the rows at the first step."""
    return [length - (37 * row % 150 if kind == RAGGED else 0) for row in range(rows)]


def run_steps(advance: Advance, starts: list[int], width: int, count: int) -> Iterator[mx.array]:
    """Yield the tokens of each step, launched and not read."""
    ids = mx.zeros((len(starts), width), dtype=mx.int32)
    for index in range(count):
        logits = advance(ids, [start + index for start in starts])
        ids = mx.argmax(logits, axis=-1).astype(mx.int32)
        mx.async_eval(ids)
        yield ids


def time_steps(advance: Advance, starts: list[int], width: int) -> tuple[list[float], list[float]]:
    """Return the times of pipelined and of synchronous steps, in ms."""
    piped: list[float] = []
    before: mx.array | None = None
    last = time.perf_counter()
    for ids in run_steps(advance, starts, width, WARM + STEPS):
        if before is not None:
            np.array(before)
        before, now = ids, time.perf_counter()
        piped.append(1e3 * (now - last))
        last = now
    synced: list[float] = []
    last = time.perf_counter()
    for ids in run_steps(advance, starts, width, WARM + STEPS):
        np.array(ids)
        now = time.perf_counter()
        synced.append(1e3 * (now - last))
        last = now
    return piped[WARM:], synced[WARM:]


def measure(
    log: Log,
    shape: str,
    model: Any,
    name: str,
    rows: int,
    width: int,
    kind: str,
    length: int = LENGTH,
) -> None:
    """Time one way at one shape; what raises is recorded."""
    way, _ = WAYS[name]
    try:
        advance = way(model, rows, length)
        piped, synced = time_steps(advance, lengths(rows, kind, length), width)
    except (RuntimeError, ValueError) as error:
        log.add(shape=shape, way=name, rows=rows, width=width, kind=kind, error=str(error)[:500])
        return
    log.add(
        shape=shape,
        way=name,
        rows=rows,
        width=width,
        kind=kind,
        length=length,
        piped=round(statistics.median(piped), 3),
        synced=round(statistics.median(synced), 3),
        raw_piped=piped,
        raw_synced=synced,
    )
    mx.clear_cache()


def check(log: Log) -> None:
    """Compare the kernels with plain MLX, and rows with themselves in other company."""
    model = random_model("smollm2")
    parts = take_parts(model)
    assert parts is not None
    starts = [0, 17, 130, 255]
    caches = []
    for _ in range(4):
        mx.random.seed(7)
        cache = slots_of(model, 4, 300)
        fill(cache, model, 4, 300)
        caches.append(layers_of(cache))
    ids = mx.array(np.random.default_rng(0).integers(0, 49152, (4, 2)), dtype=mx.int32)
    slots, at = mx.arange(4, dtype=mx.int32), mx.array(starts, dtype=mx.int32)
    plain = decode(parts, reference, ids, slots, at, *caches[0])
    began = time.perf_counter()
    found = decode(parts, kernels, ids, slots, at, *caches[1])
    mx.eval(plain, found, *caches)
    log.add(check="first step, kernels compiled, s", value=time.perf_counter() - began)
    step = fused_step(model)
    assert step is not None
    alone = [
        step(ids[row : row + 1, :1], slots[row : row + 1], at[row : row + 1], *caches[2])
        for row in range(4)
    ]
    same = mx.array_equal(mx.concatenate(alone)[:, 0], found[:, 0]).item()
    log.add(check="a row alone at width 1 and in a batch of 4 at width 2: equal bits", value=same)
    for rows, width in ((4, 8), (32, 1), (16, 2)):
        same = same_in_company(step, model, rows, width)
        log.add(check=f"{rows} rows of width {width} and each alone: equal bits", value=same)
    model.set_dtype(mx.float32)
    exact_parts = take_parts(model)
    assert exact_parts is not None
    exact_cache = [[array.astype(mx.float32) for array in held] for held in caches[3]]
    exact = decode(exact_parts, reference, ids, slots, at, *exact_cache)
    for name, logits in (("kernels", found), ("plain MLX", plain)):
        apart = mx.linalg.norm(logits.astype(mx.float32) - exact) / mx.linalg.norm(exact)
        log.add(check=f"{name} in bfloat16 against float32, relative", value=apart.item())


def same_in_company(step: FusedStep, model: Any, rows: int, width: int) -> bool:
    """Return whether the first and the last row have the bits alone that they have in a batch."""
    mx.random.seed(9)
    cache = slots_of(model, rows, 300)
    fill(cache, model, rows, 300)
    held = layers_of(cache)
    ids = mx.random.randint(0, 49152, (rows, width)).astype(mx.int32)
    slots = mx.arange(rows, dtype=mx.int32)
    at = mx.array([17 + 3 * row for row in range(rows)], dtype=mx.int32)
    together = step(ids, slots, at, *held)
    mx.eval(together)
    for row in (0, rows - 1):
        one = slice(row, row + 1)
        for column in range(width):
            alone = step(ids[one, column : column + 1], slots[one], at[one] + column, *held)
            if not mx.array_equal(alone[0, 0], together[row, column]).item():
                return False
    return True


def products(parts: Parts, module: Any, x: mx.array) -> mx.array:
    """All products of a step but the head's."""
    for layer in parts.layers:
        qkv = module.project(layer.qkv, x)
        seen = mx.contiguous(qkv[:, : layer.out.weight.shape[1]])
        x = module.project(layer.out, seen, x)
        x = module.project(layer.down, module.project(layer.gate_up, x), x)
    return x


def head_product(parts: Parts, module: Any, x: mx.array) -> mx.array:
    """The head's product."""
    logits: mx.array = module.project(parts.head, x)
    return logits


PRODUCTS = {
    # module, and the weights of which a block takes one tile
    "one_tile": (kernels, 1 << 40),
    "tiles": (kernels, 0),
    "cublas": (reference, 0),
}


def project(log: Log, shape: str) -> None:
    """Time the products of a step, kernel against cuBLAS, by number of tokens."""
    model = random_model(shape)
    parts = take_parts(model)
    assert parts is not None
    rules = kernels.SMALL_BYTES, kernels.takes
    kernels.takes = lambda _parts, _tokens: True
    for what in (products, head_product):
        for tokens in (1, 4, 8, 16, 32, 64, 128, 256):
            x = mx.random.normal((tokens, parts.layers[0].qkv.weight.shape[1]), mx.bfloat16)
            times: dict[str, float] = {}
            for name, (module, kernels.SMALL_BYTES) in PRODUCTS.items():
                step: Any = mx.compile(partial(what, parts, module))
                took = []
                for _ in range(20):
                    before = time.perf_counter()
                    mx.eval(step(x))
                    took.append(1e3 * (time.perf_counter() - before))
                times[name] = round(statistics.median(took[5:]), 3)
            log.add(shape=shape, what=what.__name__, tokens=tokens, **times)
    kernels.SMALL_BYTES, kernels.takes = rules


def copy_rate() -> float:
    """Bytes a second that large copies read and write, of the fastest of several goes."""
    source = mx.random.normal((1 << 30,), mx.bfloat16)
    mx.eval(source)
    took = []
    for _ in range(5):
        began = time.perf_counter()
        mx.eval([source * factor for factor in range(2, 10)])
        took.append(time.perf_counter() - began)
    return 16 * source.nbytes / min(took)


def large(log: Log, shape: str) -> None:
    """Time a large shape and the time its weights and cache take to be read."""
    rate = copy_rate()
    model = random_model(shape)
    parts = take_parts(model)
    assert parts is not None
    heads = parts.layers[0].heads
    row_bytes = 4 * len(parts.layers) * heads.keys * heads.dim * LENGTH
    for rows in (1, 8, 64):
        floor = 1e3 * (weight_bytes(parts) + rows * row_bytes) / rate
        log.add(shape=shape, rows=rows, rate_tb_s=round(rate / 1e12, 2), floor_ms=round(floor, 2))
        for width in (1, 4):
            measure(log, shape, model, "fused", rows, width, RAGGED)
        measure(log, shape, model, "mlx-lm", rows, 1, UNIFORM)


def steps(log: Log, options: argparse.Namespace) -> None:
    """Time every way at every shape."""
    model = random_model("smollm2")
    ways = [way.replace("/", ", ") for way in options.ways.split(",")]
    for rows in map(int, options.rows.split(",")):
        for width in map(int, options.widths.split(",")):
            for name in ways:
                for kind in WAYS[name][1]:
                    measure(log, "smollm2", model, name, rows, width, kind, options.length)


def main() -> None:
    """Run the parts asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--parts", default="check,project,steps,large")
    parser.add_argument("--rows", default="1,4,8,32,128")
    parser.add_argument("--widths", default="1,4")
    parser.add_argument("--ways", default=",".join(name.replace(", ", "/") for name in WAYS))
    parser.add_argument("--length", type=int, default=LENGTH)
    parser.add_argument("--shapes", default="smollm2,3b,8b")
    parser.add_argument("--out", type=Path, default=Path())
    options = parser.parse_args()
    log = Log(options.out)
    shapes = options.shapes.split(",")
    for part in options.parts.split(","):
        if part == "check":
            check(log)
        elif part == "steps":
            steps(log, options)
        else:
            for shape in shapes:
                {"project": project, "large": large}[part](log, shape)


if __name__ == "__main__":
    main()
