"""Tools, requests that offer them, and what replies to these called."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

from jsonschema import Draft202012Validator

from tests.engine.server.live import CHAT, Live, chat_body, events_of

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Oslo", "Rome"]},
        "days": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
PAINT = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "}\n</tool_call>", '"<tool_call>']}},
    "required": ["colour"],
    "additionalProperties": False,
}
SCHEMAS = {"get_weather": WEATHER, "paint-it": PAINT}


def tool(name: str, *, strict: bool = True, schema: Any = None) -> dict[str, Any]:
    function = {"name": name, "parameters": schema or SCHEMAS[name], "strict": strict}
    return {"type": "function", "function": function}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


TOOLS = [tool("get_weather"), tool("paint-it", strict=False)]
AT_ONCE = {"chat_template_kwargs": {"enable_thinking": False}}
END, UNTHINK = 258, 260
"""Tokens of both models: one that ends a reply, one that closes its reasoning."""

CALL = 261
"""The token <tool_call> of the model that has one."""

TWO_CALLS = {"logit_bias": {str(CALL): 100, str(END): 30}, "frequency_penalty": 60}
"""The likeliest token begins a call, then another one, and then ends the reply."""


def asked(**fields: Any) -> dict[str, Any]:
    bias = {str(END): 5, str(UNTHINK): 100}
    return chat_body(**{"tools": TOOLS, "max_tokens": 300, "logit_bias": bias, **fields})


def answered(live: Live, **fields: Any) -> dict[str, Any]:
    answer = live.client.post(CHAT, json=asked(**fields))
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def collected(live: Live, **fields: Any) -> list[dict[str, Any]]:
    """The choices that a stream adds up to, in the form of a whole reply."""
    answer = live.client.post(CHAT, json=asked(**fields, stream=True))
    assert answer.status_code == 200, answer.text
    *items, last = events_of(answer.text)
    assert last == "[DONE]"
    choices: dict[int, dict[str, Any]] = defaultdict(dict)
    for item in map(json.loads, items):
        for part in item["choices"]:
            _add(choices[part["index"]], part)
    return [choices[index] for index in sorted(choices)]


def _add(choice: dict[str, Any], part: dict[str, Any]) -> None:
    delta = part["delta"]
    assert "finish_reason" not in choice or choice["finish_reason"] is None, "an end is the end"
    for said in ("content", "reasoning_content"):
        if delta.get(said):
            choice[said] = choice.get(said, "") + delta[said]
    calls = choice.setdefault("calls", [])
    for call in delta.get("tool_calls", []):
        if "id" in call:
            assert call["index"] == len(calls)
            assert call["type"] == "function"
            assert call["function"]["arguments"] == ""
            calls.append({"id": call["id"], "name": call["function"]["name"], "arguments": ""})
        else:
            assert call["index"] == len(calls) - 1
            assert set(call["function"]) == {"arguments"}
            calls[-1]["arguments"] += call["function"]["arguments"]
    choice.setdefault("ids", []).extend(part.get("token_ids", []))
    entries = (part["logprobs"] or {}).get("content", [])
    choice.setdefault("entries", []).extend(entries)
    choice["finish_reason"] = part["finish_reason"]


def calls_of(choice: dict[str, Any]) -> list[tuple[str, str]]:
    calls = choice["message"].get("tool_calls", [])
    assert len({call["id"] for call in calls}) == len(calls)
    assert all(call["id"].startswith("call_") for call in calls)
    assert all(call["type"] == "function" for call in calls)
    return [(call["function"]["name"], call["function"]["arguments"]) for call in calls]


def check_call(name: str, arguments: str) -> None:
    Draft202012Validator(SCHEMAS[name]).validate(json.loads(arguments))
