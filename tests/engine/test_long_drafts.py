"""Long drafted replies, far past a window, are those of the plain lane whoever drafts.

A cache that forgot a rejected draft wrongly, in one layer, or drifts by one position a round, shows
only after many rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import pytest

from engine.config import EngineConfig
from engine.draft.registry import build_drafter
from engine.draft.source import DraftSource
from engine.draft.two_model import TwoModelDrafter
from engine.loop import Engine
from engine.request import Request
from tests.engine.cache.families import WINDOW, family

TOKENS = 150
PROMPT = tuple(33 + (7 * i * i) % 60 for i in range(60))
SHAPES = ((1, 4), (3, 1), (3, 4), (3, 15))
"""Rows and drafts."""


@dataclass(frozen=True)
class Cache:
    """What a target keeps."""

    name: str
    kv_bits: int | None = None


CACHES = {
    "plain": Cache("llama"),
    "window": Cache("gemma3_text"),
    "quantised": Cache("llama", kv_bits=8),
}
DRAFTERS: dict[str, Callable[[EngineConfig], DraftSource | None]] = {
    "ngram": build_drafter,
    "other weights": lambda config: build_drafter(config, family("llama", seed=9)),
    "its own weights": lambda config: build_drafter(config, family("llama")),
}


def rows() -> list[Request]:
    """One row that goes far past the window, and two beside it."""
    return [
        Request(prompt_ids=PROMPT, max_tokens=TOKENS, ignore_eos=True),
        Request(prompt_ids=PROMPT[: WINDOW - 3], max_tokens=70, ignore_eos=True),
        Request(prompt_ids=PROMPT[5 : 3 * WINDOW], max_tokens=40, ignore_eos=True),
    ]


@cache
def plain(name: str) -> list[tuple[int, ...]]:
    """The ids of every row by itself, without drafts."""
    engine = Engine(family(CACHES[name].name), EngineConfig(kv_bits=CACHES[name].kv_bits))
    return [engine.generate([row])[0].token_ids for row in rows()]


@pytest.mark.parametrize(("max_rows", "budget"), SHAPES)
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("held", CACHES)
def test_long_replies_are_those_of_the_plain_lane(
    held: str, drafter: str, budget: int, max_rows: int
) -> None:
    config = EngineConfig(
        max_rows=max_rows,
        num_draft_tokens=budget,
        drafter="ngram" if drafter == "ngram" else "two_model",
        draft_budgets="fixed",
        kv_bits=CACHES[held].kv_bits,
    )
    source = DRAFTERS[drafter](config)
    engine = Engine(family(CACHES[held].name), config, source)
    names = [engine.submit(row) for row in rows()]
    while engine.has_work:
        engine.step()
        for row in engine._live.values():
            if not row.is_prefilling:
                assert row.num_cached == len(row.ids) - 1
        if isinstance(source, TwoModelDrafter):
            assert all(each.num_cached < len(each.sequence.ids) for each in source._table)
    assert [engine.completion(name).token_ids for name in names] == plain(held)


@pytest.mark.parametrize("max_rows", [1, 3])
def test_a_drafter_of_the_targets_weights_is_right_to_the_end(max_rows: int) -> None:
    config = EngineConfig(
        max_rows=max_rows, num_draft_tokens=4, drafter="two_model", draft_budgets="fixed"
    )
    engine = Engine(family("llama"), config, build_drafter(config, family("llama")))
    for done in engine.generate(rows()):
        assert done.accepted == done.drafted > 0
        assert done.target_calls <= 1 + len(done.token_ids) / (1 + config.num_draft_tokens)
