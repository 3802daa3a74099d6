"""Cases ha-01, ha-03, ha-04 and ha-06: instants, counts, replies without a rate, percentiles."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from harness import stats
from harness.http.chat_reply import ChatReply
from harness.http.client import Exchange
from harness.http.trial import times_of
from harness.report import build_report, to_json, to_markdown
from harness.store import EvalStore, RunData
from tests.harness.store.sample_run import Sample, reply

Transcript = list[tuple[int, dict[str, Any] | None]]
"""Milliseconds and the document of an event; None for the last one, [DONE]."""


def delta(finish: str | None = None, **added: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": added, "finish_reason": finish}]}


USAGE = {
    "choices": [],
    "usage": {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8},
}
REASONED: Transcript = [
    (8, delta(role="assistant", content="")),
    # At 9 ms a comment keeps the connection alive; it is no event.
    (10, delta(content="")),
    (210, delta(reasoning_content="Hm")),
    (240, delta(content="A")),
    (260, delta(content="B")),
    (280, delta(finish="stop")),
    (900, USAGE),
    (901, None),
]


def heard(transcript: Transcript) -> Exchange[ChatReply]:
    """What the load client makes of a transcript that was asked for at 0 ms."""
    exchange = Exchange(0.0, ChatReply())
    for milliseconds, document in transcript:
        if document is None:
            exchange.ended_s = milliseconds / 1000
        else:
            exchange.reply.see(document, milliseconds / 1000)
    return exchange


def test_the_first_token_is_the_first_event_that_adds_one_reasoning_included() -> None:
    """Case ha-01."""
    times = times_of(heard(REASONED))
    assert times.first_token_s == 0.210
    assert times.first_text_s == 0.240
    assert times.last_token_s == 0.260


def test_what_follows_the_last_token_stretches_nothing() -> None:
    """Case ha-01: neither the late usage nor [DONE] is in the rate or in the latency."""
    times = times_of(heard(REASONED))
    assert times.ended_s == 0.280
    rate = stats.per_stream_rate(3, times.first_token_s, times.last_token_s)
    assert rate == pytest.approx(1 / 0.025)


def test_a_role_and_an_end_are_no_first_token() -> None:
    """Case ha-01."""
    times = times_of(heard([REASONED[0], REASONED[5], REASONED[-1]]))
    assert times.first_token_s is times.first_text_s is times.last_token_s is None


def timed(
    prompt: str, ids: int, ttft_ms: float | None, last_ms: float | None, **rest: Any
) -> tuple[str, tuple[int, ...], dict[str, Any]]:
    seconds = {
        "ttft_s": None if ttft_ms is None else ttft_ms / 1000,
        "last_token_s": None if last_ms is None else last_ms / 1000,
    }
    return prompt, tuple(range(ids)), {**seconds, **rest}


def run_of(folder: Path, *replies: tuple[str, tuple[int, ...], dict[str, Any]]) -> RunData:
    sample = Sample()
    rows = [reply(prompt, ids, **rest) for prompt, ids, rest in replies]
    sample.add("serial", tok_s=None, replies=rows, wall_s=0.0)
    return sample.load(folder)


def rates_of(data: RunData) -> dict[str, float | None]:
    return {
        row.prompt_id: stats.per_stream_rate(row.completion_tokens, row.ttft_s, row.last_token_s)
        for row in data.requests
    }


def test_tokens_are_the_ids_that_came_and_each_count_names_its_source(tmp_path: Path) -> None:
    """Case ha-03: 120 blanks are 120 tokens, and a short reply is not its budget."""
    data = run_of(
        tmp_path,
        timed("blanks", 120, 50, 1240, text=" " * 120),
        timed("short", 2, 50, 60, text="ok"),
        timed("uncounted", 1, 50, 50, text="x", token_ids=None, count_source="estimated"),
    )
    counts = {row.prompt_id: (row.completion_tokens, row.count_source) for row in data.requests}
    assert counts == {
        "blanks": (120, "engine"),
        "short": (2, "engine"),
        "uncounted": (1, "estimated"),
    }
    assert rates_of(data) == {
        "blanks": pytest.approx(1 / 0.010),
        "short": pytest.approx(1 / 0.010),
        "uncounted": None,
    }
    (block,) = data.blocks
    assert block.estimated == 1


REPLIES = (
    timed("nothing", 0, None, None, e2e_s=0.030),
    timed("one", 1, 40, 40, finish_reason="length", e2e_s=0.040),
    timed("eleven", 11, 40, 140, e2e_s=0.141),
    timed("at once", 5, 40, 40, e2e_s=0.040),
)


def strict(text: str) -> Any:
    def refuse(name: str) -> Any:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_replies_without_a_duration_have_no_rate(tmp_path: Path) -> None:
    """Case ha-04."""
    data = run_of(tmp_path, *REPLIES)
    assert rates_of(data) == {
        "nothing": None,
        "one": None,
        "eleven": pytest.approx(1 / 0.010),
        "at once": None,
    }
    (cell,) = build_report(data).cells
    assert (cell.empty_replies, cell.one_token_replies) == (1, 1)
    assert cell.speed.per_stream == pytest.approx(100)
    assert cell.speed.aggregate is cell.speed.e2e is None


@pytest.mark.parametrize("replies", [REPLIES, REPLIES[:2], REPLIES[:1]], ids=["4", "2", "1"])
def test_what_was_not_observed_is_null_everywhere(tmp_path: Path, replies: Any) -> None:
    """Case ha-04: no exception, no NaN, and the database has NULL."""
    data = run_of(tmp_path, *replies)
    report = build_report(data)
    (cell,) = strict(to_json(report))["cells"]
    if len(replies) < len(REPLIES):
        assert cell["tok_s"] is None
    assert "nan" not in to_markdown(report).lower()
    with EvalStore.open_existing(tmp_path / "fm.db") as store:
        stored = store.load_run(data.run.run_id)
    empty = next(row for row in stored.requests if row.prompt_id == "nothing")
    assert empty.ttft_s is None
    assert all(value is None or math.isfinite(value) for value in _speeds(stored))


def _speeds(data: RunData) -> list[float | None]:
    return [value for block in data.blocks for value in (block.aggregate_tok_s, block.e2e_tok_s)]


VALUES: list[list[float]] = [
    [1.0],
    [1.0, 2.0],
    [10, 20, 30],
    [5, 5, 5, 5, 5],
    [float(value) for value in range(1, 21)],
    [float(value) for value in range(1, 101)],
]
POINTS = (0, 50, 90, 95, 99, 100)


@pytest.mark.parametrize("values", VALUES, ids=len)
def test_percentiles_stay_within_their_values_and_rise(values: list[float]) -> None:
    """Case ha-06."""
    found = [stats.percentile(values, point) for point in POINTS]
    assert all(item in values for item in found)
    assert found == sorted(found)  # type: ignore[type-var]  # none is None, as the line before says
    assert (found[0], found[-1]) == (min(values), max(values))


@pytest.mark.parametrize("values", VALUES, ids=len)
def test_the_database_and_python_have_one_definition(values: list[float], tmp_path: Path) -> None:
    """Case ha-06: nearest rank, which the report names."""
    replies = [
        timed(f"p{place}", 1, 1000 * value, 1000 * value) for place, value in enumerate(values)
    ]
    data = run_of(tmp_path, *replies)
    (row,) = [row for row in data.figures if row.figure == "ttft"]
    assert row.n == len(values)
    assert row.p50 == pytest.approx(stats.percentile(values, 50))
    assert row.p95 == pytest.approx(stats.percentile(values, 95))
    text = to_markdown(build_report(data))
    assert "Percentiles are by nearest rank" in text
    (cell,) = strict(to_json(build_report(data)))["cells"]
    shown = stats.tail(len(values)) != "hidden"
    assert (cell["ttft_ms"]["p95"] is not None) == shown == (len(values) >= 20)
