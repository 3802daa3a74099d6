"""A prompt and its reply share one context: what does not fit is refused before it costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx2
import pytest

from engine.loop import Engine
from tests.engine.server.cases.echo import echo_model, knowing_drafter, prompt_ids
from tests.engine.server.live import CHAT, COMPLETIONS, LANES, Live, chat_body, serving
from tests.engine.server.reply import MODES, ask_chat, ask_ids, streamed
from tests.waiting import WAIT_S

CONTEXT = 160


@pytest.fixture(scope="module")
def narrow() -> Iterator[Live]:
    """A server whose model has a short context."""
    model = replace(echo_model(), config={"max_position_embeddings": CONTEXT})
    with serving(lambda: Engine(model, LANES, knowing_drafter()), default_max_tokens=500) as live:
        yield live
        live.wait_until_idle()


def text_of(num_tokens: int) -> str:
    """A text whose rendered prompt has so many tokens."""
    text = ("word " * num_tokens)[: num_tokens - 2]
    assert len(prompt_ids(text)) == num_tokens
    return text


FITS: list[tuple[int, dict[str, Any], int]] = [
    (CONTEXT - 1, {"max_tokens": 1}, 1),
    (CONTEXT - 10, {"max_tokens": 10}, 10),
    (CONTEXT - 10, {"max_tokens": 100}, 10),
    (CONTEXT - 10, {"max_tokens": None}, 10),
    (CONTEXT - 10, {"max_tokens": None, "max_completion_tokens": 99}, 10),
]
"""Tokens of the prompt, fields -> tokens of the reply."""


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("length", "fields", "room"), FITS, ids=str)
def test_a_budget_is_cut_to_what_the_context_leaves(
    narrow: Live, length: int, fields: dict[str, Any], room: int, mode: str
) -> None:
    text = text_of(length)
    reply = ask_chat(narrow, text, stream=MODES[mode], **fields)
    assert reply.said.text == text[:room]
    assert reply.said.reasons == ["length"]
    assert reply.usage["prompt_tokens"] == length
    assert reply.usage["completion_tokens"] == room
    if "max_completion_tokens" not in fields:
        again = ask_ids(narrow, [prompt_ids(text)], stream=MODES[mode], **fields)
        assert again.usage["prompt_tokens"] == length
        assert again.said.outcome == reply.said.outcome


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("length", [CONTEXT, CONTEXT + 1, 10 * CONTEXT])
def test_a_prompt_that_fills_the_context_is_refused_before_it_is_computed(
    narrow: Live, length: int, stream: bool
) -> None:
    def steps() -> int:
        return int(narrow.client.get("/stats").json()["steps"]["count"])

    before = steps()
    chat = chat_body(text_of(length), max_tokens=1, stream=stream)
    plain = {"model": "tiny", "prompt": prompt_ids(text_of(length)), "stream": stream}
    for path, body, param in ((CHAT, chat, "messages"), (COMPLETIONS, plain, "prompt")):
        refused = narrow.client.post(path, json=body)
        error = refused.json()["error"]
        assert (refused.status_code, error["param"]) == (400, param)
        assert error["code"] == "context_length_exceeded"
        assert str(length) in error["message"]
        assert str(CONTEXT) in error["message"]
    assert steps() == before


def test_neighbours_of_a_refused_prompt_go_on(narrow: Live) -> None:
    text = text_of(CONTEXT // 2)
    body = chat_body(text, stream=True, stream_options={"include_usage": True}, max_tokens=70)
    body["return_token_ids"] = True
    alone = ask_chat(narrow, text, stream=True, max_tokens=70)
    with (
        httpx2.Client(base_url=narrow.url, timeout=WAIT_S) as neighbour,
        neighbour.stream("POST", CHAT, json=body) as answer,
    ):
        refused = narrow.chat(text_of(10 * CONTEXT))
        assert refused.status_code == 400
        answer.read()
    assert streamed(answer).said.text == alone.said.text == text[:70]
