"""Engine settings that a cell's name may hold, as in `serial+spec@num_draft_tokens=3`.

A setting has one spelling for each value, since names are compared as text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from decimal import Decimal
from itertools import product
from typing import Any

from engine.config import EngineConfig
from engine.errors import SettingError, UnknownNameError

OWNERS: dict[str, str] = {
    "num_draft_tokens": "spec",
    "drafter": "spec",
    "draft_model": "spec",
    "draft_budgets": "spec",
    "kv_bits": "",
    "kv_budget_gb": "",
    "prefix_cache_bytes": "",
    "prefill_chunk": "",
    "interleaved_prefill": "",
    "pipelined": "",
}
"""Setting -> the feature it belongs to and goes away with, "" where any cell has it."""

SAID_OTHERWISE: dict[str, str] = {
    "max_rows": "batchN of the name says it",
    "acceptance": "write '@rejection'",
    "spec_batching": "write '@routed'",
    "grammar_batching": "set it in a cell file",
    "adapters": "set it in a cell file",
}
"""Settings that a name does not spell out, with how they are set."""

CHANGES_IDS = frozenset({"kv_bits"})
"""Settings under which a model may write other tokens: ids are compared among cells that share
them."""

PEER_SETTINGS = frozenset({"num_draft_tokens", "draft_model"})
"""What of these a peer cell is told."""

MAX_SWEPT = 64
"""Most cells that one sweep may give: a run of more would not come to an end."""

_TEXT = re.compile(r"[A-Za-z0-9._-]{1,64}")

Settings = tuple[tuple[str, str], ...]
"""Name and value as they are spelled, sorted by name."""


def spelled(name: str, value: object) -> str:
    """Return the one spelling of a setting's value.

    Args:
        value: a text in any spelling, or a value as TOML has it.

    Raises:
        UnknownNameError: there is no such setting.
        SettingError: it is not set by a name, or the value is out of its bounds.
    """
    parsed = parsed_value(name, value)
    if isinstance(parsed, bool):
        return str(parsed).lower()
    if isinstance(parsed, float):
        return f"{Decimal(repr(parsed)):f}".removesuffix(".0")
    return str(parsed)


def parsed_value(name: str, value: object) -> Any:
    """Return a setting's value as the engine takes it; errors as for `spelled`."""
    _check_name(name)
    parsed: Any = _read(name, value) if isinstance(value, str) else value
    if isinstance(parsed, str) and not _TEXT.fullmatch(parsed):
        raise SettingError(
            f"{name} is {parsed!r}; a cell's name takes letters, digits and '._-': set other "
            "values in a cell file"
        )
    if isinstance(parsed, int) and not isinstance(parsed, bool) and "float" in _type_of(name):
        parsed = float(parsed)
    EngineConfig(**{name: parsed})
    return parsed


def values_of(settings: Settings) -> dict[str, Any]:
    """Return settings of a name as the engine takes them."""
    return {name: parsed_value(name, text) for name, text in settings}


def parse_settings(parts: Iterable[str]) -> Settings:
    """Read `name=value` parts of a cell's name; SettingError says what is wrong with one."""
    found: dict[str, str] = {}
    for part in parts:
        name, _, text = part.partition("=")
        value = spelled(name, text)
        if name in found:
            raise SettingError(f"{name} is set twice; set it once")
        found[name] = value
    return tuple(sorted(found.items()))


def combinations(lists: Mapping[str, Sequence[object]]) -> tuple[Settings, ...]:
    """Return every choice of one value from each list; SettingError for an empty or long one."""
    if math.prod(map(len, lists.values())) > MAX_SWEPT:
        raise SettingError(f"the lists give more than {MAX_SWEPT} cells; shorten them")
    for name, values in lists.items():
        if not values:
            raise SettingError(f"{name} is an empty list; give at least one value")
    spellings = {
        name: dict.fromkeys(spelled(name, value) for value in values)
        for name, values in sorted(lists.items())
    }
    return tuple(
        tuple(zip(spellings, choice, strict=True)) for choice in product(*spellings.values())
    )


def belonging(settings: Settings, features: Iterable[str]) -> Settings:
    """Return the settings that mean something to a cell with these features."""
    kept = {"", *features}
    return tuple((name, text) for name, text in settings if OWNERS[name] in kept)


def changing_ids(settings: Settings) -> Settings:
    """Return the settings under which a model may write other tokens."""
    return tuple((name, text) for name, text in settings if name in CHANGES_IDS)


def _check_name(name: str) -> None:
    if name in SAID_OTHERWISE:
        raise SettingError(f"{name} is not set after '@': {SAID_OTHERWISE[name]}")
    if name not in OWNERS:
        raise UnknownNameError("setting of a cell", name, OWNERS)


def _read(name: str, text: str) -> Any:
    kind = _type_of(name)
    if "bool" in kind:
        words: Mapping[str, bool] = {"true": True, "false": False}
        if text not in words:
            raise SettingError(f"{name} is {text!r}; it must be true or false")
        return words[text]
    if "int" not in kind and "float" not in kind:
        return text
    is_whole = "int" in kind
    if not re.fullmatch(r"[0-9]{1,15}" if is_whole else r"[0-9]{1,15}(\.[0-9]{1,15})?", text):
        raise SettingError(f"{name} is {text!r}; it must be a {'whole ' * is_whole}number")
    return int(text) if is_whole else float(text)


def _type_of(name: str) -> str:
    return next(str(item.type) for item in fields(EngineConfig) if item.name == name)
