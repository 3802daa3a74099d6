"""From what a person asks for to an open engine: the target, its drafter, one set of settings.

What computes is imported when it is needed, so that a wrong setting is told at once.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from engine.config import EngineConfig
from engine.errors import SettingError
from engine.models.entry import find_entry
from harness.downloads import fetching_to

if TYPE_CHECKING:
    from engine.loop import Engine
    from engine.models.load import LoadedModel


def engine_config(values: Mapping[str, Any]) -> EngineConfig:
    """Return the settings of an engine from the flags that were given.

    A draft model drafts unless another kind is named.

    Raises:
        SettingError: a value is out of bounds, or a drafter is named and drafts nothing.
    """
    given = dict(values)
    if "draft_model" in given:
        given.setdefault("drafter", "two_model")
    config = EngineConfig.from_mapping(given)
    if "drafter" in given and config.num_draft_tokens == 0:
        raise SettingError(
            f"the drafter {config.drafter!r} is named and num_draft_tokens is 0; "
            "set --num-draft-tokens"
        )
    if config.draft_model is not None and config.drafter != "two_model":
        raise SettingError(
            f"draft_model is {config.draft_model!r} and the drafter is {config.drafter!r}, which "
            "loads no model; drop one of them"
        )
    return config


def served_name(model: str) -> str:
    """Return a model's id for clients: its name, or the last part of a path, which is private.

    Raises:
        UnknownNameError: no such model.
        ModelError: it looks like a path, and nothing is there.
    """
    entry = find_entry(model)
    return PurePath(entry.place).name if entry.kind == "path" else entry.name


def open_engine(model: str, config: EngineConfig) -> Engine:
    """Fetch what is missing, load, and open an engine, in the thread that will step it."""
    from engine.draft.registry import build_drafter
    from engine.loop import Engine

    target = _load(model)
    if config.draft_model is None or config.num_draft_tokens == 0:
        draft = None
    else:
        draft = target if config.draft_model == model else _load(config.draft_model)
    return Engine(target, config, build_drafter(config, draft))


def _load(name: str) -> LoadedModel:
    from engine.models.load import load_model
    from engine.models.registry import pull

    pull(name, fetching_to(sys.stderr)(name))
    return load_model(name)
