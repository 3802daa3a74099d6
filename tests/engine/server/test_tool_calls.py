"""Tool calls over HTTP: whatever a model writes, its calls are calls of the request's tools."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.engine.server.calling import (
    AT_ONCE,
    CALL,
    END,
    TWO_CALLS,
    UNTHINK,
    answered,
    calls_of,
    check_call,
    collected,
    named,
)
from tests.engine.server.live import Live, serving
from tests.engine.server.reply import choice_of


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"get_weather", "paint-it"}),
        (named("get_weather"), {"get_weather"}),
        (named("paint-it"), {"paint-it"}),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "required", "tools": [named("paint-it")]},
            },
            {"paint-it"},
        ),
    ],
    ids=["required", "first", "second", "allowed"],
)
def test_a_reply_that_must_call_does_and_says_nothing_else(
    either: Live, choice: Any, names: set[str]
) -> None:
    for seed in range(2):
        answer = answered(
            either,
            tool_choice=choice,
            parallel_tool_calls=False,
            n=3,
            temperature=1.5,
            seed=10 * seed,
            **AT_ONCE,
        )
        for found in answer["choices"]:
            assert found["finish_reason"] == "tool_calls"
            assert found["message"]["content"] is None
            (call,) = calls_of(found)
            assert call[0] in names
            check_call(*call)
        assert answer["usage"]["conformance"] in ("enforced", "checked")


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": "required", **AT_ONCE},
        {"tool_choice": "required", "temperature": 1, "seed": 4, "n": 3, **AT_ONCE},
        {"tool_choice": "required", "max_tokens": 70, **AT_ONCE},
        {"tool_choice": named("paint-it"), "logprobs": True, "top_logprobs": 2, **AT_ONCE},
        {"temperature": 1, "seed": 1, "n": 3, **AT_ONCE},
        {"temperature": 1, "seed": 1, "max_tokens": 200},
        {"stop": ["w", "red"], "tool_choice": "required", **AT_ONCE},
        {"tool_choice": "none", **AT_ONCE},
    ],
    ids=["required", "sampled", "cut", "named", "auto", "reasoning", "stopped", "none"],
)
def test_a_stream_adds_up_to_the_whole_reply(either: Live, fields: dict[str, Any]) -> None:
    whole = answered(either, **fields, return_token_ids=True)
    parts = collected(either, **fields, return_token_ids=True)
    assert [part.outcome for part in parts] == [choice_of(item) for item in whole["choices"]]
    assert all(part.ids for part in parts)
    assert all(bool(part.entries) == bool(fields.get("logprobs")) for part in parts)


def test_a_model_that_calls_by_itself_is_heard_with_its_text_and_several_calls(
    hermes: Live,
) -> None:
    answer = answered(hermes, **TWO_CALLS)
    (choice,) = answer["choices"]
    calls = calls_of(choice)
    assert len(calls) == 2
    for call in calls:
        check_call(*call)
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    assert answer["usage"]["conformance"] in ("enforced", "checked")
    (one,) = answered(hermes, **TWO_CALLS, parallel_tool_calls=False)["choices"]
    assert calls_of(one) == calls[:1]
    assert one["finish_reason"] == "tool_calls"
    (streamed,) = collected(hermes, **TWO_CALLS)
    assert streamed.calls == calls


def test_text_before_a_call_is_content(hermes: Live) -> None:
    late = {"logit_bias": {str(CALL): 12, str(END): 3}, "parallel_tool_calls": False}
    said = []
    for seed in range(6):
        (choice,) = answered(hermes, **late, temperature=1.5, seed=seed, **AT_ONCE)["choices"]
        text, calls = choice["message"]["content"], calls_of(choice)
        said.append((bool(text), len(calls)))
        assert "tool_call" not in (text or "")
        assert choice["finish_reason"] == ("tool_calls" if calls else "stop")
        for call in calls:
            check_call(*call)
    assert (True, 1) in said, "no seed spoke and called"


def test_a_cut_call_is_length_and_never_tool_calls(either: Live) -> None:
    fields: Any = {"tool_choice": named("get_weather"), **AT_ONCE}
    full = answered(either, **fields)
    ((_, arguments),) = calls_of(full["choices"][0])
    total = full["usage"]["completion_tokens"]
    for most in (*range(1, total - 1, 6), total - 1, total):
        for said in (
            choice_of(answered(either, **(fields | {"max_tokens": most}))["choices"][0]),
            collected(either, **(fields | {"max_tokens": most}))[0],
        ):
            assert said.reasons == ["length" if most < total else "tool_calls"]
            assert all(name == "get_weather" for name, _ in said.calls)
            assert all(arguments.startswith(part) for _, part in said.calls)
            assert not said.text
    assert answered(either, **(fields | {"max_tokens": 9}))["usage"]["conformance"] == "failed"


def test_a_stop_text_ends_a_call_and_no_call_is_told_of(either: Live) -> None:
    (choice,) = answered(either, tool_choice=named("get_weather"), stop="days", **AT_ONCE)[
        "choices"
    ]
    assert choice["finish_reason"] == "stop"
    ((name, arguments),) = calls_of(choice)
    assert name == "get_weather"
    assert arguments.endswith(',"')


def test_a_stop_text_behind_a_whole_call_is_still_a_stop(hermes: Live) -> None:
    bias = {str(CALL): 100, str(ord("x")): 80}
    fields: Any = {"logit_bias": bias, "frequency_penalty": 90, "stop": "x"}
    (choice,) = answered(hermes, **fields)["choices"]
    (call,) = calls_of(choice)
    check_call(*call)
    assert choice["finish_reason"] == "stop"
    (streamed,) = collected(hermes, **fields)
    assert streamed.reasons == ["stop"]


def test_lanes_and_drafts_do_not_change_what_is_called() -> None:
    fields: Any = {"tool_choice": "required", "parallel_tool_calls": False, **AT_ONCE}
    with serving(allow_overrides=True) as live:
        found = []
        for lane in ("serial", "batch"):
            for draft in (0, 3):
                asked_for = {"lane": lane, "draft": draft}
                answer = answered(live, **fields, temperature=1, seed=7, fm=asked_for)
                assert answer["usage"]["lane"] == lane
                found.append(calls_of(answer["choices"][0]))
    check_call(*found[0][0])
    assert found == found[:1] * 4


def test_reasoning_comes_before_calls(thinker: Live) -> None:
    fields: Any = {
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "logit_bias": {str(UNTHINK): 6},
    }
    for seed in range(3):
        answer = answered(thinker, **fields, temperature=1, seed=seed)
        (choice,) = answer["choices"]
        assert choice["message"]["content"] is None
        (call,) = calls_of(choice)
        check_call(*call)
        assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0
        (streamed,) = collected(thinker, **fields, temperature=1, seed=seed)
        assert streamed.reasoning == choice["message"].get("reasoning_content")


def test_a_choice_of_none_shows_no_tools_and_calls_none(either: Live) -> None:
    fields: Any = {"return_token_ids": True, "max_tokens": 8}
    without = answered(either, tools=None, **fields)
    none = answered(either, tool_choice="none", **fields)
    assert none["prompt_token_ids"] == without["prompt_token_ids"]
    assert none["usage"]["conformance"] is None
    auto = answered(either, **fields)
    assert len(auto["prompt_token_ids"]) > len(none["prompt_token_ids"])
    assert answered(either, tools=[], **fields)["usage"]["conformance"] is None


DOCUMENT = {
    "type": "json_schema",
    "json_schema": {
        "name": "out",
        "schema": {
            "type": "object",
            "properties": {"a": {"enum": [1, 2]}},
            "required": ["a"],
            "additionalProperties": False,
        },
    },
}


def test_a_reply_with_tools_and_a_format_is_calls_or_a_document(hermes: Live) -> None:
    fields: Any = {"response_format": DOCUMENT, "parallel_tool_calls": False, **AT_ONCE}
    calls = answered(hermes, **fields, logit_bias={str(CALL): 100})
    (choice,) = calls["choices"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)
    check_call(*calls_of(choice)[0])
    says = answered(hermes, **fields, logit_bias={str(ord("{")): 100})
    (choice,) = says["choices"]
    assert (choice["finish_reason"], calls_of(choice)) == ("stop", [])
    assert json.loads(choice["message"]["content"])["a"] in (1, 2)
    for answer in (calls, says):
        assert answer["usage"]["conformance"] in ("enforced", "checked")


def test_a_reply_that_must_call_does_so_whatever_its_format(hermes: Live) -> None:
    fields: Any = {"response_format": DOCUMENT, "parallel_tool_calls": False, **AT_ONCE}
    bias = {str(ord("{")): 80, str(UNTHINK): 100}
    (choice,) = answered(hermes, **fields, tool_choice="required", logit_bias=bias)["choices"]
    check_call(*calls_of(choice)[0])
    assert choice["message"]["content"] is None
