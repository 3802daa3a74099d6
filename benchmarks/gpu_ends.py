"""Our engine and mlx-lm from prompts to ids, in one run, on the device MLX finds.

    python benchmarks/gpu_ends.py [--model NAME] [--rows 1,4,32,128] [--out DIR]

Rows have prompts of 64 to 159 tokens and get 128 new ones each, greedily, whatever they are. Rates
are tokens a second over all rows, prompts included; the faster of two runs after one to warm up.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import engine  # noqa: F401  # before mlx

# isort: split
import numpy as np
from mlx_lm import batch_generate, stream_generate
from mlx_lm import load as mlx_lm_load

from engine.config import EngineConfig
from engine.loop import Engine
from engine.models.load import LoadedModel, load_model
from engine.request import Request

NEW = 128


def prompts(rows: int, vocab_size: int) -> list[list[int]]:
    """Prompts of 64 to 159 tokens."""
    generator = np.random.default_rng(rows)
    return [generator.integers(100, vocab_size, 64 + 13 * i % 96).tolist() for i in range(rows)]


def ours(decoder: Engine, rows: int) -> list[list[int]]:
    """Decode the prompts of `rows` rows with the engine."""
    requests = [
        Request(prompt_ids=tuple(ids), max_tokens=NEW, ignore_eos=True)
        for ids in prompts(rows, decoder.model.vocab_size)
    ]
    return [list(done.token_ids) for done in decoder.generate(requests)]


def theirs(model: Any, tokenizer: Any, vocab_size: int, rows: int) -> list[list[int]]:
    """Decode the same prompts with mlx-lm's own calls."""
    if rows == 1:
        (prompt,) = prompts(1, vocab_size)
        answers = stream_generate(model, tokenizer, prompt, max_tokens=NEW)
        return [[answer.token for answer in answers]]
    answer = batch_generate(
        model,
        tokenizer,
        prompts(rows, vocab_size),
        max_tokens=NEW,
        return_token_ids=True,
        completion_batch_size=max(32, rows),
    )
    return [list(ids) for ids in answer.token_ids]


def tokens_per_s(work: Callable[[], list[list[int]]]) -> tuple[float, list[list[int]]]:
    """Run once to warm up and twice to time; returns the faster rate and the ids."""
    rates = []
    for _ in range(3):
        began = time.perf_counter()
        ids = work()
        rates.append(sum(map(len, ids)) / (time.perf_counter() - began))
    return round(max(rates[1:]), 1), ids


def opened(model: LoadedModel, rows: int, fused: str) -> Engine:
    """Open an engine with or without its kernels."""
    os.environ["FM_FUSED"] = fused
    return Engine(model, EngineConfig(max_rows=rows))


def agreement(ids: list[list[int]], others: list[list[int]]) -> list[int]:
    """For each row, how many tokens two answers have in common before they part."""
    pairs = [zip(x, y, strict=True) for x, y in zip(ids, others, strict=True)]
    return [next((i for i, (a, b) in enumerate(pair) if a != b), NEW) for pair in pairs]


def main() -> None:
    """Print one line for each number of rows."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--rows", default="1,4,32,128")
    parser.add_argument("--out", type=Path, default=Path())
    options = parser.parse_args()
    model = load_model(options.model)
    peer, tokenizer = mlx_lm_load(str(model.path))
    tokenizer.eos_token_ids = set()
    results: list[dict[str, Any]] = []
    for rows in map(int, options.rows.split(",")):
        rate, ids = tokens_per_s(partial(ours, opened(model, rows, "1"), rows))
        plain_rate, plain = tokens_per_s(partial(ours, opened(model, rows, "0"), rows))
        peer_rate, _ = tokens_per_s(partial(theirs, peer, tokenizer, model.vocab_size, rows))
        results.append(
            {
                "rows": rows,
                "ours": rate,
                "without_kernels": plain_rate,
                "mlx_lm": peer_rate,
                "ratio": round(rate / peer_rate, 2),
                "tokens_agreed": agreement(ids, plain),
            }
        )
        print(results[-1], flush=True)
        (options.out / "gpu_ends.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
