"""The body field `fm`, and what /stats tells of the steps it led to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from engine.config import EngineConfig
from tests.engine.server.live import Live, serving, tiny_engine


@pytest.fixture(scope="module")
def measured() -> Iterator[Live]:
    with serving(allow_overrides=True) as live:
        yield live


def usage_of(live: Live, **fm: Any) -> dict[str, Any]:
    # One token over and over: something to draft from.
    answer = live.chat(max_tokens=12, logit_bias={"65": 100}, fm=fm)
    assert answer.status_code == 200, answer.text
    usage: dict[str, Any] = answer.json()["usage"]
    return usage


def test_a_server_that_was_not_told_so_takes_no_overrides(live: Live) -> None:
    answer = live.chat(fm={"lane": "serial"})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "fm"
    assert live.client.post("/stats/reset-peak").status_code == 404


def test_lane_and_drafts_are_those_asked_for(measured: Live) -> None:
    alone = usage_of(measured, lane="serial")
    assert alone["lane"] == "serial"
    assert "asks" in alone["lane_reason"]
    assert usage_of(measured, lane="batch")["lane"] == "batch"
    routed = usage_of(measured, spec_batching="serial")
    assert routed["lane"] == "serial"
    assert "spec_batching" in routed["lane_reason"]
    assert usage_of(measured)["speculation"]["drafted"] > 0
    assert usage_of(measured, draft=0)["speculation"]["drafted"] == 0
    one = usage_of(measured, draft=1)["speculation"]
    assert len(one["drafted_by_position"]) <= 1


def test_overrides_change_no_token(measured: Live) -> None:
    bodies = [{}, {"lane": "serial"}, {"draft": 0}, {"lane": "serial", "draft": 2}]
    answers = [measured.chat("tell", fm=fm, return_token_ids=True).json() for fm in bodies]
    ids = [answer["choices"][0]["token_ids"] for answer in answers]
    assert ids == ids[:1] * len(bodies)
    assert len(ids[0]) == 8


@pytest.mark.parametrize(
    ("fm", "param"),
    [
        ({"lane": "batch4"}, "fm.lane"),
        ({"draft": 99}, "fm.draft"),
        ({"draft": 4}, "fm.draft"),
        ({"draft": -1}, "fm.draft"),
        ({"draft": True}, "fm.draft"),
        ({"spec_batching": 1}, "fm.spec_batching"),
        ({"rows": 2}, "fm.rows"),
        ("serial", "fm"),
    ],
)
def test_what_cannot_be_had_is_refused_by_name(measured: Live, fm: Any, param: str) -> None:
    answer = measured.chat(fm=fm)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_a_lane_the_engine_does_not_have_is_refused() -> None:
    with serving(lambda: tiny_engine(EngineConfig(max_rows=1)), allow_overrides=True) as live:
        answer = live.chat(fm={"lane": "batch"})
        assert answer.status_code == 400
        assert "one row" in answer.json()["error"]["message"]
        assert live.chat(fm={"lane": "serial"}).status_code == 200
    with serving(allow_overrides=True) as live:
        answer = live.chat(fm={"lane": "batch", "spec_batching": "serial"})
        assert answer.status_code == 400


def test_stats_count_decode_steps_by_the_rows_they_served(measured: Live) -> None:
    def decoded() -> dict[str, Any]:
        measured.wait_until_idle()
        found: dict[str, Any] = measured.client.get("/stats").json()["decode"]
        return found

    before = decoded()
    answer = measured.chat("a", max_tokens=9, ignore_eos=True, n=4, fm={"draft": 0})
    tokens = answer.json()["usage"]["completion_tokens"]
    after = decoded()
    assert tokens == 36
    # The first token of a row comes of its prompt, not of a decode step.
    assert after["tokens"] - before["tokens"] == tokens - 4
    none = {"steps": 0, "tokens": 0}
    was, full = (sums["by_rows"].get("4", none) for sums in (before, after))
    assert full["tokens"] - was["tokens"] == 4 * (full["steps"] - was["steps"]) > 0
    assert after["seconds"] > before["seconds"]
    masks = after["mask_positions"]
    measured.chat("a", max_tokens=9, guided_choice=["yes", "no"], fm={"draft": 0})
    assert decoded()["mask_positions"] > masks


def test_the_peak_of_memory_begins_anew(measured: Live) -> None:
    measured.chat("x" * 900, max_tokens=1)
    before = measured.client.get("/stats").json()["memory"]["mlx_peak_bytes"]
    measured.wait_until_idle()
    assert measured.client.post("/stats/reset-peak").status_code == 204
    memory = measured.client.get("/stats").json()["memory"]
    assert memory["mlx_active_bytes"] <= memory["mlx_peak_bytes"] < before
    assert memory["rss_bytes"] > 0
