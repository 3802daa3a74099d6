"""What quantised keys and values change: agreement of ids and logit error, 8 and 4 bit.

    uv run python benchmarks/kv_bits.py [MODEL [MAX_TOKENS]]

Every prompt is continued greedily without quantisation. Then, for each number of bits, the same ids
are forced token by token (is the best-scored token the same after the same text?), and the prompt
is continued freely (how many ids are the same before the texts part?).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import engine  # noqa: F401  # before mlx, for the BLAS

# isort: split
import mlx.core as mx
import numpy as np

from engine.models.load import LoadedModel, load_model
from engine.plan import RowRange
from engine.runner import Runner

PROMPTS = (
    "The capital of France is",
    "Write a short letter to a friend about the weather.",
    "List the first ten prime numbers, one a line:",
    "def fibonacci(n):\n",
    '{"name": "Ada", "born": 1815, "known_for": [',
    "Once upon a time there was a lighthouse keeper who",
    "Water boils at 100 degrees because",
    "Translate to French: good morning, how are you today?",
)


@dataclass(frozen=True, slots=True)
class Agreement:
    """How a quantised cache compares with an unquantised one.

    Args:
        top1: share of forced positions whose best-scored token is the same.
        num_forced: how many forced positions.
        ids: share of freely decoded ids up to the first that differs.
        num_free: how many ids were decoded freely.
        logit_error: mean absolute difference of logits at forced positions, over the mean
            absolute deviation of the unquantised logits from their mean.
    """

    bits: int | None
    top1: float
    num_forced: int
    ids: float
    num_free: int
    logit_error: float


def agreement(
    model: LoadedModel, prompts: Sequence[Sequence[int]], bits: int | None, max_tokens: int
) -> Agreement:
    """Compare a cache of `bits` with an unquantised one on greedy continuations.

    Raises:
        ModelError: the model's keys and values cannot be quantised.
    """
    same_top, same_ids, errors, spreads = 0, 0, [], []
    for prompt in prompts:
        ids, expected = decode(model, None, prompt, max_tokens)
        free, _ = decode(model, bits, prompt, max_tokens)
        _, forced = decode(model, bits, prompt, max_tokens, ids)
        same_top += int((forced.argmax(-1) == expected.argmax(-1)).sum())
        same_ids += next((i for i in range(max_tokens) if ids[i] != free[i]), max_tokens)
        errors.append(np.abs(forced - expected).mean())
        spreads.append(np.abs(expected - expected.mean(-1, keepdims=True)).mean())
    total = len(prompts) * max_tokens
    return Agreement(
        bits=bits,
        top1=same_top / total,
        num_forced=total,
        ids=same_ids / total,
        num_free=total,
        logit_error=float(np.mean(errors) / np.mean(spreads)),
    )


def decode(
    model: LoadedModel,
    bits: int | None,
    prompt: Sequence[int],
    max_tokens: int,
    forced: Sequence[int] = (),
) -> tuple[list[int], np.ndarray]:
    """Return the ids, forced or greedy, and the logits they follow on, [max_tokens, vocab]."""
    runner = Runner(model, kv_bits=bits)
    runner.cache.resize(1, len(prompt) + max_tokens)
    hidden = runner.prefill(mx.array([list(prompt)]), row_at(0, len(prompt)))
    logits = runner.head(hidden)[0]
    ids: list[int] = []
    rows: list[np.ndarray] = []
    for index in range(max_tokens):
        rows.append(np.array(logits.astype(mx.float32)))
        ids.append(forced[index] if forced else int(rows[-1].argmax()))
        start = len(prompt) + index
        logits = runner.forward(mx.array([ids[-1:]]), row_at(start, 1))[0, 0]
    return ids, np.stack(rows)


def row_at(start: int, count: int) -> RowRange:
    """Return where the one row is fed `count` tokens behind `start`."""
    return RowRange(0, (start,), (count,), adapters=(0,))


def main() -> None:
    """Print the table."""
    name = sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m"
    max_tokens = int(sys.argv[2]) if len(sys.argv) > 2 else 64
    model = load_model(name)
    prompts = [model.tokenizer.encode(text) for text in PROMPTS]
    print(f"{name} ({model.dtype}), {len(prompts)} prompts, {max_tokens} greedy tokens each")
    print("bits  same best token, forced  same ids before parting  logit error")
    for bits in (8, 4):
        found = agreement(model, prompts, bits, max_tokens)
        print(
            f"{bits:4d} {found.top1:12.1%} of {found.num_forced:8d}"
            f" {found.ids:12.1%} of {found.num_free:8d} {found.logit_error:12.2%}"
        )


if __name__ == "__main__":
    main()
