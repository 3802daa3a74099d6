"""Function calls of /v1/responses: the calls of a chat, as items."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from engine.testing import tiny_model
from tests.engine.hermes import hermes_model
from tests.engine.server.calling import END, PAINT, TWO_CALLS, UNTHINK, WEATHER, check_call
from tests.engine.server.live import MODEL, Live, engine_of, lanes_of, serving
from tests.engine.server.response_stream import reply_of

FUNCTIONS: list[dict[str, Any]] = [
    {"name": "get_weather", "description": "d", "parameters": WEATHER, "strict": True},
    {"name": "paint-it", "parameters": PAINT, "strict": None},
]
FLAT = [{"type": "function", **item} for item in FUNCTIONS]
NESTED = [{"type": "function", "function": item} for item in FUNCTIONS]
THINK = "259"
"""The token that opens reasoning."""


@pytest.fixture(scope="module", params=[tiny_model, hermes_model])
def drafting(request: pytest.FixtureRequest) -> Iterator[Live]:
    """Several tokens come at once; that drafts change nothing is tested elsewhere."""
    with serving(lambda: lanes_of(request.param())) as live:
        yield live
        live.wait_until_idle()


@pytest.fixture(scope="module")
def hermes() -> Iterator[Live]:
    with serving(lambda: lanes_of(hermes_model())) as live:
        yield live


def asked(**fields: Any) -> dict[str, Any]:
    return {"logit_bias": {str(END): 5, str(UNTHINK): 100}, "return_token_ids": True, **fields}


def calls_of(response: dict[str, Any]) -> list[tuple[str, str]]:
    calls = [item for item in response["output"] if item["type"] == "function_call"]
    assert len({call["call_id"] for call in calls}) == len(calls)
    return [(call["name"], call["arguments"]) for call in calls]


def text_of(response: dict[str, Any]) -> str:
    messages = [item for item in response["output"] if item["type"] == "message"]
    return "".join(part["text"] for item in messages for part in item["content"])


FLAT_NAME, NESTED_NAME = (
    {"type": "function", "name": "paint-it"},
    {"type": "function", "function": {"name": "paint-it"}},
)
CHOICES: dict[str, tuple[Any, Any]] = {
    "auto": ("auto", "auto"),
    "none": ("none", "none"),
    "required": ("required", "required"),
    "named": (FLAT_NAME, NESTED_NAME),
    "allowed": (
        {"type": "allowed_tools", "mode": "required", "tools": [FLAT_NAME]},
        {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "required", "tools": [NESTED_NAME]},
        },
    ),
}


@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    "sampling", [{"temperature": 1.2, "seed": 3}, TWO_CALLS], ids=["warm", "two"]
)
def test_a_response_calls_what_a_chat_calls(
    drafting: Live, name: str, is_stream: bool, sampling: dict[str, Any]
) -> None:
    flat, nested = CHOICES[name]
    fields = asked(**sampling)
    known = engine_of(drafting).model.vocab_size
    fields["logit_bias"] = {
        token: bias for token, bias in fields["logit_bias"].items() if int(token) < known
    }
    chat = drafting.chat(max_tokens=120, tools=NESTED, tool_choice=nested, **fields).json()
    reply = reply_of(
        drafting, is_stream, max_output_tokens=120, tools=FLAT, tool_choice=flat, **fields
    )
    (choice,) = chat["choices"]
    assert reply["token_ids"] == choice["token_ids"]
    assert reply["prompt_token_ids"] == chat["prompt_token_ids"]
    expected = [
        (call["function"]["name"], call["function"]["arguments"])
        for call in choice["message"].get("tool_calls", [])
    ]
    assert calls_of(reply) == expected
    assert text_of(reply) == (choice["message"]["content"] or "")
    assert (reply["status"] == "incomplete") == (choice["finish_reason"] == "length")
    assert reply["usage"]["conformance"] == chat["usage"]["conformance"]
    assert (reply["tools"], reply["tool_choice"]) == (FLAT, flat)
    if reply["status"] == "completed":
        for called, arguments in calls_of(reply):
            check_call(called, arguments)
        assert calls_of(reply) or name in ("auto", "none")
        assert all(item["status"] == "completed" for item in reply["output"])


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
def test_calls_may_be_several_or_held_to_one(hermes: Live, is_stream: bool) -> None:
    fields: Any = {"tools": FLAT, "max_output_tokens": 300, **TWO_CALLS}
    for is_parallel in (True, False):
        reply = reply_of(hermes, is_stream, parallel_tool_calls=is_parallel, **fields)
        assert reply["status"] == "completed"
        assert (len(calls_of(reply)) > 1) == is_parallel
        assert calls_of(reply)
        assert reply["parallel_tool_calls"] == is_parallel


def test_a_call_that_is_cut_is_incomplete_and_so_is_the_response(hermes: Live) -> None:
    fields: Any = {"tools": FLAT, "tool_choice": "required", **asked()}
    whole = reply_of(hermes, False, max_output_tokens=300, **fields)
    ((name, arguments), *_) = calls_of(whole)
    for most in range(1, whole["usage"]["output_tokens"], 7):
        cut = reply_of(hermes, True, max_output_tokens=most, **fields)
        assert cut["status"] == "incomplete"
        assert cut["usage"]["conformance"] == "failed"
        for called, part in calls_of(cut)[:1]:
            assert called == name
            assert arguments.startswith(part)
            assert cut["output"][-1]["status"] == "incomplete"


USER = {"role": "user", "content": "hi"}
SAYS = {"role": "assistant", "content": "Well."}
FIRST = {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": "{}"}
SECOND = {"type": "function_call", "call_id": "c2", "name": "f", "arguments": '{"a": 1}'}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": []}


def output(call_id: str, text: Any = "sunny") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def turn(content: str, *calls: dict[str, Any]) -> dict[str, Any]:
    wire = [
        {
            "id": call["call_id"],
            "type": "function",
            "function": {"name": call["name"], "arguments": call["arguments"]},
        }
        for call in calls
    ]
    return {"role": "assistant", "content": content, "tool_calls": wire}


def result(call_id: str, text: str = "sunny") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


INPUTS: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    "one call": ([USER, THOUGHT, FIRST, output("c1")], [USER, turn("", FIRST), result("c1")]),
    "behind text": (
        [USER, SAYS, FIRST, output("c1"), USER],
        [USER, turn("Well.", FIRST), result("c1"), USER],
    ),
    "two at once": (
        [USER, FIRST, SECOND, output("c2"), output("c1")],
        [USER, turn("", FIRST, SECOND), result("c2"), result("c1")],
    ),
    "one after the other": (
        [USER, FIRST, output("c1"), THOUGHT, SECOND, output("c2")],
        [USER, turn("", FIRST), result("c1"), turn("", SECOND), result("c2")],
    ),
    "parts": (
        [USER, FIRST, output("c1", [{"type": "input_text", "text": "sunny"}])],
        [USER, turn("", FIRST), result("c1")],
    ),
}


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("tools", [(FLAT, NESTED), ([], [])], ids=["tools", "no tools"])
def test_calls_and_outputs_are_the_turns_of_a_chat(
    drafting: Live, name: str, tools: tuple[Any, Any]
) -> None:
    content, messages = INPUTS[name]
    flat, nested = tools
    reply = drafting.respond(content, tools=flat, return_token_ids=True).json()
    chat = drafting.chat(messages=messages, tools=nested, return_token_ids=True).json()
    assert reply["prompt_token_ids"] == chat["prompt_token_ids"]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tools": {}}, "tools"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools[0].function"),
    ({"tools": [FLAT[0], FLAT[0]]}, "tools[1]"),
    ({"tools": [{**FLAT[0], "parameters": {"type": "strng"}}]}, "tools[0].parameters"),
    (
        {"tools": [FLAT[1], {**FLAT[0], "parameters": {"properties": {"a": {"type": "x"}}}}]},
        "tools[1].parameters",
    ),
    ({"tools": FLAT, "tool_choice": "any"}, "tool_choice"),
    ({"tools": FLAT, "tool_choice": {"type": "function", "name": "other"}}, "tool_choice"),
    ({"tools": FLAT, "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
    ({"tools": [], "tool_choice": "required"}, "tool_choice"),
    ({"tools": FLAT, "parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ({"tools": FLAT, "guided_regex": "a"}, "guided_regex"),
    ({"content": [USER, output("c1")]}, "input[1].call_id"),
    ({"content": [USER, output(["c1"])]}, "input[1].call_id"),  # type: ignore[arg-type]  # is refused
    ({"content": [USER, {**FIRST, "arguments": "x"}]}, "input[1].arguments"),
    ({"content": [USER, {**FIRST, "arguments": "[]"}]}, "input[1].arguments"),
    ({"content": [USER, {**FIRST, "name": ""}]}, "input[1].name"),
    ({"content": [USER, {**FIRST, "call_id": ""}]}, "input[1].call_id"),
    ({"content": [USER, FIRST, FIRST]}, "input[2].call_id"),
    ({"content": [USER, {"type": "function_call", "name": "f"}]}, "input[1].call_id"),
    (
        {"content": [USER, FIRST, output("c1", [{"type": "input_image"}])]},
        "input[2].output[0].type",
    ),
    ({"content": [USER, {"role": "tool", "content": "x"}]}, "input[1].role"),
]


@pytest.mark.parametrize(("fields", "place"), REFUSED, ids=lambda value: str(value)[:60])
def test_what_cannot_be_called_is_refused_by_its_place(
    hermes: Live, fields: dict[str, Any], place: str
) -> None:
    answer = hermes.respond(**fields)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"].startswith(place)


def test_the_official_client_takes_calls_and_gives_outputs(hermes: Live) -> None:
    with OpenAI(base_url=f"{hermes.url}/v1", api_key="none", max_retries=0) as client:
        turns: list[Any] = [USER]
        given: dict[str, Any] = {
            "model": MODEL,
            "tools": FLAT,
            "tool_choice": "required",
            "temperature": 0,
            "max_output_tokens": 200,
            "parallel_tool_calls": False,
            "extra_body": {"logit_bias": {THINK: -100}},
        }
        with client.responses.stream(input=turns, **given) as stream:
            kinds = {event.type for event in stream}
            reply = stream.get_final_response()
        assert "response.function_call_arguments.delta" in kinds
        calls = [item for item in reply.output if item.type == "function_call"]
        assert calls
        for call in calls:
            check_call(call.name, call.arguments)
        turns += reply.output
        turns += [output(call.call_id) for call in calls]
        again = client.responses.create(input=turns, **{**given, "tool_choice": "none"})
        assert again.output_text
        dumped = [getattr(item, "model_dump", lambda item=item: item)() for item in turns]
        same = client.responses.create(input=dumped, **{**given, "tool_choice": "none"})
        assert same.output_text == again.output_text
