"""The closed set of draft sources, and how each is built from the engine's settings."""

from __future__ import annotations

from collections.abc import Callable

from engine.config import EngineConfig
from engine.draft.ngram import NgramDrafter
from engine.draft.source import DraftSource
from engine.draft.two_model import TwoModelDrafter
from engine.errors import SettingError, UnknownNameError
from engine.models.load import LoadedModel

Factory = Callable[[EngineConfig, LoadedModel | None], DraftSource]


def _two_model(config: EngineConfig, model: LoadedModel | None) -> DraftSource:
    if model is None:
        raise SettingError("drafter 'two_model' needs a draft model; set draft_model")
    return TwoModelDrafter(model, config.prefill_chunk, config.acceptance)


DRAFTERS: dict[str, Factory] = {
    "ngram": lambda _config, _model: NgramDrafter(),
    "two_model": _two_model,
}


def build_drafter(config: EngineConfig, model: LoadedModel | None = None) -> DraftSource | None:
    """Return the drafter the settings ask for, None when speculation is off."""
    if config.num_draft_tokens == 0:
        return None
    if config.drafter not in DRAFTERS:
        raise UnknownNameError("drafter", config.drafter, DRAFTERS)
    return DRAFTERS[config.drafter](config, model)
