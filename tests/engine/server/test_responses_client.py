"""The official client's responses against a live server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from enum import StrEnum
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, Field

from tests.engine.server.live import MODEL, Live
from tests.engine.server.test_faults import LONG_RESPONSE, Trap, trapped

ASKED: dict[str, Any] = {
    "model": MODEL,
    "input": "hi",
    "max_output_tokens": 40,
    "temperature": 0,
    "store": False,
    "reasoning": {"effort": "none"},
}


@pytest.fixture
def client(live: Live) -> Iterator[OpenAI]:
    with client_of(live) as client:
        yield client


def client_of(live: Live) -> OpenAI:
    return OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0)


class Colour(StrEnum):
    RED = "red"
    GREEN = "green"


class Paint(BaseModel):
    colour: Colour
    litres: int = Field(ge=1, le=9)


def test_a_response_answers(client: OpenAI) -> None:
    reply = client.responses.create(**ASKED)
    chat = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "hi"}],
        max_tokens=40,
        temperature=0,
        reasoning_effort="none",
    )
    assert reply.object == "response"
    assert reply.status in ("completed", "incomplete")
    assert reply.output_text == chat.choices[0].message.content
    assert reply.usage is not None
    assert reply.usage.output_tokens <= 40
    assert reply.usage.model_extra is not None
    assert reply.usage.model_extra["lane"] == "batch"


def test_a_stream_adds_up_to_the_response(client: OpenAI) -> None:
    whole = client.responses.create(**ASKED)
    events = list(client.responses.create(**ASKED, stream=True))
    assert events[0].type == "response.created"
    text = "".join(item.delta for item in events if item.type == "response.output_text.delta")
    assert text == whole.output_text
    last = events[-1]
    assert last.type in ("response.completed", "response.incomplete")
    assert last.response.output_text == text


def test_the_stream_helper_parses_the_response(client: OpenAI) -> None:
    asked = {**ASKED, "max_output_tokens": 80}
    with client.responses.stream(**asked, text_format=Paint) as stream:
        kinds = [item.type for item in stream]
        final = stream.get_final_response()
    assert kinds[-1] == "response.completed"
    assert isinstance(final.output_parsed, Paint)
    assert final.output_parsed == client.responses.parse(**asked, text_format=Paint).output_parsed


def test_a_response_is_parsed_into_a_model(client: OpenAI) -> None:
    for seed in range(5):
        asked = {**ASKED, "max_output_tokens": 80, "temperature": 1}
        reply = client.responses.parse(**asked, text_format=Paint, extra_body={"seed": seed})
        assert isinstance(reply.output_parsed, Paint)


def test_a_parsed_reply_goes_back_as_input(client: OpenAI) -> None:
    asked = {**ASKED, "max_output_tokens": 80}
    reply = client.responses.parse(**asked, text_format=Paint)
    for output in (list(reply.output), [item.model_dump() for item in reply.output]):
        turns: Any = [{"role": "user", "content": "hi"}, *output, {"role": "user", "content": "?"}]
        again = client.responses.create(**{**asked, "input": turns})
        assert again.usage is not None
        assert reply.usage is not None
        assert again.usage.input_tokens > reply.usage.total_tokens


def test_a_conversation_goes_on_with_the_items_of_the_reply(client: OpenAI) -> None:
    turns: list[Any] = [{"role": "user", "content": "hi"}]
    for _ in range(3):
        reply = client.responses.create(**{**ASKED, "input": turns, "max_output_tokens": 8})
        turns += [*reply.output, {"role": "user", "content": "and then?"}]
    assert reply.usage is not None
    assert reply.usage.input_tokens > 40


def test_logprobs_arrive(client: OpenAI) -> None:
    asked: dict[str, Any] = {**ASKED, "include": ["message.output_text.logprobs"]}
    reply = client.responses.create(**asked, top_logprobs=2)
    (item,) = reply.output
    assert item.type == "message"
    (part,) = item.content
    assert part.type == "output_text"
    assert part.logprobs
    assert all(len(entry.top_logprobs) == 2 for entry in part.logprobs)
    assert "".join(entry.token for entry in part.logprobs if entry.bytes) != ""


def test_errors_are_the_clients_own(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.responses.create(**{**ASKED, "model": "other"})
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(**ASKED, previous_response_id="resp_1")
    assert refused.value.param == "previous_response_id"
    for call in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
        with pytest.raises(openai.NotFoundError, match="no response is kept"):
            call("resp_1")


def test_an_error_in_mid_stream_is_raised_by_the_client() -> None:
    asked: dict[str, Any] = {"model": MODEL, "input": "hi", "temperature": 0, "stream": True}
    most = LONG_RESPONSE["max_output_tokens"]
    body = {name: item for name, item in LONG_RESPONSE.items() if name != "max_output_tokens"}
    with trapped(Trap(RuntimeError("broken"))) as live, client_of(live) as client:
        stream = client.responses.create(**asked, max_output_tokens=most, extra_body=body)
        kinds: list[str] = []
        with pytest.raises(openai.APIError, match="broken") as error:
            kinds.extend(item.type for item in stream)
        assert kinds[-1] == "response.failed"
        assert error.value.code == "row_failed"


def test_many_at_once_get_what_each_gets_alone(live: Live) -> None:
    asked = [
        {
            **ASKED,
            "input": f"number {index}",
            "max_output_tokens": 10 + index,
            "temperature": index % 3 / 2,
            "extra_body": {"seed": index},
        }
        for index in range(12)
    ]

    async def all_at_once() -> list[str]:
        async with AsyncOpenAI(base_url=f"{live.url}/v1", api_key="none") as client:

            async def streamed(fields: dict[str, Any]) -> str:
                parts = await client.responses.create(**fields, stream=True)
                kind = "response.output_text.delta"
                return "".join([part.delta async for part in parts if part.type == kind])

            async def whole(fields: dict[str, Any]) -> str:
                return str((await client.responses.create(**fields)).output_text)

            work = [(whole, streamed)[index % 2](one) for index, one in enumerate(asked)]
            return list(await asyncio.gather(*work))

    together = asyncio.run(all_at_once())
    with client_of(live) as client:
        assert together == [client.responses.create(**one).output_text for one in asked]
