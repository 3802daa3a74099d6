"""Replay look-up drafting policies on recorded greedy texts: exact counts, no timings.

    uv run python benchmarks/ngram.py [PROMPTS]

Records what SmolLM2-135M writes for the first PROMPTS (8) prompts of each core workload,
json-extract under its schemas and the others cut at 64 tokens, then walks every text with each
policy as a verify loop would. Prints tokens a step, and the gain over plain steps when a step of
2, 4 or 8 positions costs 1.1, 1.3 or 1.6 plain ones (benchmarks/layouts.py) and drafting
6 % host work.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from engine.config import EngineConfig
from engine.draft.ngram import DRAFTS_BY_MATCH
from engine.loop import Engine
from engine.models.load import load_model
from engine.request import Request
from engine.shapes import step_width
from harness.workloads.workload import load_workload

BUDGET, CAP = 7, 64
COST = {1: 1.0, 2: 1.1, 4: 1.3, 8: 1.6}
HOST = 0.06

POLICIES: dict[str, tuple[int, int, int]] = {
    "7 on any match": (7, 7, 7),
    "7 from two tokens on": (0, 7, 7),
    "as shipped": DRAFTS_BY_MATCH,
}
"""Drafts on a match of one, two and three tokens."""


def draft(ids: list[int], lengths: tuple[int, ...]) -> list[int]:
    """What followed the longest most recent match, by brute force."""
    for length in range(len(lengths), 0, -1):
        suffix = ids[len(ids) - length :]
        for end in range(len(ids) - 1, length - 1, -1):
            if ids[end - length : end] == suffix:
                return ids[end : end + lengths[length - 1]]
    return []


def walk(prompt: list[int], text: list[int], lengths: tuple[int, ...]) -> tuple[int, float]:
    """Return the verify steps a text takes behind its first token, and their price."""
    done, steps, price = 1, 0, 0.0
    while done < len(text):
        guess = draft(prompt + text[:done], lengths)[: min(BUDGET, len(text) - done - 1)]
        agreed = 0
        while agreed < len(guess) and guess[agreed] == text[done + agreed]:
            agreed += 1
        steps, price = steps + 1, price + COST[step_width(1 + len(guess))] + HOST
        done += agreed + 1
    return steps, price


def record(say: Callable[[str], None], count: int) -> dict[str, list[tuple[list[int], list[int]]]]:
    """Return (prompt, text) ids of each workload."""
    model = load_model("smollm2-135m")
    engine = Engine(model, EngineConfig(max_rows=4))
    texts = {}
    for name in ("json-extract", "short-chat", "long-form"):
        say(f"recording {name}")
        workload = load_workload(name)
        cap = workload.max_tokens if workload.is_constrained else CAP
        requests = [
            Request(
                prompt_ids=tuple(model.tokenizer.apply_chat_template(prompt.messages)),
                max_tokens=cap,
                constraint=prompt.constraint,
            )
            for prompt in workload.prompts[:count]
        ]
        done = engine.generate(requests)
        texts[name] = [
            (list(request.prompt_ids), list(completion.token_ids))
            for request, completion in zip(requests, done, strict=True)
        ]
    return texts


def main() -> None:
    """Print the table."""
    texts = record(print, int(sys.argv[1]) if len(sys.argv) > 1 else 8)
    for policy, lengths in POLICIES.items():
        cells = []
        for name, rows in texts.items():
            tokens = sum(len(text) - 1 for _, text in rows)
            walks = [walk(prompt, text, lengths) for prompt, text in rows]
            steps, price = sum(w[0] for w in walks), sum(w[1] for w in walks)
            cells.append(f"{name} {tokens / steps:.2f}, {tokens / price:.2f}")
        print(f"{policy:<22} {'   '.join(cells)}")


if __name__ == "__main__":
    main()
