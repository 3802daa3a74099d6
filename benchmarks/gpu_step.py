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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import engine  # noqa: F401  # before mlx

# isort: split
import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models import llama
from mlx_lm.models.cache import KVCache

from engine.cache.layout import build_stores
from engine.cache.slots import SlotCache
from engine.fused import kernels, reference
from engine.fused.parts import Parts, take_parts
from engine.fused.step import decode, fused_step
from engine.models.head import split_head
from engine.shapes import CAPACITY_BLOCK, round_up

STEPS = 30
WARM = 6
LENGTH = 300
BLOCK = 256
MOST_STEPS = 768

SHAPES: dict[str, dict[str, Any]] = {
    "smollm2": {
        "hidden_size": 576,
        "num_hidden_layers": 30,
        "intermediate_size": 1536,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
    },
    "3b": {
        "hidden_size": 3072,
        "num_hidden_layers": 28,
        "intermediate_size": 8192,
        "num_attention_heads": 24,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    },
    "8b": {
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "tie_word_embeddings": False,
    },
}

Advance = Callable[[mx.array, list[int]], mx.array]
"""(ids [rows, width], cache length of each row) -> logits [rows, width, vocab]."""


def random_model(shape: str) -> Any:
    """Return a bfloat16 model of seeded random weights."""
    model: Any = llama.Model(
        llama.ModelArgs(model_type="llama", rms_norm_eps=1e-5, **SHAPES[shape])
    )
    mx.random.seed(0)
    for _, module in model.named_modules():
        if "weight" in module and module.weight.ndim == 2:
            size = module.weight.shape
            module.weight = mx.random.normal(size, mx.bfloat16, scale=size[-1] ** -0.5)
            mx.eval(module.weight)
    model.set_dtype(mx.bfloat16)
    mx.eval(model.parameters())
    return model


def weight_bytes(parts: Parts) -> int:
    """Bytes of weights a step reads: all but an embedding that is not the head too."""
    layers = sum(
        projection.weight.nbytes
        for layer in parts.layers
        for projection in (layer.qkv, layer.out, layer.gate_up, layer.down)
    )
    return layers + parts.head.weight.nbytes


# -- ways to build a step ------------------------------------------------------------------------


def slots_of(model: Any, rows: int, length: int, read_block: int = 1) -> SlotCache:
    """Return slots with room for `length` tokens a row and the steps measured behind them."""
    cache = SlotCache(build_stores("benchmark", model), read_block)
    cache.resize(rows, round_up(length + MOST_STEPS, CAPACITY_BLOCK))
    return cache


def layers_of(cache: SlotCache) -> tuple[list[mx.array], list[mx.array]]:
    """Return keys and values of every layer."""
    keys, values = zip(*cache.arrays(), strict=True)
    return list(keys), list(values)


def fill(cache: SlotCache, model: Any, rows: int, length: int) -> None:
    """Let every slot hold `length` random keys and values."""
    heads, dim = model.args.num_key_value_heads, model.layers[0].self_attn.head_dim
    for view in cache.views(0, [0] * rows, [length] * rows, length):
        pair = (mx.random.normal((rows, heads, length, dim), mx.bfloat16) for _ in range(2))
        mx.eval(view.update_and_fetch(*pair))


def slots_way(model: Any, rows: int, length: int, read_block: int) -> Advance:
    """mlx-lm's layers over our slots, as the engine runs what it has no kernels for."""
    backbone, head = split_head(model)
    cache = slots_of(model, rows, length, read_block)
    fill(cache, model, rows, length)

    def advance(ids: mx.array, starts: list[int]) -> mx.array:
        counts = [ids.shape[1]] * len(starts)
        return head(backbone(ids, cache.views(0, starts, counts, ids.shape[1])))

    return advance


