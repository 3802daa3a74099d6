"""Kill switches: environment variables that turn one feature off, for comparison or in need.

A switch degrades: whatever works without the feature goes on working, more slowly. It never turns
anything on. docs/switches.md is the table for people.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from engine.config import EngineConfig
from engine.errors import RequestError, SettingError

LOGGER = logging.getLogger("fm")


@dataclass(frozen=True, slots=True)
class Switch:
    """A feature that `NAME=0` turns off.

    Args:
        help: what is turned off.
        degrades_to: what happens in its place.
        off: settings of the engine and the values they take; empty where no setting holds it.
    """

    help: str
    degrades_to: str
    off: Mapping[str, Any] = field(default_factory=dict)

    def changes(self, config: EngineConfig) -> dict[str, Any]:
        """Return the settings that would change."""
        return {name: value for name, value in self.off.items() if getattr(config, name) != value}


SWITCHES: dict[str, Switch] = {
    "FM_SPEC": Switch(
        "speculative decoding", "every token is the target's own", {"num_draft_tokens": 0}
    ),
    "FM_BATCH": Switch("decoding rows together", "one row at a time", {"max_rows": 1}),
    "FM_BATCH_SPEC": Switch(
        "drafts in a batch", "rows with drafts run one at a time", {"spec_batching": "serial"}
    ),
    "FM_GRAMMAR_BATCH": Switch(
        "grammars in a batch",
        "rows with a grammar run one at a time",
        {"grammar_batching": "serial"},
    ),
    "FM_PIPELINE": Switch(
        "launching a step before the last one is read",
        "a step is launched when the last one has been read",
        {"pipelined": False},
    ),
    "FM_ADAPTIVE_DRAFTS": Switch(
        "draft budgets that adapt",
        "num_draft_tokens drafts in every step",
        {"draft_budgets": "fixed"},
    ),
    "FM_REJECTION": Switch(
        "acceptance by rejection sampling",
        "a draft is accepted when it is the target's own choice",
        {"acceptance": "match"},
    ),
    "FM_PREFIX_CACHE": Switch(
        "reuse of cached prefixes", "every prompt is computed whole", {"prefix_cache_bytes": 0}
    ),
    "FM_KV_QUANT": Switch(
        "quantised keys and values", "they are kept as the model computes them", {"kv_bits": None}
    ),
    "FM_LORA": Switch("LoRA adapters", "requests that name one are refused", {"adapters": ()}),
    "FM_TILED_WEIGHTS": Switch(
        "weights kept as the BLAS reads them fastest",
        "weights as they come, in models that are loaded from then on",
    ),
    "FM_VECTOR_MATH": Switch(
        "softmax and SwiGLU from plain arithmetic on a CPU",
        "MLX's own, in models that are loaded from then on",
    ),
    "FM_FUSED": Switch("fused decode steps on CUDA", "steps go through the model's own layers"),
}
"""Every switch by its variable; its values are 0, off, and 1, which is as if it were not set."""


def is_off(name: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether a switch is off; unset and empty are on.

    Raises:
        SettingError: it has another value than 0 or 1.
    """
    value = environ.get(name) or "1"
    if value not in ("0", "1"):
        raise SettingError(f"{name} is {value!r}; it must be 0 (off) or 1")
    return value == "0"


def switched_off(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the names of the switches that are off, in the order of SWITCHES.

    Raises:
        SettingError: a switch has another value than 0 or 1.
    """
    return tuple(name for name in SWITCHES if is_off(name, environ))


def degrade(config: EngineConfig, environ: Mapping[str, str] = os.environ) -> EngineConfig:
    """Return `config` without the features that are switched off, each told once a process.

    Raises:
        SettingError: a switch has another value than 0 or 1.
    """
    for name in switched_off(environ):
        changes = SWITCHES[name].changes(config)
        if changes:
            _tell(name)
            config = replace(config, **changes)
    return config


def allows(name: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether the feature of a switch may be used; tells once a process when it may not.

    Raises:
        SettingError: the switch has another value than 0 or 1.
    """
    if not is_off(name, environ):
        return True
    _tell(name)
    return False


def check_adapter(adapter: str, environ: Mapping[str, str] = os.environ) -> None:
    """Raise RequestError when a request names an adapter and adapters are switched off."""
    if adapter and is_off("FM_LORA", environ):
        raise RequestError(
            f"adapter {adapter!r} cannot be used while FM_LORA=0 switches adapters off; unset "
            "FM_LORA, or drop the adapter"
        )


@cache
def _tell(name: str) -> None:
    switch = SWITCHES[name]
    LOGGER.warning("%s=0 switches %s off: %s", name, switch.help, switch.degrades_to)
