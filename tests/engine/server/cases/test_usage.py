"""Tokens are counted alike in every lane and mode, and a cut document says that it is cut."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.testing import tiny_model
from tests.engine.server.cases.echo import alias, prompt_ids
from tests.engine.server.live import CHAT, Live, chat_body, events_of
from tests.engine.server.reply import LANES, MODES, Reply, ask_chat, schema_format

LOOK = {
    "name": "look",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"where": {"enum": ["up", "down"]}},
        "required": ["where"],
        "additionalProperties": False,
    },
}
COUNTED: dict[str, tuple[str, dict[str, Any]]] = {
    "the budget": ("Count up.", {"max_tokens": 30, "ignore_eos": True}),
    "an end token": ("Say: ok", {"max_tokens": 64, "min_tokens": 9, "logit_bias": {"258": 100}}),
    "a document": (
        "Choose.",
        {
            "max_tokens": 64,
            "response_format": schema_format({"enum": ["a"]}),
            "chat_template_kwargs": {"enable_thinking": False},
        },
    ),
    "a stop text": (
        "smile 😀",
        {
            "max_tokens": 300,
            "ignore_eos": True,
            "stop": ["b", "e", " "],
            "chat_template_kwargs": {"enable_thinking": False},
        },
    ),
    "a call": (
        "Look.",
        {
            "max_tokens": 120,
            "tools": [{"type": "function", "function": LOOK}],
            "tool_choice": {"type": "function", "function": {"name": "look"}},
            "chat_template_kwargs": {"enable_thinking": False},
        },
    ),
}
"""What ends the reply -> prompt and fields."""


def rendered(content: str, **options: Any) -> list[int]:
    messages = [{"role": "user", "content": content}]
    return tiny_model().tokenizer.apply_chat_template(messages, options=options)


@pytest.mark.parametrize("name", COUNTED)
def test_every_lane_and_mode_counts_the_same_tokens(tiny: Live, name: str) -> None:
    content, fields = COUNTED[name]
    replies = [
        ask_chat(tiny, content, stream=stream, fm=fm, **fields)
        for fm in LANES.values()
        for stream in MODES.values()
    ]
    options = fields.get("chat_template_kwargs", {})
    for reply in replies:
        usage = reply.usage
        first = reply.document if isinstance(reply.document, dict) else reply.document[0]
        assert usage["prompt_tokens"] == len(first["prompt_token_ids"])
        if "tools" not in fields:
            assert first["prompt_token_ids"] == rendered(content, **options)
        assert usage["completion_tokens"] == len(reply.said.ids) > 0
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        assert reply.said.outcome == replies[0].said.outcome
    (reason,) = replies[0].said.reasons
    assert reason == {"the budget": "length", "a call": "tool_calls"}.get(name, "stop")


@pytest.mark.parametrize("name", COUNTED)
@pytest.mark.parametrize("n", [1, 3])
def test_usage_comes_between_the_last_choice_and_the_end_of_the_stream(
    tiny: Live, n: int, name: str
) -> None:
    content, fields = COUNTED[name]
    body = chat_body(content, **fields, n=n, seed=1, stream=True)
    asked = tiny.client.post(CHAT, json={**body, "stream_options": {"include_usage": True}})
    plain = tiny.client.post(CHAT, json=body)
    *chunks, usage, last = events_of(asked.text)
    assert last == "[DONE]"
    assert json.loads(usage)["choices"] == []
    assert json.loads(usage)["usage"]["completion_tokens"] > 0
    documents = [json.loads(chunk) for chunk in chunks]
    assert all(chunk["choices"] and "usage" not in chunk for chunk in documents)
    assert documents[-1]["choices"][-1]["finish_reason"] is not None
    assert len(events_of(plain.text)) == len(chunks) + 1
    assert '"usage"' not in plain.text


ANIMALS = {
    "type": "object",
    "properties": {
        "animals": {
            "type": "array",
            "minItems": 2,
            "items": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "legs": {"type": "integer"}},
                "required": ["name", "legs"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["animals"],
    "additionalProperties": False,
}
LIST = '{"animals":[{"name":"ant","legs":6},{"name":"cow","legs":4}]}'


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("lane", LANES)
def test_a_document_is_cut_at_the_budget_and_left_as_it_is(
    echo: Live, lane: str, mode: str
) -> None:
    few = (1, 12, 40)
    begun = range(1, 41) if lane == "batch+spec" else few
    for most in (*begun, len(LIST) - 1, len(LIST), len(LIST) + 1):
        reply = ask_chat(
            echo,
            LIST,
            stream=MODES[mode],
            fm=LANES[lane],
            max_tokens=most,
            response_format=schema_format(ANIMALS),
        )
        is_whole = most >= len(LIST)
        assert reply.said.text == LIST[:most]
        assert reply.said.reasons == ["stop" if is_whole else "length"]
        assert reply.usage["completion_tokens"] == min(most, len(LIST))
        assert reply.usage["conformance"] == ("enforced" if is_whole else "failed")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("lane", LANES)
def test_a_budget_below_the_shortest_document_is_length(tiny: Live, lane: str, mode: str) -> None:
    reply = ask_chat(
        tiny,
        "hi",
        stream=MODES[mode],
        fm=LANES[lane],
        max_tokens=5,
        response_format=schema_format({"type": "array", "minItems": 4, "items": {"const": 1}}),
        chat_template_kwargs={"enable_thinking": False},
    )
    assert (reply.said.text, reply.said.reasons) == ("[1,1,", ["length"])


def test_a_template_is_counted_as_it_was_rendered(echo: Live) -> None:
    content = "é" + alias(b"ple")
    reply: Reply = ask_chat(echo, content, stream=False)
    assert reply.document["prompt_token_ids"] == prompt_ids(content)
    assert reply.usage["prompt_tokens"] == len(prompt_ids(content)) == 5
