"""Is it the machine? The speed of one reply, again and again, beside a loop of plain Python.

    uv run python benchmarks/pace.py [REPLIES] [MODEL]

Decodes the same reply REPLIES (120) times and runs a loop that no engine takes part in after each.
Prints both by tenths of the time, how much each varies, and how far they go together: where they
do, the processor itself was slow and fast by turns, which no build can help.
docs/decisions/turns.md says what blocks do about it.
"""

from __future__ import annotations

import sys
import time
from statistics import correlation, fmean, stdev

from process_bias import PROMPT, reply_rate

import engine  # noqa: F401  # before mlx, for the BLAS
from engine.config import EngineConfig
from engine.loop import Engine
from engine.models.load import load_model

TOKENS = 100
ROUNDS = 60_000
PARTS = 10


def loop_rate() -> float:
    """Return how many rounds of a plain loop go into a second."""
    started_s, total = time.perf_counter(), 0
    for number in range(ROUNDS):
        total += number * number % 7
    return ROUNDS / (time.perf_counter() - started_s)


def main(replies: int = 120, name: str = "smollm2-135m") -> None:
    """Measure and print."""
    opened = Engine(load_model(name), EngineConfig())
    ids = tuple(opened.model.tokenizer.encode(PROMPT, add_special_tokens=True))
    for _ in range(5):
        reply_rate(opened, ids, TOKENS)
    seen = [(reply_rate(opened, ids, TOKENS), loop_rate()) for _ in range(replies)]
    print(f"{'part':>4} {'reply, tok/s':>13} {'loop, M/s':>10}")
    size = max(1, replies // PARTS)
    for start in range(0, replies, size):
        part = seen[start : start + size]
        rate, loop = (fmean(column) for column in zip(*part, strict=True))
        print(f"{start // size + 1:>4} {rate:>13.1f} {loop / 1e6:>10.2f}")
    rates, loops = zip(*seen, strict=True)
    print(f"replies vary by {100 * stdev(rates) / fmean(rates):.1f} %, from {min(rates):.0f} to")
    print(f"{max(rates):.0f} tok/s; the loop by {100 * stdev(loops) / fmean(loops):.1f} %;")
    print(f"correlation of the two {correlation(rates, loops):.2f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]), *sys.argv[2:3])