def mlx_lm_way(model: Any, rows: int, length: int) -> Advance:
    """mlx-lm's layers over its own growing cache; rows of equal length."""
    heads, dim = model.args.num_key_value_heads, model.layers[0].self_attn.head_dim
    caches = [KVCache() for _ in model.layers]
    for cache in caches:
        pair = (mx.random.normal((rows, heads, length, dim), mx.bfloat16) for _ in range(2))
        mx.eval(cache.update_and_fetch(*pair))

    def advance(ids: mx.array, starts: list[int]) -> mx.array:
        for cache in caches:
            cache.offset = starts[0]
        return model(ids, cache=caches)

    return advance


def fused_way(model: Any, rows: int, length: int) -> Advance:
    """The engine's way: five kernels a layer, compiled."""
    step = fused_step(model)
    assert step is not None
    cache = slots_of(model, rows, length)
    fill(cache, model, rows, length)
    slots = mx.arange(rows, dtype=mx.int32)

    def advance(ids: mx.array, starts: list[int]) -> mx.array:
        return step(ids, slots, mx.array(starts, dtype=mx.int32), *layers_of(cache))

    return advance


@dataclass(frozen=True)
class Plain:
    """A step of plain operations on joined weights: how to write the cache and how to attend."""

    parts: Parts
    rope: nn.RoPE
    write: str
    attention: str

    def __call__(
        self, ids: mx.array, starts: mx.array, keys: list[mx.array], values: list[mx.array]
    ) -> tuple[mx.array, list[mx.array], list[mx.array]]:
        """Return logits and the written cache."""
        rows, width = ids.shape
        positions = starts[:, None] + mx.arange(width)[None]
        seen = mx.arange(keys[0].shape[2])[None, None, None] <= positions[:, None, :, None]
        x = self.parts.embed(ids)
        keys, values = list(keys), list(values)
        for index, layer in enumerate(self.parts.layers):
            heads = layer.heads
            qkv = reference.project(layer.qkv, x).reshape(rows, width, -1, heads.dim)
            turned = self.rope(qkv.swapaxes(1, 2), offset=starts)
            ends = [heads.queries, heads.queries + heads.keys]
            query, key, _ = mx.split(turned, ends, axis=1)
            value = qkv[:, :, ends[1] :].swapaxes(1, 2)
            keys[index] = self._written(keys[index], key, starts, positions)
            values[index] = self._written(values[index], value, starts, positions)
            answer = self._attend(query, keys[index], values[index], heads.scale, seen)
            x = reference.project(layer.out, answer.swapaxes(1, 2).reshape(rows, width, -1), x)
            x = reference.project(layer.down, reference.project(layer.gate_up, x), x)
        return reference.project(self.parts.head, x), keys, values

    def _written(
        self, held: mx.array, new: mx.array, starts: mx.array, positions: mx.array
    ) -> mx.array:
        if self.write == "slice":
            return mx.slice_update(held, new, starts[:1], axes=(2,))
        index = positions[:, None, :, None]
        if self.write == "along":
            return mx.put_along_axis(held, mx.broadcast_to(index, new.shape), new, axis=2)
        rows, heads = mx.arange(new.shape[0]), mx.arange(new.shape[1])
        at = (rows[:, None, None], heads[None, :, None], positions[:, None])
        held[at] = new
        return held

    def _attend(
        self, query: mx.array, keys: mx.array, values: mx.array, scale: float, seen: mx.array
    ) -> mx.array:
        if self.attention == "sdpa":
            return mx.fast.scaled_dot_product_attention(query, keys, values, scale=scale, mask=seen)
        rows, heads, width, dim = query.shape
        grouped = query.reshape(rows, keys.shape[1], -1, width, dim) * scale
        scores = grouped @ keys[:, :, None].swapaxes(-1, -2)
        scores = mx.where(seen[:, :, None], scores, mx.finfo(scores.dtype).min)
        answer = mx.softmax(scores, axis=-1, precise=True) @ values[:, :, None]
        return answer.reshape(rows, heads, width, dim)


