"""A server of OpenAI's API that is not ours, in a thread: as little of it as a test asks for."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.waiting import WAIT_S, wait_for

Part = bytes | float | Callable[[], object]
"""Bytes to send, seconds to wait, or what has to hold before the reply goes on."""


def chunk(text: str = "", finish: str | None = None, **delta: Any) -> bytes:
    """One event of a chat, with the role in every one as some servers have it."""
    said = {"role": "assistant", "content": text, **delta}
    choice = {"index": 0, "delta": said, "finish_reason": finish}
    return event({"object": "chat.completion.chunk", "choices": [choice]})


def event(document: Any) -> bytes:
    return f"data: {json.dumps(document)}\n\n".encode()


def usage(completion: int, prompt: int = 5) -> bytes:
    counts = {"prompt_tokens": prompt, "completion_tokens": completion}
    return event({"choices": [], "usage": counts})


DONE = b"data: [DONE]\n\n"
WORDS = (chunk("one"), chunk(" two"), chunk(" three"), chunk(finish="stop"), usage(3), DONE)


@dataclass
class Foreign:
    """What the server does, and what it was asked.

    Attributes:
        script: parts of a reply to a body; a Response is sent instead.
        models: ids it lists.
    """

    script: Callable[[dict[str, Any]], Iterable[Part] | Response] = lambda _body: WORDS
    models: tuple[str, ...] = ("words",)
    asked: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    live: int = 0
    most_live: int = 0
    url: str = ""

    def app(self) -> Starlette:
        async def models(_request: Request) -> Response:
            return JSONResponse({"data": [{"id": name} for name in self.models]})

        async def chat(request: Request) -> Response:
            body = await request.json() if await request.body() else {}
            self.asked.append(body)
            self.headers.append(dict(request.headers))
            found = self.script(body)
            if isinstance(found, Response):
                return found
            return StreamingResponse(self._parts(found), media_type="text/event-stream")

        return Starlette(
            routes=[
                Route("/v1/models", models),
                Route("/v1/chat/completions", chat, methods=["POST"]),
            ]
        )

    async def _parts(self, parts: Iterable[Part]) -> AsyncIterator[bytes]:
        self.live += 1
        self.most_live = max(self.most_live, self.live)
        try:
            for part in parts:
                if isinstance(part, bytes):
                    yield part
                    await asyncio.sleep(0)
                elif callable(part):
                    async with asyncio.timeout(WAIT_S):
                        while not part():
                            await asyncio.sleep(0.005)
                else:
                    await asyncio.sleep(part)
        finally:
            self.live -= 1


@contextmanager
def foreign(**settings: Any) -> Iterator[Foreign]:
    """A server that answers, on a free port of this machine."""
    made = Foreign(**settings)
    config = uvicorn.Config(made.app(), port=0, log_config=None, lifespan="off", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_for(lambda: server.started)
        port = server.servers[0].sockets[0].getsockname()[1]
        made.url = f"http://127.0.0.1:{port}/v1"
        yield made
    finally:
        server.should_exit = server.force_exit = True
        thread.join(WAIT_S)
    assert not thread.is_alive()
