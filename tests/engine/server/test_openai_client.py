"""The official client against a live server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from enum import StrEnum
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, Field

from tests.engine.server.live import MODEL, Live, serving

HI: Any = [{"role": "user", "content": "hi"}]
AT_ONCE = {"chat_template_kwargs": {"enable_thinking": False}}


@pytest.fixture
def client(live: Live) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client:
        yield client


class Colour(StrEnum):
    RED = "red"
    GREEN = "green"


class Paint(BaseModel):
    colour: Colour
    litres: int = Field(ge=1, le=9)


def test_a_chat_answers(client: OpenAI) -> None:
    reply = client.chat.completions.create(
        model=MODEL, messages=HI, max_completion_tokens=12, temperature=0
    )
    assert reply.object == "chat.completion"
    assert reply.choices[0].message.role == "assistant"
    assert reply.choices[0].finish_reason in ("stop", "length")
    assert reply.usage is not None
    assert reply.usage.completion_tokens <= 12
    assert reply.usage.model_extra is not None
    assert reply.usage.model_extra["lane"] == "batch"


def test_a_stream_adds_up_to_the_reply(client: OpenAI) -> None:
    asked: dict[str, Any] = {"model": MODEL, "messages": HI, "max_tokens": 40, "temperature": 0}
    asked["extra_body"] = AT_ONCE
    whole = client.chat.completions.create(**asked)
    parts = list(client.chat.completions.create(**asked, stream=True))
    assert parts[0].choices[0].delta.role == "assistant"
    text = "".join(part.choices[0].delta.content or "" for part in parts)
    assert text == whole.choices[0].message.content != ""


def test_the_stream_helper_collects_the_reply(client: OpenAI) -> None:
    with client.chat.completions.stream(
        model=MODEL,
        messages=HI,
        max_tokens=80,
        temperature=0,
        response_format=Paint,
        extra_body=AT_ONCE,
    ) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    assert isinstance(final.choices[0].message.parsed, Paint)


def test_a_reply_is_parsed_into_a_model(client: OpenAI) -> None:
    for seed in range(5):
        reply = client.chat.completions.parse(
            model=MODEL,
            messages=HI,
            max_tokens=80,
            seed=seed,
            response_format=Paint,
            extra_body=AT_ONCE,
        )
        assert isinstance(reply.choices[0].message.parsed, Paint)
    message = reply.choices[0].message.model_dump(mode="json", warnings=False)
    said: list[Any] = [*HI, message, *HI]
    again = client.chat.completions.create(model=MODEL, messages=said, max_tokens=4)
    assert again.choices[0].finish_reason in ("stop", "length")


def test_a_cut_document_is_the_clients_length_error(client: OpenAI) -> None:
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(
            model=MODEL,
            messages=HI,
            max_tokens=5,
            temperature=0,
            response_format=Paint,
            extra_body=AT_ONCE,
        )


def test_logprobs_arrive(client: OpenAI) -> None:
    reply = client.chat.completions.create(
        model=MODEL, messages=HI, max_tokens=5, logprobs=True, top_logprobs=2
    )
    found = reply.choices[0].logprobs
    assert found is not None
    assert found.content is not None
    assert all(len(entry.top_logprobs) == 2 for entry in found.content)


def test_completions_answer(client: OpenAI) -> None:
    reply = client.completions.create(model=MODEL, prompt=["a", "b"], max_tokens=4, n=2)
    assert [choice.index for choice in reply.choices] == [0, 1, 2, 3]
    parts = list(client.completions.create(model=MODEL, prompt="a", max_tokens=4, stream=True))
    assert parts[-1].choices[0].finish_reason is not None


def test_models_are_listed(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


def test_errors_are_the_clients_own(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="other", messages=HI)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=MODEL, messages=HI, temperature=-1)
    assert refused.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as unknown:
        client.chat.completions.create(model=MODEL, messages=HI, extra_body={"colour": "red"})
    assert "colour" in str(unknown.value)


def test_a_wrong_key_is_the_clients_authentication_error() -> None:
    with (
        serving(api_key="right") as live,
        OpenAI(base_url=f"{live.url}/v1", api_key="wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.models.list()


def test_many_at_once_get_what_each_gets_alone(live: Live) -> None:
    asked: list[dict[str, Any]] = [
        {
            "model": MODEL,
            "messages": [{"role": "user", "content": f"number {index}"}],
            "max_tokens": 10 + index,
            "temperature": index % 3 / 2,
            "seed": index,
            "extra_body": AT_ONCE,
        }
        for index in range(16)
    ]

    async def all_at_once() -> list[str | None]:
        async with AsyncOpenAI(base_url=f"{live.url}/v1", api_key="none") as client:

            async def streamed(fields: dict[str, Any]) -> str:
                parts = await client.chat.completions.create(**fields, stream=True)
                return "".join([part.choices[0].delta.content or "" async for part in parts])

            async def whole(fields: dict[str, Any]) -> str | None:
                reply = await client.chat.completions.create(**fields)
                return reply.choices[0].message.content

            work = [(whole, streamed)[index % 2](one) for index, one in enumerate(asked)]
            return list(await asyncio.gather(*work))

    together = asyncio.run(all_at_once())
    with OpenAI(base_url=f"{live.url}/v1", api_key="none") as client:
        alone = [client.chat.completions.create(**one).choices[0].message.content for one in asked]
    assert together == alone
    assert len(set(alone)) > 8, "the replies can be told apart"
