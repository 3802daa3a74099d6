"""The audit of the server in small number, and that each of its properties can fail."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from engine.errors import SchemaError
from engine.grammar.compile import GrammarCompiler
from engine.grammar.counts import check_counts
from engine.request import Constraint, ConstraintKind
from engine.server.lag import BOUNDS_S, PERIOD_S, LoopLag, quantile
from engine.testing import tiny_model
from harness.http.client import Exchange
from harness.serving_audit import beside as serve_beside
from harness.serving_audit import load as serve_load
from harness.serving_audit import overhead as serve_overhead
from harness.serving_audit.audit import exit_code, main
from harness.serving_audit.beside import (
    LEAST_BESIDE,
    PATTERNS,
    CompileSeen,
    PromptSeen,
    Refused,
    judged_compile,
    judged_prompt,
    judged_refusals,
    large,
    over_limits,
)
from harness.serving_audit.conform import Reference, _problem
from harness.serving_audit.load import LoadSeen, _check_idle, disconnects, requests
from harness.serving_audit.overhead import Timed
from harness.serving_audit.subject import Answer, Finding, Heard, Served, served

SMALL = ("--requests", "150", "--disconnects", "40", "--prompts", "2", "--prompt-tokens", "2000")
SMALL_ROUNDS = ("--rounds", "2", "--tokens", "16", "--advisory-timing")
PARTS = (
    "load",
    "disconnects",
    "streams beside a long prompt",
    "requests beside a compile",
    "schemas over the limits",
    "conformance",
    "overhead",
)


def test_every_property_holds_in_a_small_audit(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = CliRunner().invoke(main, [*SMALL, *SMALL_ROUNDS, "--json", str(report)])
    assert done.exit_code == 0, done.output
    found = {item["name"]: item for item in json.loads(report.read_text(encoding="utf-8"))}
    assert tuple(found) == PARTS
    assert [item["failures"] for item in found.values()] == [[]] * len(PARTS), done.output
    assert found["load"]["figures"]["requests"] == 150
    assert found["disconnects"]["figures"]["rows_cancelled"] > 0
    assert found["conformance"]["figures"]["conforming"] == 1
    assert found["conformance"]["figures"]["equal_to_in_process"] == 1
    assert found["conformance"]["figures"]["replies"] == 2 * 3 * 2 * 2


@pytest.mark.parametrize(
    ("failures", "slow", "code", "advisory", "word"),
    [([], [], 0, 0, "pass"), ([], ["late"], 1, 0, "slow"), (["wrong"], ["late"], 3, 3, "FAIL")],
    ids=["whole", "slow", "broken"],
)
def test_what_is_slow_is_told_apart_from_what_is_wrong(
    failures: list[str], slow: list[str], code: int, advisory: int, word: str
) -> None:
    finding = Finding("a part", failures=failures, slow=slow)
    assert exit_code([Finding("another"), finding], advisory_timing=False) == code
    assert exit_code([Finding("another"), finding], advisory_timing=True) == advisory
    assert finding.line().startswith(f"{word}  a part")
    assert all(line in finding.line() for line in (*failures, *slow))


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served("tiny-thinking", "--batch", "4") as found:
        yield found


CALM = LoadSeen(
    seconds=[0.02] * 9, wall_s=1.0, lag_counts=[90, *[0] * len(BOUNDS_S)], readings=[10**8] * 8
)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, None),
        ({"readings": [10**8] * 7 + [102 * 10**6]}, None),
        ({"readings": [10**8] * 4 + [104 * 10**6] * 4}, "resident memory grows by 4.0%"),
        ({"lag_counts": [90, *[0] * (len(BOUNDS_S) - 1), 2]}, "event loop's lag"),
    ],
    ids=["calm", "grown a little", "grown", "held"],
)
def test_a_load_under_which_memory_or_lag_grows_is_slow(
    changes: dict[str, Any], told: str | None
) -> None:
    found = serve_load.judged(replace(CALM, **changes))
    assert found.failures == []
    assert len(found.slow) == (told is not None)
    assert told is None or told in found.slow[0]


PROMPT = PromptSeen(
    prompt_tokens=100,
    start_s=1.0,
    sent_s=2.0,
    ended_s=4.0,
    live=[[0.5, 1.5, 1.9, 2.8, 3.7, 4.1]],
)


@pytest.mark.parametrize(
    ("changes", "failures", "slow"),
    [
        ({}, 0, 0),
        ({"live": [[1.5, 1.9, 3.2, 4.1]]}, 0, 1),
        ({"live": [[1.5, 1.9, 4.1, 4.2]]}, 1, 0),
        ({"live": [[], [1.5]]}, 1, 0),
        ({"errors": ["gone"]}, 1, 0),
    ],
    ids=["went on", "stood still", "waited", "ended", "failed"],
)
def test_streams_have_to_go_on_beside_a_prompt(
    changes: dict[str, Any], failures: int, slow: int
) -> None:
    found = judged_prompt(replace(PROMPT, **changes))
    assert (len(found.failures), len(found.slow)) == (failures, slow)


def test_streams_are_watched_also_where_each_of_them_is_short(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a quick machine a long one is over before the prompt comes."""
    monkeypatch.setattr(serve_beside, "MOST_TOKENS", 8)
    found = serve_beside.long_prompt(server, 2000)
    assert found.failures == []
    assert found.figures["events_beside"] > 0


