"""Every engine setting, once: default, bounds and help live in the field, and nowhere else.

Command line flags, TOML keys, documentation and error messages are made from these fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from engine.errors import SettingError

CAPACITY_BLOCK = 256
"""Cache positions are allocated in blocks of this many tokens, so that shapes are stable."""

STEP_WIDTHS = (1, 2, 4, 8, 16)
"""Positions a row may take in a decode step; a plan is padded up to the next of these."""

MAX_DRAFT_TOKENS = STEP_WIDTHS[-1] - 1
"""Drafts that fit a step behind the row's last token."""


def setting(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] | None = None,
) -> Any:
    """Return a dataclass field whose metadata carries the setting's help text and bounds."""
    metadata = {"help": help, "low": low, "high": high, "choices": choices}
    return field(default=default, metadata=metadata)


def check_settings(config: Any) -> None:
    """Raise SettingError when a field of `config` is not of its type or breaks its bounds."""
    for item in fields(config):
        value, meta = getattr(config, item.name), item.metadata
        low, high, choices = meta.get("low"), meta.get("high"), meta.get("choices")
        if choices is not None and value not in choices:
            raise SettingError(f"{item.name} is {value!r}; it must be one of {', '.join(choices)}")
        if item.type == "bool" and not isinstance(value, bool):
            raise SettingError(f"{item.name} is {value!r}; it must be true or false")
        if value is None or (low is None and high is None):
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise SettingError(f"{item.name} is {value!r}; it must be a number")
        if isinstance(value, float) and "float" not in str(item.type):
            raise SettingError(f"{item.name} is {value!r}; it must be a whole number")
        if not ((low is None or value >= low) and (high is None or value <= high)):
            raise SettingError(f"{item.name} is {value!r}; it must be between {low} and {high}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How one engine runs. A lane is nothing but a choice of these values."""

    max_rows: int = setting(1, "rows decoded together; 1 is the serial lane", low=1, high=128)
    drafter: str = setting("ngram", "draft source: a name in engine.draft.DRAFTERS")
    draft_model: str | None = setting(None, "model a two_model drafter loads")
    num_draft_tokens: int = setting(
        0,
        "most tokens drafted for a row in one step; 0 turns speculation off",
        low=0,
        high=MAX_DRAFT_TOKENS,
    )
    spec_batching: str = setting(
        "serial",
        "where requests with drafts run when max_rows is above 1",
        choices=("serial", "batched"),
    )
    acceptance: str = setting(
        "match",
        "match keeps the ids of plain decoding, rejection its distribution and more drafts",
        choices=("match", "rejection"),
    )
    prefill_chunk: int = setting(
        512, "most prompt tokens of one row taken into one step", low=1, high=8192
    )
    pipelined: bool = setting(
        True, "launch the next plain step before the last one is read by the host"
    )

    def __post_init__(self) -> None:
        check_settings(self)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> EngineConfig:
        """Build a config from TOML or flag values; an unknown key raises SettingError."""
        known = {item.name for item in fields(cls)}
        for key in values:
            if key not in known:
                raise SettingError(f"unknown setting {key!r}; known: {', '.join(sorted(known))}")
        return cls(**values)
