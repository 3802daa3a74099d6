"""A seed is a row's own: neither company, order, history nor a new engine changes what it draws."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from engine.config import EngineConfig
from engine.draft.registry import build_drafter
from engine.loop import Engine
from engine.request import Constraint, ConstraintKind, Request
from engine.testing import request_for, tiny_model

LANES = {
    "serial": EngineConfig(),
    "batch": EngineConfig(max_rows=4),
    "serial+spec": EngineConfig(num_draft_tokens=3, draft_budgets="fixed"),
    "batch+spec": EngineConfig(max_rows=4, num_draft_tokens=3, draft_budgets="fixed"),
}
GRAMMARS = {
    "free": None,
    "grammar": Constraint(kind=ConstraintKind.REGEX, value="[a-h ]{20}"),
}
Ids = tuple[int, ...]


def story(seed: int | None, constraint: Constraint | None = None, text: str = "a tale") -> Request:
    """A sampled row."""
    return request_for(
        tiny_model(),
        text,
        max_tokens=24,
        ignore_eos=constraint is None,
        constraint=constraint,
        temperature=1.0,
        seed=seed,
    )


def others(count: int, seed: int | None) -> list[Request]:
    """Neighbours of many lengths, none with the seed under test."""
    return [
        story(None if seed is None else seed + i, text="once upon a time " * (1 + i % 5))
        for i in range(count)
    ]


def alone(engine: Engine, row: Request) -> Ids:
    return engine.generate([row])[0].token_ids


def beside(neighbours: list[Request], place: int) -> Callable[[Engine, Request], Ids]:
    """Run a row at some place among others."""

    def ids(engine: Engine, row: Request) -> Ids:
        rows = [*neighbours[:place], row, *neighbours[place:]]
        return engine.generate(rows)[place].token_ids

    return ids


def after_many(engine: Engine, row: Request) -> Ids:
    engine.generate([replace(other, max_tokens=2) for other in others(100, seed=900)])
    return alone(engine, row)


ARRANGEMENTS: dict[str, Callable[[Engine, Request], Ids]] = {
    "beside rows without seeds": beside(others(3, seed=None), place=0),
    "beside rows of other seeds": beside(others(3, seed=500), place=0),
    "in another place": beside(others(3, seed=500), place=2),
    "waiting for a slot": beside(others(6, seed=500), place=6),
    "after a hundred requests": after_many,
    "once more": lambda engine, row: (alone(engine, row), alone(engine, row))[1],
}


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@pytest.mark.parametrize("grammar", GRAMMARS)
@pytest.mark.parametrize("lane", LANES)
def test_a_seed_gives_the_same_tokens_in_every_arrangement(
    lane: str, grammar: str, arrangement: str
) -> None:
    def opened() -> Engine:
        return Engine(tiny_model(), LANES[lane], build_drafter(LANES[lane]))

    first, second = (story(seed, GRAMMARS[grammar]) for seed in (42, 43))
    expected = alone(Engine(tiny_model(), EngineConfig()), first)
    assert ARRANGEMENTS[arrangement](opened(), first) == expected
    assert ARRANGEMENTS[arrangement](opened(), second) != expected


@pytest.mark.parametrize("lane", LANES)
def test_rows_without_a_seed_vary_and_tell_the_seed_that_repeats_them(lane: str) -> None:
    engine = Engine(tiny_model(), LANES[lane], build_drafter(LANES[lane]))
    done = engine.generate([story(None) for _ in range(5)])
    assert len({completion.token_ids for completion in done}) > 1
    again = [alone(engine, story(completion.seed)) for completion in done]
    assert again == [completion.token_ids for completion in done]
