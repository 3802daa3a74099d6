"""Kill switches: off is as if the feature did not exist, said once, and documented."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.draft.registry import build_drafter
from engine.errors import RequestError, SettingError
from engine.loop import Engine
from engine.models import load
from engine.models.load import load_model
from engine.models.tiled import TiledLinear
from engine.request import Completion, Constraint, ConstraintKind, Request, SamplingParams
from engine.switches import SWITCHES, _tell, check_adapter, degrade, switched_off
from engine.telemetry import EngineStats
from engine.testing import tiny_model
from tests.engine.cache.families import family

ROOT = Path(__file__).resolve().parent.parent.parent

FULL = EngineConfig(
    max_rows=3,
    num_draft_tokens=3,
    spec_batching="batched",
    grammar_batching="batched",
    draft_budgets="adaptive",
    acceptance="rejection",
    prefix_cache_bytes=1 << 24,
    kv_bits=8,
)
"""Every feature that this engine carries at once."""

CARRIED = (
    "FM_SPEC",
    "FM_BATCH",
    "FM_BATCH_SPEC",
    "FM_GRAMMAR_BATCH",
    "FM_PIPELINE",
    "FM_ADAPTIVE_DRAFTS",
    "FM_REJECTION",
    "FM_PREFIX_CACHE",
    "FM_KV_QUANT",
)
"""Switches whose feature can be on in one engine at once."""


@pytest.fixture(autouse=True)
def all_on(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in SWITCHES:
        monkeypatch.delenv(name, raising=False)
    _tell.cache_clear()
    yield
    _tell.cache_clear()


def requests() -> list[Request]:
    """Plain, sampled and constrained rows."""
    colours = Constraint(kind=ConstraintKind.CHOICE, value=("red red red", "green", "blue"))
    plain = [
        Request(
            prompt_ids=tuple(40 + (3 * i + seed) % 7 for i in range(4 + seed)),
            max_tokens=24,
            sampling=SamplingParams(temperature=0.7 * (seed % 2), seed=seed),
        )
        for seed in range(3)
    ]
    alike = [replace(plain[1], prompt_ids=(50, 51) * 40 + (seed,)) for seed in (60, 61)]
    return [*plain, *(replace(request, constraint=colours) for request in plain), *alike]


def run(config: EngineConfig) -> tuple[list[Completion], EngineStats, EngineConfig]:
    engine = Engine(family("llama"), config, build_drafter(config))
    completions = [engine.generate([request])[0] for request in requests()[-2:]]
    completions += engine.generate(requests())
    return completions, replace(engine.stats(), host_syncs=0), engine.config


def what_was_done(completions: list[Completion]) -> list[tuple[object, ...]]:
    return [
        (c.token_ids, c.text, c.lane, c.lane_reason, c.target_calls, c.drafted, c.cached_tokens)
        for c in completions
    ]


@pytest.mark.parametrize("name", CARRIED)
def test_off_equals_an_engine_without_the_feature(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Adaptive budgets go by the clock, so their counts would differ from run to run.
    full = FULL if name == "FM_ADAPTIVE_DRAFTS" else replace(FULL, draft_budgets="fixed")
    without = replace(full, **dict(SWITCHES[name].off))
    expected, expected_stats, _ = run(without)

    monkeypatch.setenv(name, "0")
    completions, stats, config = run(full)

    assert config == without
    assert what_was_done(completions) == what_was_done(expected)
    assert stats == expected_stats


def test_grammar_rows_go_to_the_serial_lane_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FM_GRAMMAR_BATCH", "0")

    completions, _, _ = run(EngineConfig(max_rows=3))

    lanes = [completion.lane for completion in completions[2:8]]
    assert lanes == ["batch"] * 3 + ["serial"] * 3
    assert "grammar_batching is serial" in completions[7].lane_reason


@pytest.mark.parametrize("name", [name for name, switch in SWITCHES.items() if switch.off])
def test_a_switch_takes_its_settings_and_nothing_else(name: str) -> None:
    config = replace(
        FULL, acceptance="rejection", prefix_cache_bytes=2**20, kv_bits=8, adapters=("a=b",)
    )
    degraded = degrade(config, {name: "0"})

    assert degraded == replace(config, **dict(SWITCHES[name].off))
    assert degraded != config
    assert degrade(config, {name: "1"}) == degrade(config, {name: ""}) == config


def test_it_is_told_once_a_process(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="fm"):
        for _ in range(3):
            degrade(FULL, {"FM_SPEC": "0", "FM_BATCH": "0"})

    assert [(record.name, record.levelname) for record in caplog.records] == [("fm", "WARNING")] * 2
    assert "FM_SPEC=0 switches speculative decoding off" in caplog.text
    assert "FM_BATCH=0" in caplog.text


def test_nothing_is_told_where_nothing_changes(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="fm"):
        degrade(EngineConfig(), {"FM_SPEC": "0", "FM_BATCH": "0", "FM_LORA": "0"})

    assert not caplog.records


@pytest.mark.parametrize("value", ["off", "2", "true", " 0"])
def test_another_value_is_refused_by_name(value: str) -> None:
    with pytest.raises(SettingError, match=r"FM_KV_QUANT is .*; it must be 0 \(off\) or 1"):
        switched_off({"FM_KV_QUANT": value})


def test_a_request_with_an_adapter_is_refused_in_the_switchs_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FM_LORA", "0")

    with pytest.raises(RequestError, match="'law' cannot be used while FM_LORA=0"):
        Engine(tiny_model(), EngineConfig()).submit(Request(prompt_ids=(1,), adapter="law"))
    check_adapter("")


@pytest.mark.parametrize(("value", "tiled"), [("1", True), ("0", False)])
def test_models_are_loaded_without_tiled_weights(
    value: str, tiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "weight_layout", lambda: "tiles")
    monkeypatch.setenv("FM_TILED_WEIGHTS", value)

    modules = load_model("tiny-thinking", dtype="float32").model.modules()

    assert any(isinstance(module, TiledLinear) for module in modules) == tiled


def test_the_page_lists_every_switch_as_the_code_has_it() -> None:
    text = (ROOT / "docs" / "switches.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(FM_\w+)` \| (.+) \| (.+) \| (.+) \|$", text, flags=re.MULTILINE)

    assert rows == [
        (
            name,
            switch.help,
            switch.degrades_to,
            ", ".join(f"`{key} = {value!r}`" for key, value in switch.off.items()) or "none",
        )
        for name, switch in SWITCHES.items()
    ]
