"""The composition matrix: which lane a request takes, and why. The single routing point.

Each rule is one predicate; the first that holds decides. A feature is carried, routed or refused
with a clear error; it is never dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from engine.config import EngineConfig
from engine.errors import RequestError
from engine.request import Request


class Lane(StrEnum):
    """Where a row decodes: alone, or together with others."""

    SERIAL = "serial"
    BATCH = "batch"


@dataclass(frozen=True, slots=True)
class Route:
    """The lane a request takes.

    Args:
        draft_budget: most tokens drafted for the row in a step.
    """

    lane: Lane
    reason: str
    draft_budget: int


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of the composition matrix; `holds` sees settings, request and draft budget."""

    holds: Callable[[EngineConfig, Request, int], bool]
    lane: Lane
    reason: str


def _has_one_row(config: EngineConfig, _request: Request, _draft_budget: int) -> bool:
    return config.max_rows == 1


def _asks_to_be_alone(_config: EngineConfig, request: Request, _draft_budget: int) -> bool:
    return request.lane == Lane.SERIAL


def _drafts_alone(config: EngineConfig, request: Request, draft_budget: int) -> bool:
    return draft_budget > 0 and (request.spec_batching or config.spec_batching) == "serial"


def _grammar_alone(config: EngineConfig, request: Request, _draft_budget: int) -> bool:
    return request.constraint is not None and config.grammar_batching == "serial"


def _is_carried(_config: EngineConfig, _request: Request, _draft_budget: int) -> bool:
    return True


RULES: tuple[Rule, ...] = (
    Rule(_has_one_row, Lane.SERIAL, "the engine has one row"),
    Rule(_asks_to_be_alone, Lane.SERIAL, "the request asks for the serial lane"),
    Rule(_drafts_alone, Lane.SERIAL, "drafts run one row at a time: spec_batching is serial"),
    Rule(_grammar_alone, Lane.SERIAL, "grammars run one row at a time: grammar_batching is serial"),
    Rule(_is_carried, Lane.BATCH, "every feature of the request is carried per row"),
)


def route(config: EngineConfig, request: Request) -> Route:
    """Return the lane of `request` on an engine with these settings.

    Raises:
        RequestError: it asks for the batch lane and must run alone.
    """
    asked = request.num_draft_tokens
    budget = config.num_draft_tokens if asked is None else min(asked, config.num_draft_tokens)
    rule = next(rule for rule in RULES if rule.holds(config, request, budget))
    if request.lane == Lane.BATCH and rule.lane is Lane.SERIAL:
        raise RequestError(
            f"lane is 'batch', and {rule.reason}; leave lane out or ask for 'serial'"
        )
    return Route(rule.lane, rule.reason, budget)