COMPILE = CompileSeen(compile_s=0.14, usual=[0.005] * 9, beside=[0.036] * LEAST_BESIDE)


@pytest.mark.parametrize(
    ("changes", "failures"),
    [
        ({}, 0),
        ({"compile_s": 0.01}, 0),
        ({"beside": [0.001] * (LEAST_BESIDE - 1)}, 1),
        ({"beside": [], "usual": []}, 1),
        ({"errors": ["gone"]}, 1),
    ],
    ids=["answered", "slowly", "waited", "none", "failed"],
)
def test_others_have_to_be_answered_beside_a_compile(
    changes: dict[str, Any], failures: int
) -> None:
    found = judged_compile(replace(COMPILE, **changes))
    assert (len(found.failures), found.slow) == (failures, [])


def test_a_refusal_has_to_be_one_and_should_be_quick() -> None:
    refused = {
        "quick": Refused(frozenset({400}), 0.02),
        "late": Refused(frozenset({400}), 0.2),
        "taken": Refused(frozenset({200, None}), 0.2),
    }
    found = judged_refusals(refused)
    assert found.failures == ["taken: statuses ['200', 'None'], not 400"]
    assert found.slow == ["late: refused after 0.200 s"]


def test_the_schema_that_compiles_beside_others_is_within_the_limits() -> None:
    compiler = GrammarCompiler.of(tiny_model())
    for patterns in PATTERNS:
        schema = large(patterns)
        assert sum(len(group["required"]) for group in schema["properties"].values()) == patterns
        check_counts(schema, compiler.limits)


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


@pytest.mark.parametrize(
    ("model", "there", "failures", "slow"),
    [
        ("real", Timed(0.015, 98.0, (1, 2)), (), ()),
        ("real", Timed(0.015, 90.0, (1, 2)), (), ("rate",)),
        ("tiny", Timed(0.015, 50.0, (1, 2)), (), ()),
        ("tiny", Timed(0.030, 99.0, (1, 2)), (), ("later",)),
        ("real", Timed(0.030, 90.0, (1, 3)), ("same",), ("rate", "later")),
    ],
    ids=["as quick", "slower", "slower, of no weights", "later", "other"],
)
def test_replies_over_http_are_the_same_and_slower_ones_are_told(
    model: str, there: Timed, failures: tuple[str, ...], slow: tuple[str, ...]
) -> None:
    found = serve_overhead.judged(model, [Timed(0.010, 100.0, (1, 2))] * 3, [there] * 3)
    for words, lines in ((failures, found.failures), (slow, found.slow)):
        assert len(words) == len(lines)
        assert all(word in line for word, line in zip(words, lines, strict=True))


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
