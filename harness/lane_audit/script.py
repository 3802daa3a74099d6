"""Random scripts of the batch lane: who joins and who is cancelled when, all from one seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine.config import MAX_DRAFT_TOKENS, EngineConfig
from engine.costs import StepCosts, step_costs
from engine.request import Constraint, ConstraintKind, Request, SamplingParams

SCHEMAS: tuple[dict[str, Any], ...] = (
    {"type": "integer", "minimum": 0, "maximum": 999},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
    {"enum": ["red", "green", {"shade": 3}]},
    {"type": "string", "pattern": "^[a-d]{2,6}$"},
    {
        "type": "object",
        "properties": {
            "k": {"enum": ["aa", "ab", "b"]},
            "n": {"type": "integer", "minimum": 0, "maximum": 99},
        },
        "required": ["k", "n"],
        "additionalProperties": False,
    },
)
DRAFTS_PAY = step_costs({(1, 1): 1.0, (1, 2): 1.1, (1, 4): 1.3, (1, 8): 1.6}, ahead=0.06)
DRAFTS_COST = step_costs({(1, 1): 1.0, (1, 2): 2.0, (1, 4): 4.0, (1, 8): 8.0}, ahead=0.2)
SCRIPTED = "scripted"
"""A drafter that is told what the row will say and gets some of it wrong."""


@dataclass(frozen=True, slots=True)
class Join:
    """Submit a request `copies` times; 1 is a plain submission."""

    request: Request
    copies: int = 1

    @property
    def rows(self) -> tuple[Request, ...]:
        """The requests as their rows carry them: ids and seeds of copies are their own."""
        if self.copies == 1:
            return (self.request,)
        return tuple(_copy(self.request, index) for index in range(self.copies))


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancel one of the rows submitted so far, finished or not; `which` wraps around."""

    which: int


@dataclass(frozen=True, slots=True)
class Action:
    """What happens at a step.

    Args:
        during: done by another thread while the step runs, instead of before it.
    """

    step: int
    does: Join | Cancel
    during: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How large scripts get on one model.

    Args:
        ids: token ids that prompts are cut from.
        stops: texts that a row may stop at.
        longest_prompt: in tokens; lengths are spread evenly over their logarithm.
        max_tokens: of most rows; one in ten may emit `long_reply`, to outgrow the cache.
        drafters: names in engine.draft.DRAFTERS, and SCRIPTED.
    """

    ids: Sequence[int]
    stops: Sequence[str]
    longest_prompt: int
    max_tokens: int
    long_reply: int
    joins: tuple[int, int]
    drafters: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """One engine, and what is asked of it.

    Args:
        costs: prices for adaptive draft budgets.
        kv_slots: a KV budget of so many of the script's longest rows; None sets none.
        prefix_tokens: a prefix cache of so many tokens; 0 is off.
    """

    seed: int
    config: EngineConfig
    drafter: str
    costs: StepCosts
    kv_slots: int | None
    prefix_tokens: int
    actions: tuple[Action, ...]

    @property
    def rows(self) -> list[Request]:
        """Every row that is ever submitted."""
        joins = [action.does for action in self.actions if isinstance(action.does, Join)]
        return [row for join in joins for row in join.rows]


def tiny_limits() -> Limits:
    """Return the limits of scripts on the tiny model: long prompts, every drafter."""
    turns = [(7 * i * i + i // 11) % 90 + 33 for i in range(700)]
    return Limits(
        ids=[*turns, *range(256), *turns[:300], *turns, *turns[100:500]],
        stops=[*"aeioux!?#", "th", "12"],
        longest_prompt=2000,
        max_tokens=48,
        long_reply=600,
        joins=(3, 10),
        drafters=("ngram", SCRIPTED, "two_model"),
    )


def text_limits(ids: Sequence[int]) -> Limits:
    """Return the limits of scripts on a real model: prompts cut from a text's token ids."""
    return Limits(
        ids=ids,
        stops=[",", ".", " the", " of", "\n", " and", "s "],
        longest_prompt=300,
        max_tokens=24,
        long_reply=24,
        joins=(3, 6),
        drafters=("ngram", "two_model"),
    )


