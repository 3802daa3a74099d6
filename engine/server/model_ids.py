"""The ids of `/v1/models`: the model itself, and its LoRA adapters as models of their own."""

from __future__ import annotations

from engine.config import EngineConfig, adapter_places
from engine.errors import SettingError
from engine.server.problem import HttpError


def check_ids(name: str, config: EngineConfig) -> None:
    """Raise SettingError when an adapter has the model's own id."""
    if name in adapter_places(config.adapters):
        raise SettingError(
            f"adapters has the name {name!r}, which is the model's; give it another, NAME=FOLDER"
        )


def ids_of(name: str, config: EngineConfig | None) -> tuple[str, ...]:
    """Return the ids, the model's own first.

    Args:
        name: the model's id.
        config: None before the engine is open.
    """
    return (name, *adapter_places(() if config is None else config.adapters))


def adapter_of(wanted: str, name: str, config: EngineConfig | None) -> str:
    """Return the adapter an id stands for, "" for the model itself.

    Raises:
        HttpError: there is no such model.
    """
    known = ids_of(name, config)
    if wanted not in known:
        raise HttpError(
            404,
            f"the model {wanted[:60]!r} is not served here; served: {', '.join(known)}",
            param="model",
            code="model_not_found",
        )
    return "" if wanted == name else wanted