def plain_way(
    model: Any, rows: int, length: int, write: str, attention: str, compiled: bool
) -> Advance:
    """Joined weights, a fixed read extent, and the cache as input and output."""
    parts = take_parts(model)
    assert parts is not None
    step: Any = Plain(parts, model.layers[0].self_attn.rope, write, attention)
    if compiled:
        step = mx.compile(step)
    cache = slots_of(model, rows, length)
    fill(cache, model, rows, length)
    keys, values = layers_of(cache)
    del cache
    state = [keys, values]

    def advance(ids: mx.array, starts: list[int]) -> mx.array:
        held, state[:] = list(state), []
        logits, *state[:] = step(ids, mx.array(starts, dtype=mx.int32), *held)
        return logits

    return advance


Way = Callable[[Any, int, int], Advance]
UNIFORM = "uniform"
RAGGED = "ragged"

WAYS: dict[str, tuple[Way, tuple[str, ...]]] = {
    "mlx-lm": (mlx_lm_way, (UNIFORM,)),
    "slots, trimmed": (partial(slots_way, read_block=1), (UNIFORM,)),
    "slots, block 256": (partial(slots_way, read_block=BLOCK), (UNIFORM, RAGGED)),
    "joined, slice, sdpa": (
        partial(plain_way, write="slice", attention="sdpa", compiled=False),
        (UNIFORM,),
    ),
    "compiled, slice, sdpa": (
        partial(plain_way, write="slice", attention="sdpa", compiled=True),
        (UNIFORM,),
    ),
    "compiled, along, sdpa": (
        partial(plain_way, write="along", attention="sdpa", compiled=True),
        (RAGGED,),
    ),
    "compiled, along, softmax": (
        partial(plain_way, write="along", attention="softmax", compiled=True),
        (RAGGED,),
    ),
    "compiled, scatter, softmax": (
        partial(plain_way, write="scatter", attention="softmax", compiled=True),
        (RAGGED,),
    ),
    "fused": (fused_way, (UNIFORM, RAGGED)),
}

# -- measuring -----------------------------------------------------------------------------------


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
    model.set_dtype(mx.float32)
    exact_parts = take_parts(model)
    assert exact_parts is not None
    exact_cache = [[array.astype(mx.float32) for array in held] for held in caches[3]]
    exact = decode(exact_parts, reference, ids, slots, at, *exact_cache)
    for name, logits in (("kernels", found), ("plain MLX", plain)):
        apart = mx.linalg.norm(logits.astype(mx.float32) - exact) / mx.linalg.norm(exact)
        log.add(check=f"{name} in bfloat16 against float32, relative", value=apart.item())


def products(parts: Parts, module: Any, x: mx.array) -> mx.array:
    """All products of a step but the head's."""
    for layer in parts.layers:
        qkv = module.project(layer.qkv, x)
        seen = mx.contiguous(qkv[:, : layer.out.weight.shape[1]])
        x = module.project(layer.out, seen, x)
        x = module.project(layer.down, module.project(layer.gate_up, x), x)
    return x


def project(log: Log, shape: str) -> None:
    """Time the products of a step, kernel against cuBLAS, by number of tokens."""
    model = random_model(shape)
    parts = take_parts(model)
    assert parts is not None
    limit, kernels.SMALL_BYTES = kernels.SMALL_BYTES, 1 << 40
    for tokens in (1, 4, 8, 16, 32, 64, 128):
        x = mx.random.normal((tokens, parts.layers[0].qkv.weight.shape[1]), mx.bfloat16)
        times: dict[str, float] = {}
        for name, module in (("kernel_ms", kernels), ("cublas_ms", reference)):
            step: Any = mx.compile(partial(products, parts, module))
            took = []
            for _ in range(20):
                before = time.perf_counter()
                mx.eval(step(x))
                took.append(1e3 * (time.perf_counter() - before))
            times[name] = round(statistics.median(took[5:]), 3)
        log.add(shape=shape, tokens=tokens, **times)
    kernels.SMALL_BYTES = limit


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
