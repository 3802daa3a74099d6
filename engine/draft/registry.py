"""The closed set of draft sources, and how one and its budgets are made from the settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from engine.config import EngineConfig
from engine.costs import StepCosts
from engine.draft.budget import DraftBudgets
from engine.draft.ngram import NgramDrafter
from engine.draft.source import DraftSource
from engine.draft.two_model import TwoModelDrafter
from engine.errors import SettingError
from engine.models.load import LoadedModel
from engine.profile import profile_steps
from engine.runner import Runner
from engine.shapes import step_width

Factory = Callable[[EngineConfig, LoadedModel | None], DraftSource]


def _two_model(config: EngineConfig, model: LoadedModel | None) -> DraftSource:
    if model is None:
        raise SettingError("drafter 'two_model' needs a draft model; set draft_model")
    drafter = TwoModelDrafter(model, config.prefill_chunk, config.acceptance)
    drafter.warm_up(config.max_rows)
    return drafter


DRAFTERS: dict[str, Factory] = {
    "ngram": lambda _config, _model: NgramDrafter(),
    "two_model": _two_model,
}
"""What the setting `drafter` chooses among; a test holds the two together."""


def build_drafter(config: EngineConfig, model: LoadedModel | None = None) -> DraftSource | None:
    """Return the drafter the settings ask for, None when speculation is off."""
    if config.num_draft_tokens == 0:
        return None
    return DRAFTERS[config.drafter](config, model)


def build_budgets(
    config: EngineConfig,
    runner: Runner,
    drafter: DraftSource | None,
    costs: StepCosts | None = None,
) -> DraftBudgets | None:
    """Return what adapts the draft budgets; None when they are fixed, or nothing drafts.

    Args:
        costs: prices to go by; None measures them on `runner` and the drafter, which waits for the
            device.
    """
    if config.draft_budgets == "fixed" or drafter is None:
        return None
    return DraftBudgets(costs or _measured_costs(config, runner, drafter))


def _measured_costs(config: EngineConfig, runner: Runner, drafter: DraftSource) -> StepCosts:
    costs = profile_steps(runner, config.max_rows, step_width(1 + config.num_draft_tokens))
    return replace(
        costs,
        ahead=costs.ahead if config.pipelined else 0.0,
        drafted=drafter.token_s(config.max_rows),
    )
