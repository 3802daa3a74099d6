"""Is one process of the same build faster than another, throughout?

    uv run python benchmarks/process_bias.py [PROCESSES] [ROUNDS] [MODEL]

Opens the model in PROCESSES (8) processes, lets each of them decode the same reply once a round, in
shuffled order, ROUNDS (8) times, and parts the variance of the speeds: what stays with a process
from round to round, and what does not. `fm gate --base` compares two processes; docs/gating.md
says what that share means for it.
"""

from __future__ import annotations

import json
import math
import random
import statistics
import sys
import time
from collections.abc import Sequence

import engine  # noqa: F401  # before mlx, for the BLAS
from engine.config import EngineConfig
from engine.loop import Engine
from engine.models.load import load_model
from engine.request import Request
from harness.line_child import LineChild

TOKENS = 60
PROMPT = "The river rises in the hills and runs down to the sea. " * 4
OPEN_S, REPLY_S = 1800.0, 600.0


def child(name: str) -> None:
    """Answer each line with the speed of one reply."""
    opened = Engine(load_model(name), EngineConfig())
    ids = tuple(opened.model.tokenizer.encode(PROMPT, add_special_tokens=True))
    reply_rate(opened, ids)  # warms kernels and pages up
    print(json.dumps({"opened": name}), flush=True)
    for _ in sys.stdin:
        print(json.dumps({"rate": reply_rate(opened, ids)}), flush=True)


def reply_rate(opened: Engine, prompt_ids: tuple[int, ...], tokens: int = TOKENS) -> float:
    """Decode one reply; returns tokens a second from the first to the last."""
    opened.submit(Request(prompt_ids=prompt_ids, max_tokens=tokens, ignore_eos=True))
    instants: list[float] = []
    while opened.has_work:
        told = opened.step()
        instants += [time.perf_counter()] * len(told)
    return (len(instants) - 1) / (instants[-1] - instants[0])


def speeds(processes: int, rounds: int, name: str) -> list[list[float]]:
    """Return log speeds, [rounds][processes], each without the mean of its round."""
    command = (sys.executable, __file__, "--child", name)
    children = [LineChild(command, f"process-{index}") for index in range(processes)]
    try:
        for opened in children:
            opened.receive(OPEN_S)
        order = random.Random(0)
        kept = []
        for number in range(rounds):
            logs = [0.0] * processes
            for index in order.sample(range(processes), processes):
                children[index].send({})
                logs[index] = math.log(children[index].receive(REPLY_S)["rate"])
            middle = statistics.fmean(logs)
            kept.append([value - middle for value in logs])
            rate = math.exp(middle)
            print(f"round {number + 1} of {rounds}: {rate:.1f} tok/s", file=sys.stderr, flush=True)
        return kept
    finally:
        for opened in children:
            opened.close()


def parted(logs: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """Return the standard deviations between and within processes, and the ratio F.

    One-way analysis of variance; a variance between that comes out negative is none.
    """
    rounds, processes = len(logs), len(logs[0])
    columns = [[row[index] for row in logs] for index in range(processes)]
    means = [statistics.fmean(column) for column in columns]
    within = sum(
        (value - mean) ** 2 for column, mean in zip(columns, means, strict=True) for value in column
    ) / ((rounds - 1) * (processes - 1))
    between = rounds * statistics.variance(means)
    return math.sqrt(max(0.0, between - within) / rounds), math.sqrt(within), between / within


def main() -> None:
    """Print what was found."""
    processes, rounds = (int(text) for text in (*sys.argv[1:3], "8", "8")[:2])
    name = sys.argv[3] if sys.argv[3:] else "smollm2-135m"
    between, within, ratio = parted(speeds(processes, rounds, name))
    print(
        f"{name}, {processes} processes, {rounds} rounds of {TOKENS} tokens: "
        f"{100 * between:.2f} % between processes, {100 * within:.2f} % from round to round, "
        f"F({processes - 1}, {(rounds - 1) * (processes - 1)}) = {ratio:.2f}"
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2])
    else:
        main()
