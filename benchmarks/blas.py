"""Time the matrix products of one SmolLM2-135M forward under several BLAS libraries.

    uv run python benchmarks/blas.py off scipy:1 scipy:2 [--busy N] [--rows 1,4,16] [--rounds 5]

Each argument is an FM_BLAS value, with `:THREADS` after it. Every configuration has a process of
its own, all stay alive, and rounds alternate between them, so that a drifting machine touches
all alike. `--busy N` keeps N other processes computing meanwhile. Milliseconds are medians.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import engine  # noqa: F401  # before mlx: it loads the library

LAYERS, HIDDEN, KV, INNER, VOCAB = 30, 576, 192, 1536, 49152
SPIN = "while True: sum(range(10000))"


def serve() -> None:
    """Answer each line (a row count) with the milliseconds of one forward's products."""
    import mlx.core as mx

    shapes = [(HIDDEN, HIDDEN), (KV, HIDDEN), (KV, HIDDEN), (HIDDEN, HIDDEN), (INNER, HIDDEN)]
    shapes += [(INNER, HIDDEN), (HIDDEN, INNER)]
    layers = [[mx.random.normal(shape) for shape in shapes] for _ in range(LAYERS)]
    head = mx.random.normal((VOCAB, HIDDEN))
    mx.eval(layers, head)
    for line in sys.stdin:
        rows = int(line)
        hidden, inner = mx.ones((rows, HIDDEN)), mx.ones((rows, INNER))
        start = time.perf_counter()
        for layer in layers:
            for weight in layer:
                x = inner if weight.shape[1] == INNER else hidden
                mx.eval(x @ weight.T)
        mx.eval(hidden @ head.T)
        print((time.perf_counter() - start) * 1e3, flush=True)


class Worker:
    """A child process with one BLAS configuration."""

    def __init__(self, configuration: str) -> None:
        choice, _, threads = configuration.partition(":")
        env = os.environ | {"FM_BLAS": choice, "FM_BLAS_THREADS": threads or "1"}
        command = [sys.executable, __file__, "--serve"]
        self.process = subprocess.Popen(
            command, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def measure(self, rows: int) -> float:
        """Return the milliseconds of one forward over `rows` tokens."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(rows, file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep `count` processes computing."""
    others = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(count)]
    try:
        yield
    finally:
        for process in others:
            process.kill()
            process.wait()


def main() -> None:
    """Print one line for each configuration: milliseconds by number of rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("configurations", nargs="*", default=["off", "scipy:1", "scipy:2"])
    parser.add_argument("--rows", default="1,2,4,8,16")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("--serve", action="store_true")
    arguments = parser.parse_args()
    if arguments.serve:
        serve()
        return
    sizes = [int(text) for text in arguments.rows.split(",")]
    workers = {name: Worker(name) for name in arguments.configurations}
    times: dict[tuple[str, int], list[float]] = {}
    with busy(arguments.busy):
        for turn in range(arguments.rounds + 1):
            for rows in sizes:
                for name, worker in workers.items():
                    value = worker.measure(rows)
                    if turn > 0:  # the first one warms up
                        times.setdefault((name, rows), []).append(value)
    print("load", *(f"{value:.1f}" for value in os.getloadavg()), "busy", arguments.busy)
    print(f"{'':24}", *(f"{rows:>7}" for rows in sizes))
    for name, worker in workers.items():
        medians = (statistics.median(times[name, rows]) for rows in sizes)
        print(f"{name[-24:]:24}", *(f"{value:7.1f}" for value in medians))
        worker.process.kill()


if __name__ == "__main__":
    main()
