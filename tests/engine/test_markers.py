"""What one row is asked for never turns up in another, over many rounds on one engine.

All prompts of a round begin alike and differ in their last line, and every row may only say its
own marker: a mask, a slot or a cached prefix that went to the wrong row shows at once.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from engine.config import EngineConfig
from engine.draft.registry import build_drafter
from engine.loop import Engine
from engine.oracle import Oracle
from engine.request import Constraint, ConstraintKind, FinishReason, Request
from engine.testing import tiny_model

ROUNDS, ROWS = 5, 8
TRUNK = "Answer with the word of the last line and nothing else.\n" * 7
SHARED = len(TRUNK) // 64 * 64
LANES = {
    "serial": EngineConfig(),
    "batch": EngineConfig(max_rows=ROWS),
    "batch, small chunks": EngineConfig(max_rows=3, prefill_chunk=48, interleaved_prefill=32),
    "batch+spec": EngineConfig(max_rows=ROWS, num_draft_tokens=3, draft_budgets="fixed"),
}


def marker(round_: int, row: int) -> str:
    """A word that no other row of any round has, none the beginning of another."""
    return f"MARK-{round_}{row}-{random.Random(10 * round_ + row).randrange(10**6, 10**7)}"


def rows_of(round_: int) -> list[Request]:
    """The rows of a round, in an order of its own."""
    words = [marker(round_, row) for row in range(ROWS)]
    random.Random(round_).shuffle(words)
    encode = tiny_model().tokenizer.encode
    return [
        Request(
            prompt_ids=tuple(encode(f"{TRUNK}{word}\n")),
            max_tokens=30,
            constraint=Constraint(kind=ConstraintKind.JSON_SCHEMA, value={"enum": [word]}),
        )
        for word in words
    ]


@pytest.mark.parametrize("prefix_bytes", [0, 10**8], ids=["no prefix cache", "prefix cache"])
@pytest.mark.parametrize("lane", LANES)
def test_every_row_says_its_own_marker_and_no_other(lane: str, prefix_bytes: int) -> None:
    config = replace(LANES[lane], prefix_cache_bytes=prefix_bytes)
    engine, oracle = Engine(tiny_model(), config, build_drafter(config)), Oracle(tiny_model())
    for round_ in range(ROUNDS):
        requests = rows_of(round_)
        completions = engine.generate(requests)
        for request, done in zip(requests, completions, strict=True):
            assert request.constraint is not None
            assert done.finish_reason is FinishReason.STOP
            assert done.text == f'"{request.constraint.value["enum"][0]}"'
        if round_ == 0:
            assert [list(done.token_ids) for done in completions] == [
                oracle.generate(request) for request in requests
            ]
    cached = engine.stats().prefix.cached_tokens
    assert cached >= (ROUNDS - 1) * ROWS * SHARED if prefix_bytes else cached == 0
