"""The official client calls tools of a live server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI, pydantic_function_tool
from pydantic import BaseModel, Field

from tests.engine.server.calling import AT_ONCE
from tests.engine.server.live import MODEL, Live


class GetWeather(BaseModel):
    """Tells the weather."""

    city: str = Field(max_length=8)
    days: int = Field(ge=0, le=9)


@pytest.fixture
def client(either: Live) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{either.url}/v1", api_key="none", max_retries=0) as client:
        yield client


ASKS: Any = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "hi"}],
    "tools": [pydantic_function_tool(GetWeather)],
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "max_tokens": 300,
    "temperature": 0,
    "extra_body": AT_ONCE,
}


def test_the_client_parses_arguments_into_models(client: OpenAI) -> None:
    reply = client.chat.completions.parse(**ASKS)
    assert reply.choices[0].finish_reason == "tool_calls"
    assert reply.choices[0].message.content is None
    (call,) = reply.choices[0].message.tool_calls or []
    assert call.function.name == "GetWeather"
    assert isinstance(call.function.parsed_arguments, GetWeather)


def test_the_clients_stream_collects_calls(client: OpenAI) -> None:
    with client.chat.completions.stream(**ASKS) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert "tool_calls.function.arguments.delta" in kinds
    assert "tool_calls.function.arguments.done" in kinds
    (call,) = final.choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, GetWeather)


@pytest.mark.parametrize("way", ["create", "parse"])
def test_the_clients_messages_go_back_as_they_are(client: OpenAI, way: str) -> None:
    ask = getattr(client.chat.completions, way)
    first = ask(**ASKS).choices[0].message
    (call,) = first.tool_calls or []
    result = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
    said = [*ASKS["messages"], first, result]
    reply = client.chat.completions.create(
        **{**ASKS, "messages": said, "tool_choice": "auto", "max_tokens": 5}
    )
    assert reply.choices[0].finish_reason in ("stop", "length")
    dumped = [*ASKS["messages"], first.model_dump(), result]
    again = client.chat.completions.create(
        **{**ASKS, "messages": dumped, "tool_choice": "auto", "max_tokens": 5}
    )
    assert again.choices[0].message.content == reply.choices[0].message.content