def make_script(seed: int, limits: Limits) -> Script:
    """Return the script of a seed."""
    rng = random.Random(seed)
    config = _config(rng)
    num_joins = rng.randint(*limits.joins)
    last = rng.choice((0, 10, 40))
    joins = [
        Action(rng.randint(0, last), random_join(rng, limits, f"r{i}"), _is(rng))
        for i in range(num_joins)
    ]
    cancels = [
        Action(rng.randint(1, last + 40), Cancel(rng.randrange(1000)), _is(rng))
        for _ in range(rng.randint(0, num_joins // 2))
    ]
    actions = sorted([*joins, *cancels], key=lambda action: action.step)
    return Script(
        seed=seed,
        config=config,
        drafter=rng.choice(limits.drafters),
        costs=rng.choice((DRAFTS_PAY, DRAFTS_COST)),
        kv_slots=rng.choice((None, None, 1, 2, 4)),
        prefix_tokens=rng.choice((0, 0, 400, 8000)),
        actions=tuple(actions),
    )


def random_join(rng: random.Random, limits: Limits, request_id: str) -> Join:
    """Return a request of random shape, or a few copies of one."""
    return Join(_request(rng, limits, request_id), _copies(rng))


def _config(rng: random.Random) -> EngineConfig:
    return EngineConfig(
        max_rows=rng.randint(2, 8),
        num_draft_tokens=rng.choice((0, 3, MAX_DRAFT_TOKENS // 2, MAX_DRAFT_TOKENS)),
        spec_batching=rng.choice(("batched", "batched", "serial")),
        grammar_batching=rng.choice(("batched", "batched", "batched", "serial")),
        pipelined=rng.random() < 0.75,
        prefill_chunk=rng.choice((16, 100, 512)),
        interleaved_prefill=rng.choice((8, 64, 128)),
        draft_budgets=rng.choice(("fixed", "adaptive")),
    )


def _request(rng: random.Random, limits: Limits, request_id: str) -> Request:
    constraint = _constraint(rng) if _is(rng) else None
    some = rng.randint(2, limits.max_tokens)
    usual = (1, some, some, limits.max_tokens, limits.max_tokens)
    max_tokens = rng.choice((*usual, *usual[1:], limits.long_reply))
    is_free = constraint is None
    return Request(
        prompt_ids=_prompt(rng, limits),
        max_tokens=max_tokens,
        sampling=_sampling(rng, max_tokens),
        constraint=constraint,
        stop=tuple(rng.sample(list(limits.stops), 6)) if is_free and _is(rng) else (),
        ignore_eos=is_free and rng.random() < 0.7,
        num_draft_tokens=rng.choice((None, None, 0, 1, 3, 7)),
        request_id=request_id,
        cache_salt=rng.choice(("", "", "", "other")),
    )


def _prompt(rng: random.Random, limits: Limits) -> tuple[int, ...]:
    """Cut a prompt; half of them begin alike, for the prefix cache."""
    length = int((limits.longest_prompt + 0.99) ** rng.random())
    start = 0 if rng.random() < 0.5 else rng.randrange(len(limits.ids) - length)
    return tuple(limits.ids[start : start + length])


def _constraint(rng: random.Random) -> Constraint:
    return Constraint(kind=ConstraintKind.JSON_SCHEMA, value=rng.choice(SCHEMAS))


def _sampling(rng: random.Random, max_tokens: int) -> SamplingParams:
    logprobs = _is(rng)
    return SamplingParams(
        temperature=rng.choice((0.0, 0.7, 1.2)),
        top_k=_mostly(rng, 0, lambda: rng.choice((1, 5, 40))),
        top_p=_mostly(rng, 1.0, lambda: rng.choice((0.5, 0.9))),
        min_p=_mostly(rng, 0.0, lambda: 0.05),
        repetition_penalty=_mostly(rng, 1.0, lambda: 1.2),
        presence_penalty=_mostly(rng, 0.0, lambda: 0.4),
        frequency_penalty=_mostly(rng, 0.0, lambda: 0.3),
        seed=rng.randrange(2**40),
        logprobs=logprobs,
        top_logprobs=rng.choice((0, 2)) if logprobs else 0,
        min_tokens=_mostly(rng, 0, lambda: rng.randint(1, max_tokens)),
    )


def _mostly(rng: random.Random, usual: Any, other: Callable[[], Any]) -> Any:
    return other() if rng.random() < 0.25 else usual


def _is(rng: random.Random) -> bool:
    return rng.random() < 0.3


def _copies(rng: random.Random) -> int:
    return rng.choice((1, 1, 1, 1, 2, 3))


def _copy(request: Request, index: int) -> Request:
    seed = (request.sampling.seed or 0) + index
    return replace(
        request,
        request_id=f"{request.request_id}/{index}",
        sampling=replace(request.sampling, seed=seed),
    )
