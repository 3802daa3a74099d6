"""Tools, requests that offer them, and what replies to these called."""

from __future__ import annotations

import json
from typing import Any

from jsonschema import Draft202012Validator

from tests.engine.server.live import CHAT, Live, chat_body
from tests.engine.server.reply import Said, choice_of, streamed

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


def collected(live: Live, **fields: Any) -> list[Said]:
    """The choices that a stream adds up to."""
    return streamed(live.client.post(CHAT, json=asked(**fields, stream=True))).choices


def calls_of(choice: dict[str, Any]) -> list[tuple[str, str]]:
    return choice_of(choice).calls


def check_call(name: str, arguments: str) -> None:
    Draft202012Validator(SCHEMAS[name]).validate(json.loads(arguments))
