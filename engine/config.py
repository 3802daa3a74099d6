"""Every engine setting, once: default, bounds and help live in the field, and nowhere else.

Command line flags, TOML keys, documentation and error messages are made from these fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import PurePath
from typing import Any

from engine.backend import prefill_columns
from engine.errors import SettingError
from engine.shapes import STEP_WIDTHS

MAX_DRAFT_TOKENS = STEP_WIDTHS[-1] - 1
"""Drafts that fit a step behind the row's last token."""


def setting(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str | int, ...] | None = None,
) -> Any:
    """Return a dataclass field whose metadata carries the setting's help text and bounds."""
    metadata = {"help": help, "low": low, "high": high, "choices": choices}
    return field(default=default, metadata=metadata)


def device_setting(default: Callable[[], int], help: str, *, low: int, high: int) -> Any:
    """Return a field whose default is what suits the device.

    It is asked when a config is made, so a config holds numbers whether they were given or not,
    and so does what is stored of it.
    """
    metadata = {"help": f"{help}; unset: what suits the device", "low": low, "high": high}
    return field(default_factory=default, metadata=metadata)


def check_settings(config: Any) -> None:
    """Raise SettingError when a field of `config` is not of its type or breaks its bounds."""
    for item in fields(config):
        value, meta = getattr(config, item.name), item.metadata
        low, high, choices = meta.get("low"), meta.get("high"), meta.get("choices")
        is_unset = value is None and "None" in str(item.type)
        if choices is not None and not is_unset and not _is_one_of(value, choices):
            listed = ", ".join(str(choice) for choice in choices)
            raise SettingError(f"{item.name} is {value!r}; it must be one of {listed}")
        if item.type == "bool" and not isinstance(value, bool):
            raise SettingError(f"{item.name} is {value!r}; it must be true or false")
        if item.type == "tuple[str, ...]" and not _are_texts(value):
            raise SettingError(f"{item.name} is {value!r}; it must be a tuple of texts")
        if item.type == "str" and not isinstance(value, str):
            raise SettingError(f"{item.name} is {value!r}; it must be a text")
        if is_unset or (low is None and high is None):
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise SettingError(f"{item.name} is {value!r}; it must be a number")
        if isinstance(value, float) and "float" not in str(item.type):
            raise SettingError(f"{item.name} is {value!r}; it must be a whole number")
        if not ((low is None or value >= low) and (high is None or value <= high)):
            raise SettingError(f"{item.name} is {value!r}; it must be between {low} and {high}")


def _is_one_of(value: Any, choices: tuple[str | int, ...]) -> bool:
    """Equal and of one type: 8.0 is not 8."""
    return any(type(value) is type(choice) and value == choice for choice in choices)


def _are_texts(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(text, str) for text in value)


def adapter_places(adapters: tuple[str, ...]) -> dict[str, str]:
    """Return name -> folder of the adapters of an engine.

    Raises:
        SettingError: one has no name or no folder, or two have the same name.
    """
    places: dict[str, str] = {}
    for text in adapters:
        name, sign, folder = text.partition("=")
        if not sign or "/" in name:
            name, folder = PurePath(text).name, text
        if not name or not folder:
            raise SettingError(f"adapters has {text!r}; give NAME=FOLDER or FOLDER")
        if name in places:
            raise SettingError(
                f"adapters has the name {name!r} twice; give one of them another with NAME=FOLDER"
            )
        places[name] = folder
    return places


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How one engine runs. A lane is nothing but a choice of these values."""

    max_rows: int = setting(1, "rows decoded together; 1 is the serial lane", low=1, high=128)
    drafter: str = setting(
        "ngram", "draft source; a draft model means two_model", choices=("ngram", "two_model")
    )
    draft_model: str | None = setting(None, "model a two_model drafter loads")
    num_draft_tokens: int = setting(
        0,
        "most tokens drafted for a row in one step; 0 turns speculation off",
        low=0,
        high=MAX_DRAFT_TOKENS,
    )
    spec_batching: str = setting(
        "batched",
        "where requests with drafts run when max_rows is above 1",
        choices=("serial", "batched"),
    )
    grammar_batching: str = setting(
        "batched",
        "where requests with a grammar run when max_rows is above 1",
        choices=("serial", "batched"),
    )
    acceptance: str = setting(
        "match",
        "match keeps the ids of plain decoding, rejection its distribution and more drafts",
        choices=("match", "rejection"),
    )
    draft_budgets: str = setting(
        "adaptive",
        "drafts of a row in a step: always num_draft_tokens (fixed), or what lately pays at this "
        "machine's step costs (adaptive)",
        choices=("fixed", "adaptive"),
    )
    prefill_chunk: int = device_setting(
        lambda: prefill_columns().chunk,
        "most prompt tokens of one row taken into one step",
        low=1,
        high=8192,
    )
    interleaved_prefill: int = device_setting(
        lambda: prefill_columns().interleaved,
        "most prompt columns, of all rows together, computed between two steps of rows that "
        "decode: their gap is bounded by one such chunk and one step",
        low=1,
        high=8192,
    )
    kv_budget_gb: float | None = setting(
        None, "most GB of keys and values that admitted rows may come to need", low=0, high=2**20
    )
    prefix_cache_bytes: int = setting(
        0, "bytes of keys and values kept for prompts that begin alike; 0 keeps none", low=0
    )
    kv_bits: int | None = setting(
        None,
        "bits of each number in cached keys and values, 8 or 4; unset keeps them unquantised",
        choices=(8, 4),
    )
    pipelined: bool = setting(
        True, "launch the next plain step before the last one is read by the host"
    )
    adapters: tuple[str, ...] = setting(
        (), "LoRA adapters that requests may name, each NAME=FOLDER or FOLDER"
    )

    def __post_init__(self) -> None:
        check_settings(self)
        adapter_places(self.adapters)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> EngineConfig:
        """Build a config from TOML or flag values; an unknown key raises SettingError."""
        known = {item.name for item in fields(cls)}
        for key in values:
            if key not in known:
                raise SettingError(f"unknown setting {key!r}; known: {', '.join(sorted(known))}")
        lists = {key: tuple(value) for key, value in values.items() if isinstance(value, list)}
        return cls(**{**values, **lists})
