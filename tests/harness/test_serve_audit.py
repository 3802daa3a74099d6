"""The audit of the server in small number, and that each of its properties can fail."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from engine.errors import SchemaError
from engine.grammar.compile import GrammarCompiler
from engine.request import Constraint, ConstraintKind
from engine.server.lag import BOUNDS_S, PERIOD_S, LoopLag, quantile
from engine.testing import tiny_model
from harness import serve_beside, serve_load, serve_overhead
from harness.load_client import Exchange
from harness.serve_audit import main
from harness.serve_beside import over_limits
from harness.serve_conform import Reference, _problem
from harness.serve_load import _check_idle, disconnects, load, requests
from harness.serve_overhead import Timed
from harness.serve_subject import Answer, Finding, Heard, Served, served

SMALL = ("--requests", "150", "--disconnects", "40", "--prompts", "2", "--prompt-tokens", "500")
SMALL_ROUNDS = ("--rounds", "2", "--tokens", "16", "--patience", "20")
PARTS = (
    "load",
    "disconnects",
    "streams beside a long prompt",
    "requests beside a compile",
    "schemas over the limits",
    "conformance",
    "overhead",
)


def test_a_small_audit_passes_and_tells_its_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve_beside, "PATTERNS", 200)
    report = tmp_path / "report.json"
    done = CliRunner().invoke(main, [*SMALL, *SMALL_ROUNDS, "--json", str(report)])
    assert done.exit_code == 0, done.output
    found = {item["name"]: item for item in json.loads(report.read_text(encoding="utf-8"))}
    assert tuple(found) == PARTS
    assert all(f"pass  {name}: " in done.output for name in PARTS)
    assert found["load"]["figures"]["requests"] == 150
    assert found["disconnects"]["figures"]["rows_cancelled"] > 0
    assert found["conformance"]["figures"]["conforming"] == 1
    assert found["conformance"]["figures"]["equal_to_in_process"] == 1
    assert found["conformance"]["figures"]["replies"] == 2 * 3 * 2 * 2


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served("tiny-thinking", "--batch", "4") as found:
        yield found


def test_bounds_that_are_passed_fail_the_audit(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve_load, "MAX_LAG_S", 0.0)
    monkeypatch.setattr(serve_load, "FLAT", -1.0)
    failures = load(server, 40, 0, 1.0).failures
    assert any("lag" in failure for failure in failures)
    assert any("resident memory" in failure for failure in failures)


def test_a_reply_that_changes_and_rows_that_stay_are_seen(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    see, seen = Heard.see, []

    def changed(self: Heard, document: Any, now_s: float) -> int:
        tokens = see(self, document, now_s)
        seen.append(document)
        self.texts[0] += str(len(seen))
        return tokens

    with monkeypatch.context() as patch:
        patch.setattr(Heard, "see", changed)
        assert any("next request" in failure for failure in disconnects(server, 4, 0).failures)
    monkeypatch.setattr(serve_load, "IDLE_WITHIN_S", 0.2)
    found = Finding("idle")
    with server.client(1) as client:
        stats = serve_load._stats(client)
        stats["rows"]["active"] = 1
        monkeypatch.setattr(serve_load, "_stats", lambda _client: stats)
        _check_idle(client, found)
    assert "'active': 1" in found.failures[0]


def test_requests_are_the_same_for_a_seed_and_of_every_kind() -> None:
    first = list(requests("m", 200, 3))
    assert first == list(requests("m", 200, 3))
    assert first != list(requests("m", 200, 4))
    bodies = [body for _, body in first]
    assert {body["stream"] for body in bodies} == {True, False}
    assert {path for path, _ in first} == {serve_load.CHAT, serve_load.COMPLETIONS}
    for name in ("n", "stop", "guided_choice"):
        assert any(name in body for body in bodies)


def test_a_reply_that_breaks_its_schema_or_parts_from_the_engine_is_seen() -> None:
    reference = Reference("tiny-thinking", 1)
    (prompt,), (said,) = reference.prompts, reference.completions

    def heard(error: str | None = None, **changes: Any) -> Answer:
        fields: dict[str, Any] = {
            "texts": {0: said.text},
            "token_ids": list(said.token_ids),
            "finish_reasons": {0: "stop"},
            "usage": {"conformance": "enforced"},
        }
        return Exchange(0.0, Heard(**{**fields, **changes}), status=200, error=error)

    assert _problem(prompt, heard()) is None
    assert reference.compare([heard()]).passed
    for changes in (
        {"texts": {0: said.text[:-1]}},
        {"texts": {0: "{}"}},
        {"finish_reasons": {0: "length"}},
        {"usage": {}},
        {"error": "gone"},
    ):
        assert _problem(prompt, heard(**changes)) is not None
    assert not reference.compare([heard(token_ids=[*said.token_ids[:-1], 7, 7])]).passed
    assert not reference.compare([heard(texts={0: "other"})]).passed


def test_slower_and_later_replies_are_judged_on_a_real_model_alone() -> None:
    here = [Timed(0.010, 100.0, (1, 2))] * 3
    judged = serve_overhead._judged
    assert judged("real", here, [Timed(0.015, 98.0, (1, 2))] * 3, 1.0).failures == []
    assert "rate" in judged("real", here, [Timed(0.015, 90.0, (1, 2))] * 3, 1.0).failures[0]
    assert judged("tiny", here, [Timed(0.015, 50.0, (1, 2))] * 3, 1.0).failures == []
    assert "later" in judged("tiny", here, [Timed(0.030, 99.0, (1, 2))] * 3, 1.0).failures[0]
    assert "same" in judged("real", here, [Timed(0.010, 99.0, (1, 3))] * 3, 1.0).failures[0]


@pytest.mark.parametrize("name", over_limits())
def test_schemas_over_the_limits_are_refused_before_anything_slow_is_done(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = GrammarCompiler.of(tiny_model())
    if name != "pattern":  # a pattern's length is read in what is known to be a schema
        monkeypatch.setattr("engine.grammar.document._check_valid", _never)
    with pytest.raises(SchemaError, match=r"limit|more than"):
        compiler.compile(Constraint(kind=ConstraintKind.JSON_SCHEMA, value=over_limits()[name]))


def _never(*_: Any) -> None:
    raise AssertionError("the schema is over the limits")


def test_the_lag_counts_moments_and_not_timers() -> None:
    lag = LoopLag()
    for _ in range(90):
        lag.note(0.001)
    lag.note(10 * PERIOD_S)  # ten further timers were due meanwhile
    assert sum(lag.counts) == 90 + 11
    assert quantile(lag.counts, 0.5) == pytest.approx(0.001, rel=0.2)
    assert quantile(lag.counts, 0.99) == pytest.approx(0.1, rel=0.2)
    assert lag.document()["lag_max_ms"] == 100
    assert quantile([0] * (len(BOUNDS_S) + 1), 0.5) is None
    assert 0.05 in BOUNDS_S


def test_a_loop_that_is_held_is_seen() -> None:
    async def hold() -> float:
        lag = LoopLag()
        lag.start()
        await asyncio.sleep(0.05)
        time.sleep(0.2)  # holding the loop is the point
        await asyncio.sleep(0.05)
        lag.stop()
        return lag.longest_s

    assert asyncio.run(hold()) > 0.15
