"""A config holds numbers: those that were given, and else those that suit the device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine import backend
from engine.backend import PREFILL_COLUMNS, BackendInfo
from engine.config import EngineConfig
from engine.errors import SettingError


def on_device(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    info = BackendInfo(device=device, source="builtin")
    monkeypatch.setattr(backend, "backend_info", lambda: info)


@pytest.mark.parametrize("device", ["cpu", "cuda", "metal"])
def test_prompt_columns_that_nobody_set_are_those_of_the_device(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_device(monkeypatch, device)
    config = EngineConfig.from_mapping({"max_rows": 4})
    columns = PREFILL_COLUMNS[device]
    assert (config.prefill_chunk, config.interleaved_prefill) == (
        columns.chunk,
        columns.interleaved,
    )


@pytest.mark.parametrize("device", PREFILL_COLUMNS)
def test_prompt_columns_that_were_set_are_the_same_on_every_device(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_device(monkeypatch, device)
    config = EngineConfig(prefill_chunk=100, interleaved_prefill=50)
    assert (config.prefill_chunk, config.interleaved_prefill) == (100, 50)


def test_a_config_keeps_its_numbers_when_it_is_changed_on_another_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on_device(monkeypatch, "cuda")
    made = EngineConfig()
    on_device(monkeypatch, "cpu")
    assert replace(made, max_rows=4).prefill_chunk == made.prefill_chunk


@pytest.mark.parametrize("name", ["max_rows", "prefill_chunk", "interleaved_prefill"])
@pytest.mark.parametrize("value", [None, True, 1.0, "1", 0, 8193])
def test_a_value_of_another_kind_or_out_of_bounds_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(SettingError, match=f"{name} is {value!r}"):
        EngineConfig(**{name: value})
