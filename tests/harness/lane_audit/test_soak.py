"""A soak in small number: nothing is left behind, and whatever is left behind is seen."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import psutil
import pytest
from click.testing import CliRunner

import engine.draft.registry
from engine.arrays import wait
from engine.cache.prefix import PrefixCache
from engine.completions import Completions
from engine.costs import step_costs
from engine.loop import Engine
from engine.propose import Proposer
from engine.rows import SlotTable
from engine.shapes import STEP_WIDTHS
from engine.testing import tiny_model
from harness.lane_audit.audit import main as audit
from harness.lane_audit.idle import FLAT, Memory, unsteady
from harness.lane_audit.script import tiny_limits
from harness.lane_audit.soak import CANCELLED, PHASES, Soak

NUM_REQUESTS = 60
"""The audit serves 2,000."""


def soak(folder: Path, num_requests: int) -> Soak:
    run = Soak(tiny_model(), tiny_limits(), 0, folder)
    run.run(num_requests, lambda line: None)
    return run


@pytest.fixture(scope="module")
def soaked(tmp_path_factory: pytest.TempPathFactory) -> Soak:
    # Drafts pay, whatever a step costs on the machine of the test.
    with pytest.MonkeyPatch.context() as patch:
        free = step_costs({(1, width): 1.0 for width in STEP_WIDTHS})
        patch.setattr(engine.draft.registry, "_measured_costs", lambda *_: free)
        return soak(tmp_path_factory.mktemp("adapters"), NUM_REQUESTS)


def test_an_engine_gives_back_all_that_its_requests_took(soaked: Soak) -> None:
    assert soaked.problems == []
    assert soaked.counts["requests"] == NUM_REQUESTS


def test_one_row_in_ten_is_cancelled_wherever_it_is(soaked: Soak) -> None:
    counts = soaked.counts
    assert counts["cancelled"] == pytest.approx(CANCELLED * counts["rows"], abs=2)
    assert sum(counts[phase] for phase in PHASES) == counts["cancelled"]


def test_the_requests_meet_what_they_are_there_for(soaked: Soak) -> None:
    for name in ("tokens", "constrained", "cached_tokens", "accepted", "evicted_blocks"):
        assert soaked.counts[name] > 0, name


KEPT: list[object] = []


@pytest.fixture(autouse=True)
def let_go() -> Any:
    yield
    KEPT.clear()


def wrapped(owner: type, name: str, extra: Callable[..., None]) -> Callable[..., Any]:
    """The method, with something done before it."""
    method = getattr(owner, name)

    def both(*args: Any) -> Any:
        extra(*args)
        return method(*args)

    return both


def skipped_once(owner: type, name: str) -> Callable[..., Any]:
    """The method, but for its first call."""
    method, calls = getattr(owner, name), []

    def most(*args: Any) -> Any:
        calls.append(args)
        return None if len(calls) == 1 else method(*args)

    return most


def keep_matcher(_engine: object, sequence: Any) -> None:
    if sequence.matcher is not None:
        KEPT.append(sequence.matcher)


def keep_runs(cache: PrefixCache, _wanted: int) -> None:
    KEPT.extend(cache._runs)


LEAKS = {
    "a row is kept": (
        (Engine, "_finish", wrapped(Engine, "_finish", lambda engine, row: KEPT.append(row))),
        "Sequence objects",
    ),
    "a matcher is kept": (
        (Engine, "_finish", wrapped(Engine, "_finish", keep_matcher)),
        "GrammarState objects",
    ),
    "a record is never taken": (
        (Completions, "take", lambda completions, request_id: completions._held[request_id]),
        "completions",
    ),
    "a slot is not released": (
        (SlotTable, "leave", skipped_once(SlotTable, "leave")),
        "active rows",
    ),
    "the drafter is not told": (
        (Proposer, "leave", lambda proposer, row: None),
        "rows the drafter knows",
    ),
    "evicted blocks are kept": (
        (PrefixCache, "_make_room", wrapped(PrefixCache, "_make_room", keep_runs)),
        "runs of prefixes",
    ),
    "the prefix cache forgets its budget": (
        (PrefixCache, "_make_room", lambda cache, wanted: None),
        "bytes of prefixes",
    ),
    "the prefix cache is not emptied": (
        (PrefixCache, "clear", lambda cache: None),
        "Run objects of an empty prefix cache",
    ),
}


@pytest.mark.parametrize("leak", LEAKS)
def test_what_is_left_behind_is_seen(
    leak: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, problem = LEAKS[leak]
    monkeypatch.setattr(*change)
    assert [found for found in soak(tmp_path, 20).problems if problem in found]


def test_the_audit_tells_the_figures_and_passes_or_fails_by_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = tmp_path / "report.json"
    command = ["--soak", "30", "--soak-real", "0", "--json", str(report)]
    passed = CliRunner().invoke(audit, command)
    assert passed.exit_code == 0, passed.output
    assert "pass  soak on tiny-thinking: 30 requests" in passed.output
    monkeypatch.setattr(Proposer, "leave", lambda proposer, row: None)
    failed = CliRunner().invoke(audit, command)
    assert failed.exit_code == 3, failed.output
    assert "FAIL  soak on tiny-thinking" in failed.output
    assert json.loads(report.read_text())["soak"][0]["failures"]


def keep_array(*_: object) -> None:
    KEPT.append(mx.zeros(mx.get_active_memory() // 200, mx.uint8))
    wait(KEPT[-1])


def keep_bytes(*_: object) -> None:
    KEPT.append(b"x" * (psutil.Process().memory_info().rss // 200))


@pytest.mark.parametrize(
    ("keep", "kind"), [(keep_array, "MLX"), (keep_bytes, "resident")], ids=["arrays", "bytes"]
)
def test_memory_that_grows_with_the_requests_is_seen(
    keep: Callable[..., None], kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Engine, "_finish", wrapped(Engine, "_finish", keep))
    problems = soak(tmp_path, 30).problems
    assert [found for found in problems if found.startswith(f"{kind} memory is not flat")]


@pytest.mark.parametrize(
    ("share", "is_flat"), [(FLAT / 2, True), (2 * FLAT, False), (-2 * FLAT, False)]
)
def test_memory_is_flat_within_the_limit_whatever_warms_up(share: float, is_flat: bool) -> None:
    level = 10**8
    last = int(level * (1 + share))
    values = [0, level // 2, level // 3, level, level, 3 * level, last, last, 2 * last]
    assert bool(unsteady([Memory(level, value) for value in values])) is not is_flat
    assert bool(unsteady([Memory(value, level) for value in values])) is not is_flat


def test_too_few_readings_tell_nothing() -> None:
    assert unsteady([Memory(1, 1)] * 2)
