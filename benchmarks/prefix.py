"""How tokens are best taken from a slot, and put back: `python benchmarks/prefix.py`.

Arrays as 30 layers of a 135M model hold them. The first table counts bytes: what a step copies when
512 tokens of a slot were taken before it. The second times a load of 1,984 tokens by the number of
tokens in one array.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable

import engine  # noqa: F401  # before mlx

# isort: split
import mlx.core as mx

from engine.arrays import launch

NUM_ARRAYS = 60
SHAPE = (4, 3, 1024, 64)
TAKEN = 512
LOADED = 1_984
LOAD_SHAPE = (4, 3, 2048, 64)
MB = 1e6

Arrays = list[mx.array]


def filled(shape: tuple[int, ...]) -> Arrays:
    """Return computed arrays of zeros."""
    arrays = [mx.zeros(shape) + 0 for _ in range(NUM_ARRAYS)]
    mx.eval(arrays)
    return arrays


def slices(held: Arrays) -> Arrays:
    """Views: they hold on to the whole arrays."""
    return [array[0, :, :TAKEN] for array in held]


def copies(held: Arrays) -> Arrays:
    """Copies that nobody has started."""
    return [mx.contiguous(view) for view in slices(held)]


def copies_at_once(held: Arrays) -> Arrays:
    """Copies started in one evaluation."""
    taken = copies(held)
    launch(*taken)
    return taken


def copies_in_order(held: Arrays) -> Arrays:
    """Copies started layer by layer, as the prefix cache does."""
    taken = copies(held)
    for array in taken:
        launch(array)
    return taken


def copies_waited_for(held: Arrays) -> Arrays:
    """Copies that are there before the step."""
    taken = copies(held)
    mx.eval(taken)
    return taken


def nothing(_held: Arrays) -> Arrays:
    """No tokens at all."""
    return []


WAYS: dict[str, Callable[[Arrays], Arrays]] = {
    "not at all": nothing,
    "slices": slices,
    "copies, not started": copies,
    "copies, one evaluation": copies_at_once,
    "copies, layer by layer": copies_in_order,
    "copies, waited for": copies_waited_for,
}


def peak_of(take: Callable[[Arrays], Arrays]) -> float:
    """Return the MB at the peak of a step after `take`, beyond what was held before."""
    held = filled(SHAPE)
    gc.collect()
    mx.synchronize()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    taken = take(held)
    one = mx.ones((4, 3, 1, 64))
    for index in range(NUM_ARRAYS):
        held[index][:, :, 1000:1001] = one
        launch(held[index])  # a forward writes its layers one after another
    mx.synchronize()
    peak = mx.get_peak_memory() - before
    mx.eval(taken)
    return peak / MB


def load_ms(num_tokens: int) -> tuple[float, float]:
    """Return milliseconds on the host and in all to put pieces of `num_tokens` into a slot."""
    sizes = [min(num_tokens, LOADED - start) for start in range(0, LOADED, num_tokens)]
    pieces = [[mx.ones((3, size, 64)) for size in sizes] for _ in range(NUM_ARRAYS)]
    mx.eval(pieces)
    host, total = [], []
    for _ in range(7):
        held = filled(LOAD_SHAPE)
        began = time.perf_counter()
        for array, parts in zip(held, pieces, strict=True):
            start = 0
            for part in parts:
                array[1, :, start : start + part.shape[1]] = part
                start += part.shape[1]
        host.append(time.perf_counter() - began)
        mx.eval(held)
        total.append(time.perf_counter() - began)
    return statistics.median(host) * 1e3, statistics.median(total) * 1e3


def main() -> None:
    """Print both tables."""
    print(f"{TAKEN} tokens taken from {NUM_ARRAYS} arrays {SHAPE}, then one token written to each")
    for name, take in WAYS.items():
        print(f"  {name:24} peak {peak_of(take):6.1f} MB")
    print(f"{LOADED} tokens put into {NUM_ARRAYS} arrays {LOAD_SHAPE}, median of 7")
    for num_tokens in (64, 256, 512, LOADED):
        host, total = load_ms(num_tokens)
        print(f"  {num_tokens:5} tokens an array: host {host:5.1f} ms, total {total:6.1f} ms")


if __name__ == "__main__":
    main()
